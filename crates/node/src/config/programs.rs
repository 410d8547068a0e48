//! Checks the programs of the hooks in a file: they exist, are executable, and only root or the node's user can
//! change them.
//!
//! The node would not run another program. So the start, a reload and `vipwatch config check` refuse the file, with
//! the line of the program. A command that only queries the node does not check the programs.

use std::path::Path;

use vipwatch_core::ErrorChain;

use super::document::{SettingError, SettingErrors, Table};
use crate::notify::hook::examine;

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
        if let Err(error) = examine(Path::new(first)) {
            errors.add(*offset, format!("program {first:?}: {}", ErrorChain(&error)));
        }
    }
}
