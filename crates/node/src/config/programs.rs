// SPDX-License-Identifier: Apache-2.0
//! Checks the programs of the hooks in a file: they exist, are executable, and only root and the user of the program can
//! change them or their directories ([`trusted_owners`](super::ResolvedAccount::trusted_owners)).
//!
//! The runner would not run another program. So `vipwatch config check`, and the start and a reload of a node that starts
//! its own runner, refuse the file, with the line of the program. A command that only queries the node does not check the
//! programs.

use std::path::Path;

use vipwatch_core::ErrorChain;
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::program::CheckedProgram;

use super::document::{SettingError, SettingErrors, Table};
use super::hook_account::HookAccount;

/// Whether the programs of the hooks are checked when the file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramCheck {
    /// They are not: a hook runner that is a service of its own checks each program when it runs. The unit of the node
    /// hides files from it that the runner sees, such as those below `/root` and `/tmp`.
    AtEachRun,
    /// They are, for a node with this identity.
    Now(Identity),
}

impl ProgramCheck {
    /// The check by a node, or a receiver, that has the runner on this socket run its hooks (`None`: it starts a runner).
    pub fn in_node(hook_runner: Option<&Path>) -> Self {
        hook_runner.map_or_else(|| Self::Now(Identity::current()), |_| Self::AtEachRun)
    }
}

/// The errors of the programs in `text`, the valid content of `file`.
pub(super) fn examine_programs(file: &Path, text: &str, node: Identity) -> Vec<SettingError> {
    let Ok(document) = toml::de::DeTable::parse(text) else { return Vec::new() };
    let mut errors = SettingErrors::new(file, text);
    // The text is valid, so that reading it finds no errors but those of the programs.
    let mut root = Table::new("", document.get_ref(), 0);
    for mut rule in root.tables("notify", &mut errors) {
        examine_hooks(&mut rule, node, &mut errors);
    }
    if let Some(mut receiver) = root.table("receiver", &mut errors) {
        examine_hooks(&mut receiver, node, &mut errors);
    }
    errors.list
}

fn examine_hooks(table: &mut Table<'_, '_>, node: Identity, errors: &mut SettingErrors<'_>) {
    for mut hook in table.tables("hook", errors) {
        let program = hook.texts("program", errors).unwrap_or_default();
        let Some((offset, first)) = program.first() else { continue };
        let account = HookAccount::read(&mut hook, errors);
        // An unknown account is an error of its own.
        let Ok(resolved) = account.resolve(node) else { continue };
        match CheckedProgram::open(Path::new(first), resolved.trusted_owners()) {
            // The hook runner may open the program of another user.
            Err(error) if error.is_not_permitted() && account.user.is_some() => {}
            Err(error) => errors.add(*offset, format!("program {first:?}: {}", ErrorChain(&error))),
            Ok(_) => {}
        }
    }
}
