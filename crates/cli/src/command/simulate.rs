// SPDX-License-Identifier: Apache-2.0
//! `vipwatch simulate-agent`: simulates Neutron's L3 agent, to test a monitor without OpenStack.

use std::path::Path;
use std::sync::Arc;

use vipwatch_linux::account::{AccountKind, id};
use vipwatch_node::config::ReceiverConfig;
use vipwatch_receiver::simulate::{self, Behaviour};

use super::receiver::{receiver_error, unknown_account};
use crate::args::SimulateArgs;
use crate::failure::CommandError;
use crate::output;

/// The directory of the agent's socket, if no option names another.
const STATE_PATH: &str = "/var/lib/neutron";

/// Runs until the process is stopped. Prints every report.
pub(crate) fn run(options: &SimulateArgs) -> Result<(), CommandError> {
    let mut settings =
        ReceiverConfig::new(options.state_path.as_deref().unwrap_or(Path::new(STATE_PATH)));
    if let Some(socket) = &options.socket {
        settings.socket.clone_from(socket);
    }
    let find = |name: &String, kind: AccountKind| {
        id(name, kind).ok_or_else(|| unknown_account(name, kind))
    };
    if let Some(owner) = &options.owner {
        settings.options.user = Some(find(owner, AccountKind::User)?);
    }
    if let Some(group) = &options.group {
        settings.options.group = Some(find(group, AccountKind::Group)?);
    }
    settings.options.mode = options.permissions.unwrap_or(settings.options.mode);
    serve(&settings, &options.mode)
}

/// Serves the socket of `settings` as the agent with this behaviour does.
pub(crate) fn serve(settings: &ReceiverConfig, mode: &str) -> Result<(), CommandError> {
    let behaviour = Behaviour::ALL.iter().find(|(name, _)| *name == mode);
    let behaviour = behaviour.map_or(Behaviour::Threaded, |(_, behaviour)| *behaviour);
    let print_report: Arc<simulate::RequestCallback> = Arc::new(|bytes: &[u8], _| {
        let request = String::from_utf8_lossy(bytes);
        let header = |name: &str| {
            let line = request.lines().find(|line| line.to_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let (router, word) = (header("x-neutron-router-id"), header("x-neutron-state"));
        let (router, word) = (router.unwrap_or_default(), word.unwrap_or_default());
        output::print(&format!("{}\n", output::escape_untrusted(&format!("{router} {word}"))));
    });
    crate::failure::warn(&format!("{mode} agent at {}", settings.socket.display()));
    let result = simulate::run(&settings.socket, settings.options, behaviour, &print_report);
    result.map_err(|error| receiver_error(&error))
}
