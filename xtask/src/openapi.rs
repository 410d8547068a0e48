// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask openapi`: writes the OpenAPI document of the API, which is generated from its types.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build};

pub const HELP: &str = "\
Write docs/reference/openapi.json, the OpenAPI document of the HTTP API. It is generated from crates/api.

Usage: cargo xtask openapi

`cargo xtask check` fails if the file differs from the types. `cargo xtask test netns schemathesis` compares it with a
running node.
";

pub fn run(args: &[&str]) -> TaskResult {
    Arguments::new(args).finish()?;
    let text = generate()?;
    std::io::Write::write_all(&mut std::fs::File::create(path())?, &text)?;
    Ok(())
}

/// Fails if the committed document differs from the types.
pub fn check() -> TaskResult {
    if std::fs::read(path()).unwrap_or_default() == generate()? {
        return Ok(());
    }
    Err(TaskError(
        "docs/reference/openapi.json differs from crates/api\n  hint: cargo xtask openapi"
            .to_owned(),
    ))
}

pub fn path() -> PathBuf {
    build::root().join("docs/reference/openapi.json")
}

fn generate() -> Result<Vec<u8>, TaskError> {
    let program = build::openapi()?;
    let output = Command::new(program).stderr(Stdio::inherit()).output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(TaskError("cannot build the OpenAPI document".to_owned()))
}
