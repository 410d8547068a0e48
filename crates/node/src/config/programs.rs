//! Checks the programs of the hooks in a file: they exist, are executable, and only root, the node's user or the hook's
//! user can change them or their directories.
//!
//! The node would not run another program. So the start, a reload and `vipwatch config check` refuse the file, with
//! the line of the program. A command that only queries the node does not check the programs.

use std::path::Path;

use vipwatch_core::ErrorChain;
use vipwatch_linux::program::CheckedProgram;

use super::document::{SettingError, SettingErrors, Table};
use super::hook_account::HookAccount;

/// The errors of the programs in `text`, the valid content of `file`.
pub(super) fn examine_programs(file: &Path, text: &str) -> Vec<SettingError> {
    let Ok(document) = toml::de::DeTable::parse(text) else { return Vec::new() };
    let mut errors = SettingErrors::new(file, text);
    // The text is valid, so that reading it finds no errors but those of the programs.
    let mut root = Table::new("", document.get_ref(), 0);
    for mut rule in root.tables("notify", &mut errors) {
        examine_hooks(&mut rule, &mut errors);
    }
    if let Some(mut receiver) = root.table("receiver", &mut errors) {
        examine_hooks(&mut receiver, &mut errors);
    }
    errors.list
}

fn examine_hooks(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) {
    for mut hook in table.tables("hook", errors) {
        let program = hook.texts("program", errors).unwrap_or_default();
        let Some((offset, first)) = program.first() else { continue };
        let account = HookAccount::read(&mut hook, errors);
        let own_user = rustix::process::geteuid().as_raw();
        let trusted: Vec<u32> = account.user_id().into_iter().chain([own_user]).collect();
        match CheckedProgram::open(Path::new(first), &trusted) {
            // The hook runner may open the program of another user.
            Err(error) if error.is_not_permitted() && account.user.is_some() => {}
            Err(error) => errors.add(*offset, format!("program {first:?}: {}", ErrorChain(&error))),
            Ok(_) => {}
        }
    }
}
