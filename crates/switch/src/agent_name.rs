// SPDX-License-Identifier: Apache-2.0
//! The name under which the agent starts monitors, while the package vipwatch-neutron is installed.
//!
//! The agent looks for dead monitors once a minute. If it does so while a monitor is replaced, it starts one too. With
//! `to-neutron` that must be Neutron's program: so the name leads to it before the first replacement (`suspend`), and to
//! vipwatch again with `to-vipwatch` (`resume`). The package's own script changes the name, because it also repairs and
//! removes it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::SwitchFailure;
use crate::monitor::MonitorProgram;
use crate::program::{AGENT_NAME, DIVERTED_NAME, TargetProgram};

/// The script of the package.
const SETUP: &str = "/usr/lib/vipwatch/neutron-setup";

/// Whether the name leads to Neutron's program although the package is installed.
pub(crate) fn is_suspended() -> bool {
    let link = std::fs::read_link(AGENT_NAME).ok();
    link.is_some_and(|link| Path::new("/usr/bin").join(link) == Path::new(DIVERTED_NAME))
}

/// Lets the agent start the program of `target`; returns whether something has changed. A program that the package does
/// not know, by `--program`, has no effect on the name.
pub(crate) fn lead_to(target: &TargetProgram) -> Result<bool, SwitchFailure> {
    let is_neutrons = target.kind != MonitorProgram::Vipwatch;
    if !Path::new(SETUP).exists() || is_suspended() == is_neutrons {
        return Ok(false);
    }
    let is_vipwatch_there = TargetProgram::at(Path::new(AGENT_NAME))
        .is_ok_and(|program| program.kind == MonitorProgram::Vipwatch);
    if is_neutrons && (target.path != Path::new(DIVERTED_NAME) || !is_vipwatch_there) {
        return Ok(false);
    }
    run_setup(if is_neutrons { "suspend" } else { "resume" })?;
    Ok(true)
}

/// Lets the agent start vipwatch again.
pub(crate) fn resume() -> Result<(), SwitchFailure> {
    run_setup("resume")
}

fn run_setup(word: &str) -> Result<(), SwitchFailure> {
    let failed = |reason: String| {
        SwitchFailure::environment(format!("`{SETUP} {word}` has failed: {reason}")).hint(format!(
            "{AGENT_NAME} must lead to the program that the agent starts: `ls -l {AGENT_NAME}*`"
        ))
    };
    let output = Command::new(SETUP).arg(word).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(failed(text.lines().next().map_or_else(|| output.status.to_string(), str::to_owned)))
}
