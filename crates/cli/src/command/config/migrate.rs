// SPDX-License-Identifier: Apache-2.0
//! `vipwatch config migrate`: rewrites a configuration file that uses old names of keys.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use vipwatch_core::ErrorChain;
use vipwatch_node::config::FILE;
use vipwatch_node::config::migrate::{self, MigrateError, Migration};

use crate::failure::{CommandError, ExitStatus};
use crate::output;

pub(super) fn run(file: Option<&Path>, is_check: bool) -> Result<(), CommandError> {
    let path = file.unwrap_or(Path::new(FILE));
    let name = path.display();
    if file.is_none() && !path.exists() {
        output::print(&format!("there is no {name}: nothing to migrate\n"));
        return Ok(());
    }
    let migration = migrate::read(path).map_err(|error| migrate_error(&error))?;
    let count = migration.renames.len();
    if count == 0 {
        output::print(&format!("{name} has no old names: nothing to migrate\n"));
        return Ok(());
    }
    if is_check {
        output::print(&diff(path, &migration));
        let plural = if count == 1 { "" } else { "s" };
        let message = format!("{name} has {count} old name{plural}");
        return Err(CommandError::new(ExitStatus::No, message)
            .hint(format!("run `vipwatch config migrate {name}`")));
    }
    migrate::write(path, &migration).map_err(|error| migrate_error(&error))?;
    output::print(&summary(path, &migration));
    Ok(())
}

/// Each changed name with its line.
fn summary(path: &Path, migration: &Migration) -> String {
    let mut text = String::new();
    for rename in &migration.renames {
        let _ =
            writeln!(text, "{}:{}: {} -> {}", path.display(), rename.line, rename.old, rename.new);
    }
    let _ = writeln!(text, "{} was rewritten; `vipwatch config check` checks it", path.display());
    text
}

/// The changed lines before and after, as a unified diff without context. A migration does not change the
/// number of lines.
fn diff(path: &Path, migration: &Migration) -> String {
    let mut text = format!("--- {0}\n+++ {0}\n", path.display());
    let lines = migration.before.lines().zip(migration.after.lines());
    for (number, (before, after)) in (1..).zip(lines).filter(|(_, (before, after))| before != after)
    {
        let (before, after) = (output::escape_untrusted(before), output::escape_untrusted(after));
        let _ = writeln!(text, "@@ -{number} +{number} @@\n-{before}\n+{after}");
    }
    text
}

fn migrate_error(error: &MigrateError) -> CommandError {
    let code = match error {
        MigrateError::Read { source, .. } | MigrateError::Write { source, .. } => {
            match source.kind() {
                ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
                _ => ExitStatus::Missing,
            }
        }
        MigrateError::NotToml(_) | MigrateError::Conflict(_) => ExitStatus::No,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match error {
        MigrateError::NotToml(_) => failure.hint("correct the syntax first; the file is unchanged"),
        MigrateError::Conflict(_) => {
            failure.hint("remove or merge one of the two by hand; the file is unchanged")
        }
        MigrateError::Write { .. } => {
            failure.hint("run it as root, or as the owner of the file; the file is unchanged")
        }
        MigrateError::Read { .. } => failure,
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_node::Config;

    use super::*;

    const OLD: &str = "# a comment\n[[outlet]]\nannounce = true\n\n[agent]\ninterval = \"1s\"\n";

    fn create(file: &Path, text: &str) {
        std::io::Write::write_all(&mut std::fs::File::create(file).unwrap(), text.as_bytes())
            .unwrap();
    }

    #[test]
    fn an_old_configuration_is_valid_after_a_migration() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("v.toml");
        create(&file, OLD);
        let error = Config::load(Some(&file)).unwrap_err();
        assert_eq!(error.file_with_renamed_keys(), Some(file.as_path()));
        let failure = crate::args::config_error(&error);
        let hint = format!("run `vipwatch config migrate {}`", file.display());
        assert_eq!(failure.hint.as_deref(), Some(hint.as_str()));
        // A check reports the old names and does not write.
        let failure = run(Some(&file), true).unwrap_err();
        assert_eq!(failure.code, ExitStatus::No);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
        run(Some(&file), false).unwrap();
        let config = Config::load(Some(&file)).unwrap();
        assert_eq!((config.rules.len(), config.receiver.is_some()), (1, true));
        let migrated = std::fs::read_to_string(&file).unwrap();
        assert!(migrated.starts_with("# a comment\n[[notify]]\n"), "{migrated}");
        // Without old names, both are successful and change nothing.
        run(Some(&file), true).unwrap();
        run(Some(&file), false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), migrated);
    }

    #[test]
    fn the_changes_are_printed_with_their_lines() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("v.toml");
        create(&file, OLD);
        let migration = migrate::read(&file).unwrap();
        let name = file.display();
        let expected = format!(
            "--- {name}\n+++ {name}\n@@ -2 +2 @@\n-[[outlet]]\n+[[notify]]\n\
             @@ -5 +5 @@\n-[agent]\n+[receiver]\n"
        );
        assert_eq!(diff(&file, &migration), expected);
        let summary = summary(&file, &migration);
        assert!(summary.starts_with(&format!("{name}:2: outlet -> notify\n")), "{summary}");
    }

    #[test]
    fn a_file_that_is_missing_or_not_toml_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("v.toml");
        assert_eq!(run(Some(&file), false).unwrap_err().code, ExitStatus::Missing);
        create(&file, "[agent\n");
        let failure = run(Some(&file), false).unwrap_err();
        assert_eq!(failure.code, ExitStatus::No);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[agent\n");
    }
}
