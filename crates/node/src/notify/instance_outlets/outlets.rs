// SPDX-License-Identifier: Apache-2.0
//! The state file and the agent of one instance.

use std::path::Path;
use std::sync::Arc;

use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::{Conclusion, ErrorChain, Jitter, NeutronState, Role};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_outlets::agent::{AgentOutcome, AgentOutlet, AgentSettings};
use vipwatch_outlets::state_file::{StateFile, WriteOutcome};

use super::spec::InstanceTargets;
use crate::discovery::InstanceConfig;
use crate::notify::notification::DeliveryReport;
use crate::transition::Transition;

/// The name of the state file in reports.
const STATE_FILE: &str = "state file";

/// The outlets of one instance.
#[derive(Debug)]
pub(super) struct Outlets {
    pub(super) spec: InstanceTargets,
    pub(super) stages: Arc<[Stage]>,
    pub(super) file: Option<StateFile>,
    pub(super) agent: Option<Box<AgentOutlet>>,
    /// The state that the agent has acknowledged, and its last error.
    pub(super) agent_knowledge: AgentKnowledge,
    /// The last transition, which the state file and the agent receive; `None` before the first one.
    pub(super) last: Option<Arc<Transition>>,
    /// Whether these outlets replace others with the same announcements: `last` is not announced again.
    pub(super) keeps_announcement: bool,
}

impl Outlets {
    pub(super) fn new(
        spec: InstanceTargets,
        instance: &InstanceConfig,
        last: Option<Arc<Transition>>,
    ) -> Self {
        let seed = instance
            .id
            .as_str()
            .bytes()
            .fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let file = spec.state_dir.clone().map(|directory| {
            let directory = directory.into_path_buf();
            // An error here shows again when the state file is written.
            let _ = std::fs::create_dir_all(&directory);
            StateFile::new(directory, Jitter::new(seed))
        });
        let agent = spec.shared.agent.as_ref().map(|rule| {
            let settings = AgentSettings {
                instance: instance.id.clone(),
                path: rule.socket.clone(),
                keepalived_conf: instance.file.to_path_buf(),
                trust: rule.trust,
                words: if rule.says_master { state_up_to_release_16 } else { NeutronState::as_str },
            };
            let mut agent = AgentOutlet::new(settings, Jitter::new(seed));
            // The node before this one may have sent a state to the agent a moment ago.
            agent.delivery().predecessor_reported(clock::now());
            Box::new(agent)
        });
        let stages = spec.stages().into();
        Self {
            spec,
            stages,
            file,
            agent,
            agent_knowledge: AgentKnowledge::default(),
            last,
            keeps_announcement: false,
        }
    }

    /// Whether the instance is primary, and `instance`, its new configuration, has an address that the announcement of
    /// the last transition did not include.
    pub(super) fn has_to_announce(&self, instance: &InstanceConfig) -> bool {
        let is_announced = self.spec.shared.announce.is_some();
        self.last.as_ref().is_some_and(|last| {
            let before = &last.instance;
            let is_new = |address| !before.vrrp.addresses.contains(address);
            is_announced
                && last.to == Role::Primary
                && (before.netns != instance.netns || instance.vrrp.addresses.iter().any(is_new))
        })
    }

    /// Whether the state file and the agent have the last state.
    pub(super) fn is_settled(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.due().is_none())
            && self.agent.as_deref().is_none_or(AgentOutlet::is_settled)
    }
}

/// The name of a state in Neutron's protocol up to release 16.
fn state_up_to_release_16(state: NeutronState) -> &'static str {
    match state {
        NeutronState::Primary => "master",
        NeutronState::Backup => state.as_str(),
    }
}

/// The report about a failed write of the state file; `None` if it was written.
pub(super) fn file_report(
    written: WriteOutcome,
    transition: &Transition,
) -> Option<DeliveryReport> {
    let mut report = delivered(transition, Stage::File, STATE_FILE);
    report.is_final = false;
    report.conclusion = None;
    report.outcome = match written {
        WriteOutcome::Written => return None,
        WriteOutcome::Failed(error) => Err(ErrorChain(&error).to_string()),
        WriteOutcome::StillFailing => Err(String::new()),
    };
    Some(report)
}

pub(super) fn agent_report(
    outcome: AgentOutcome,
    path: &Path,
    last: &Transition,
    agent_knowledge: &mut AgentKnowledge,
) -> DeliveryReport {
    let mut report = delivered(last, Stage::Agent, &path.display().to_string());
    match outcome {
        AgentOutcome::Acknowledged(role) => {
            // The role may have changed since the acknowledged request was sent.
            report.is_final = last.to.neutron_state() == Some(role);
            *agent_knowledge = AgentKnowledge { acknowledged: Some(role), failing: None };
        }
        AgentOutcome::Failed(_, error) => {
            let why = ErrorChain(&error).to_string();
            agent_knowledge.failing = Some(why.clone());
            report.outcome = Err(why);
            report.is_final = false;
        }
    }
    report.conclusion = report.is_final.then_some(Conclusion::Delivered);
    report
}

/// The report that the state file was written.
pub(super) fn file_written(transition: &Transition) -> DeliveryReport {
    delivered(transition, Stage::File, STATE_FILE)
}

fn delivered(transition: &Transition, stage: Stage, target: &str) -> DeliveryReport {
    let Transition { seq, instance, .. } = transition;
    DeliveryReport::new(&instance.id, *seq, transition.measured_from(), stage, target)
}
