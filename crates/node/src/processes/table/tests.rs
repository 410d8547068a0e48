// SPDX-License-Identifier: Apache-2.0
//! Tests of the table with processes that this test starts.

use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use vipwatch_core::keepalived_process::{KeepalivedPresence, VrrpChild};
use vipwatch_linux::clock;

use super::*;
use crate::discovery::{InstanceConfig, PendingEdit, example};
use crate::processes::keepalived_facts;

/// A table for processes without rights.
fn table() -> KeepalivedTable {
    KeepalivedTable { can_move: |_| Ok(true), ..KeepalivedTable::new(None, false).unwrap() }
}

#[test]
fn a_keyword_and_a_version_across_two_parts_of_a_file_are_found() {
    let read = |words: &[&[u8]]| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for word in words {
            file.write_all(&vec![b'x'; (64 << 10) - 5]).unwrap();
            file.write_all(word).unwrap();
        }
        Executable::read(file.path()).unwrap()
    };
    let version = b"Keepalived v2.2.7 (";
    let found = read(&[KEYWORD, version]);
    assert!(found.is_keepalived);
    assert_eq!(found.version.unwrap().to_string(), "2.2.7");
    assert_eq!(read(&[version, KEYWORD]), found);
    assert_eq!(read(&[KEYWORD]), Executable { is_keepalived: true, version: None });
    assert_eq!(read(&[b"virtual_server"]), Executable::default());
}

#[test]
fn a_program_with_the_name_of_keepalived_is_not_keepalived() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join(PROGRAM);
    fs::copy("/bin/sleep", &copy).unwrap();
    let mut child = Command::new(&copy).arg("60").spawn().unwrap();
    let mut table = table();
    let kind = table.program_of(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(kind, ProgramKind::Other);
    assert_eq!(table.program_of(std::process::id()), ProgramKind::Other);
}

#[test]
fn a_keepalived_that_cannot_change_addresses_does_not_count() {
    let family = ShellFamily::start("read line <$pipe");
    let mut table = KeepalivedTable { can_move: |_| Ok(false), ..table() };
    assert_eq!(table.program_of(family.parent.id()), ProgramKind::Other);
}

/// Processes with the executable and the command line of a keepalived: a shell that runs its "configuration". They wait
/// for a line from a pipe.
struct ShellFamily {
    directory: tempfile::TempDir,
    parent: Child,
}

impl ShellFamily {
    /// `script` can read from the pipe `$pipe`.
    fn start(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(PROGRAM);
        fs::copy("/bin/bash", &program).unwrap();
        fs::OpenOptions::new().append(true).open(&program).unwrap().write_all(KEYWORD).unwrap();
        let pipe = directory.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut conf = fs::File::create(directory.path().join("conf")).unwrap();
        conf.write_all(script.as_bytes()).unwrap();
        let parent = Command::new(&program)
            .arg("-f")
            .arg(directory.path().join("conf"))
            .env("pipe", &pipe)
            .spawn()
            .unwrap();
        Self { directory, parent }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("conf")
    }

    /// Scans until the table has so many of these processes.
    fn scan_until(&self, table: &mut KeepalivedTable, count: usize) {
        let end = Instant::now() + Duration::from_secs(30);
        let program = self.directory.path().join(PROGRAM);
        let is_own = |id: &&ProcessId| processes::executable(id.pid).is_ok_and(|it| it == program);
        loop {
            table.scan(Instant::now());
            if table.members.keys().filter(is_own).count() == count {
                return;
            }
            assert!(Instant::now() < end, "there are not {count} processes");
            std::thread::yield_now();
        }
    }

    fn keepaliveds<'a>(&self, table: &'a KeepalivedTable) -> Vec<&'a Arc<KeepalivedProcess>> {
        table.keepaliveds.values().filter(|process| process.file == self.file()).collect()
    }

    fn starts(&self, table: &KeepalivedTable) -> usize {
        table.starts.get(&self.file()).map_or(0, |starts| starts.parents.len())
    }
}

impl Drop for ShellFamily {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
        // The children that read from the pipe end.
        let pipe = self.directory.path().join("pipe");
        drop(fs::OpenOptions::new().read(true).write(true).open(pipe).map(|mut pipe| {
            let _ = pipe.write_all(b"\n\n\n");
        }));
    }
}

#[test]
fn an_orphan_of_a_killed_parent_is_no_start_and_its_state_is_new() {
    let mut table = KeepalivedTable { since: Some(Stamp::now()), ..table() };
    table.scan(Instant::now());
    let mut family = ShellFamily::start("( read line < \"$pipe\"; : ) & wait");
    family.scan_until(&mut table, 2);
    let [before] = *family.keepaliveds(&table) else { panic!("one keepalived") };
    let VrrpChild::Present { pid: child, .. } = before.vrrp_child else { panic!("a VRRP child") };
    let killed_at = clock::now();
    family.parent.kill().unwrap();
    family.parent.wait().unwrap();
    family.scan_until(&mut table, 1);
    let [orphan] = *family.keepaliveds(&table) else { panic!("one keepalived") };
    assert_eq!((orphan.id.pid, orphan.vrrp_child), (child, VrrpChild::Missing));
    assert!(orphan.state_since.moment >= killed_at, "it has no child since the end of its parent");
    assert_eq!(family.starts(&table), 1);
}

#[test]
fn a_child_of_the_vrrp_child_is_no_start_of_another_keepalived() {
    let mut table = KeepalivedTable { since: Some(Stamp::now()), ..table() };
    table.scan(Instant::now());
    let family = ShellFamily::start("( ( read line < \"$pipe\"; : ); : ) & wait");
    family.scan_until(&mut table, 3);
    let [keepalived] = *family.keepaliveds(&table) else { panic!("one keepalived") };
    assert_eq!((keepalived.id.pid, keepalived.children.len()), (family.parent.id(), 1));
    assert_eq!(family.starts(&table), 1);
}

#[test]
fn an_edit_that_discovery_has_found_is_pending_whatever_the_times_of_the_file_are() {
    let family = ShellFamily::start("read line <$pipe");
    let mut table = table();
    family.scan_until(&mut table, 1);
    let instance = InstanceConfig { file: family.file().into(), netns: None, ..example() };
    let outdated = |pending| {
        let facts = keepalived_facts(&table.view(), &instance, pending).unwrap().facts;
        match facts.presence {
            KeepalivedPresence::Running(running) => running.outdated_since,
            other => panic!("{other:?}"),
        }
    };
    let loaded_at = SystemTime::UNIX_EPOCH;
    let since = outdated(Some(PendingEdit::NotLoaded { loaded_at, is_refused: false }));
    assert_eq!(since.as_deref(), Some("1970-01-01T00:00:00Z"));
    for pending in [None, Some(PendingEdit::Changing)] {
        assert_eq!(outdated(pending), None, "{pending:?}");
    }
}

#[test]
fn the_program_of_a_process_that_has_vanished_is_no_keepalived_and_its_version_is_unknown() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut table = table();
    assert_eq!(table.program_of(child.id()), ProgramKind::Other);
    assert_eq!(table.version_of(child.id()), None);
    assert!(!table.examine(child.id()) && table.members.is_empty());
}
