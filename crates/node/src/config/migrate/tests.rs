// SPDX-License-Identifier: Apache-2.0
//! Tests of renamed keys in every notation of TOML, and of the replaced file.

use super::super::Config;
use super::*;

const FILE: &str = "/etc/v.toml";

fn migrated(text: &str) -> Migration {
    migrate(Path::new(FILE), text.to_owned()).unwrap()
}

fn create(file: &Path, bytes: &[u8]) {
    File::create(file).unwrap().write_all(bytes).unwrap();
}

#[test]
fn every_old_name_is_replaced_and_the_rest_of_the_text_stays() {
    let before = "# [agent] in a comment stays\n\
                  [node]\n  listen   =  'each' # \"each\"\n\
                  [history]\nkeep_changes = 5\nkeep_days=3\n\
                  [[outlet]] # a rule\norigin = \"neutron\"\nagent = { socket = \"/run/a\" }\n\
                  [[ outlet . hook ]]\nprogram = [\"/bin/agent\", 'outlet', \"each\"]\n\r\n\
                  [\"agent\"]\nallow = [\n  'root', # agent\n]\n\
                  [agent.upstream]\nurl = \"http://127.0.0.1/agent\"\n[[agent.hook]]\nprogram = '/bin/true'";
    let after = "# [agent] in a comment stays\n\
                 [node]\n  listen   =  \"per-netns\" # \"each\"\n\
                 [history]\nkeep_transitions = 5\nkeep_days=3\n\
                 [[notify]] # a rule\norigin = \"neutron\"\nagent = { socket = \"/run/a\" }\n\
                 [[ notify . hook ]]\nprogram = [\"/bin/agent\", 'outlet', \"each\"]\n\r\n\
                 [receiver]\nallow = [\n  'root', # agent\n]\n\
                 [receiver.upstream]\nurl = \"http://127.0.0.1/agent\"\n[[receiver.hook]]\nprogram = '/bin/true'";
    let migration = migrated(before);
    assert_eq!(migration.after, after);
    let lines: Vec<u32> = migration.renames.iter().map(|rename| rename.line).collect();
    assert_eq!(lines, [3, 5, 7, 10, 13, 17, 19]);
    let first = Rename { line: 3, old: "'each'".to_owned(), new: "\"per-netns\"".to_owned() };
    assert_eq!(migration.renames[0], first);
}

#[test]
fn inline_tables_and_dotted_keys_are_migrated() {
    for (before, after) in [
        ("agent = { allow = [\"root\"] }\n", "receiver = { allow = [\"root\"] }\n"),
        (
            "agent.interval = \"1s\"\nagent.mode = \"600\"\n",
            "receiver.interval = \"1s\"\nreceiver.mode = \"600\"\n",
        ),
        ("node.listen = \"each\"\n", "node.listen = \"per-netns\"\n"),
        (
            "node = { log = \"text\", listen = \"each\" }\n",
            "node = { log = \"text\", listen = \"per-netns\" }\n",
        ),
        ("history = { keep_changes = 1 }\n", "history = { keep_transitions = 1 }\n"),
        (
            "[[outlet]]\n[[outlet.hook]]\nprogram = \"/a\"\ndeadline = \"1s\"\n\
             [agent]\nhook = { program = \"/a\", deadline = \"2s\" }\n",
            "[[notify]]\n[[notify.hook]]\nprogram = \"/a\"\ntimeout = \"1s\"\n\
             [receiver]\nhook = { program = \"/a\", timeout = \"2s\" }\n",
        ),
        (
            "outlet = [{ announce = true }, { agent = \"/run/a\" }]\nagent = {}\n",
            "notify = [{ announce = true }, { agent = \"/run/a\" }]\nreceiver = {}\n",
        ),
    ] {
        let migration = migrated(before);
        assert_eq!(migration.after, after);
        Config::parse(Path::new(FILE), after).unwrap();
    }
}

#[test]
fn a_file_without_old_names_is_not_changed() {
    let empty = migrated("");
    assert_eq!((empty.after.as_str(), empty.renames.len()), ("", 0));
    for text in
        [super::super::EXAMPLE, "[[notify]]\nagent = \"/run/outlet\"\n[node]\nlog = \"each\"\n"]
    {
        let migration = migrated(text);
        assert_eq!((migration.after.as_str(), migration.renames.len()), (text, 0));
    }
}

#[test]
fn the_reader_names_the_new_name_of_every_key_that_a_migration_replaces() {
    let text = "[node]\nlisten = \"each\"\nhooks_at_once = 0\n[history]\nkeep_changes = 7\n\
                [agent]\nintervall = \"1s\"\n[[outlet]]\nannounce = true\n";
    let errors = Config::parse(Path::new(FILE), text).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "/etc/v.toml:2: listen: \"each\" is called \"per-netns\" now",
            "/etc/v.toml:3: hooks_at_once is a number from 1 to 256",
            "/etc/v.toml:5: keep_changes is called keep_transitions now",
            "/etc/v.toml:6: [agent] is called [receiver] now",
            "/etc/v.toml:7: there is no key intervall in receiver; did you mean interval?",
            "/etc/v.toml:8: [[outlet]] is called [[notify]] now",
        ]
    );
    let renamed = errors.iter().filter(|error| error.is_renamed_key).map(|error| error.line);
    assert_eq!(renamed.collect::<Vec<_>>(), [2, 5, 6, 8]);
    let after = migrated(text).after;
    let errors = Config::parse(Path::new(FILE), &after).unwrap_err();
    assert!(errors.iter().all(|error| !error.is_renamed_key), "{errors:?}");
}

#[test]
fn a_file_that_is_not_toml_is_refused() {
    let error = migrate(Path::new(FILE), "[agent]\nsocket = \n".to_owned()).unwrap_err();
    assert!(matches!(&error, MigrateError::NotToml(_)), "{error}");
    assert!(error.to_string().starts_with("/etc/v.toml:2: "), "{error}");
}

#[test]
fn a_file_with_an_old_and_the_new_table_is_refused_and_rules_of_both_names_are_merged() {
    let text = "[receiver]\nmode = \"600\"\n[agent]\nmode = \"640\"\n";
    let error = migrate(Path::new(FILE), text.to_owned()).unwrap_err();
    assert!(matches!(&error, MigrateError::Conflict(error) if error.line == 3), "{error}");
    let rules = migrated("[[notify]]\nannounce = true\n[[outlet]]\nagent = \"/run/a\"\n");
    let config = Config::parse(Path::new(FILE), &rules.after).unwrap();
    assert_eq!(config.rules.len(), 2);
}

#[test]
fn a_replaced_file_keeps_its_mode_its_owner_and_the_link_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("v.toml"), directory.path().join("link"));
    create(&file, b"[agent]\n");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    // Only root can change the owner; otherwise the file is this user's.
    let _ = std::os::unix::fs::chown(&file, Some(4711), Some(4712));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = file.metadata().unwrap();
    write(&link, &read(&link).unwrap()).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[receiver]\n");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        2,
        "no temporary file is left"
    );
}

#[test]
fn a_file_that_is_not_utf_8_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v.toml");
    create(&file, b"[agent]\n# \xff\n");
    assert!(matches!(read(&file), Err(MigrateError::Read { .. })));
    assert!(matches!(read(directory.path()), Err(MigrateError::Read { .. })));
}
