// SPDX-License-Identifier: Apache-2.0
//! Programs that are exchanged, exposed or missing, and the descriptors that a program inherits.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use vipwatch_testkit::script;

use super::*;

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn open(path: &Path) -> Result<CheckedProgram, ProgramError> {
    CheckedProgram::open(path, &[own_user()])
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A directory that only this user can change.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    set_mode(directory.path(), 0o755);
    directory
}

fn output(program: &CheckedProgram) -> String {
    let mut command = program.command();
    program.prepare(&mut command, None);
    let output = command.arg("word").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_checked_file_is_started_although_another_file_has_replaced_it() {
    let directory = directory();
    let path = directory.path().join("program");
    script(&path, "echo checked $1\ncat $0 | wc -l");
    let program = open(&path).unwrap();
    let other = directory.path().join("other");
    script(&other, "echo exchanged $1");
    std::fs::rename(other, &path).unwrap();
    assert_eq!(output(&program), "checked word\n3\n", "$0 leads to the checked file too");
    let program = open(&path).unwrap();
    assert_eq!(output(&program), "exchanged word\n");
}

#[test]
fn a_binary_gets_its_path_as_name_and_no_descriptor() {
    let directory = directory();
    // A link to a binary with another name.
    let path = directory.path().join("name");
    symlink("/bin/sh", &path).unwrap();
    let program = open(&path).unwrap();
    assert!(!program.is_script);
    let mut command = program.command();
    program.prepare(&mut command, None);
    let output = command.args(["-c", "echo $0; readlink /proc/$$/fd/*"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), path.to_str());
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    assert!(lines.all(|file| Path::new(file) != shell), "{text}");
}

#[test]
fn a_script_inherits_its_own_descriptor_and_no_other() {
    let directory = directory();
    let path = directory.path().join("script");
    script(&path, "for fd in /proc/$$/fd/*; do readlink $fd; done");
    let other = File::open("/etc/passwd").unwrap();
    let text = output(&open(&path).unwrap());
    drop(other);
    assert!(text.lines().any(|file| Path::new(file) == path), "{text}");
    assert!(!text.contains("/etc/passwd"), "{text}");
}

#[test]
fn a_program_that_other_users_can_change_or_exchange_is_refused() {
    let directory = directory();
    let inner = directory.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    set_mode(&inner, 0o755);
    let path = inner.join("program");
    script(&path, "");
    assert!(open(&path).is_ok());
    set_mode(&path, 0o775);
    assert!(matches!(open(&path), Err(ProgramError::Exposed)));
    set_mode(&path, 0o644);
    assert!(matches!(open(&path), Err(ProgramError::NotExecutable)));
    set_mode(&path, 0o755);
    set_mode(&inner, 0o777);
    assert!(
        matches!(open(&path), Err(ProgramError::ExposedDirectory(exposed)) if exposed == inner)
    );
    // A link in a safe directory leads through the exposed one.
    let link = directory.path().join("link");
    symlink("inner/program", &link).unwrap();
    assert!(matches!(open(&link), Err(ProgramError::ExposedDirectory(_))));
    set_mode(&inner, 0o1777);
    assert!(open(&link).is_ok(), "the sticky bit protects files of other users");
}

#[test]
fn a_directory_a_loop_and_a_missing_file_are_refused() {
    let directory = directory();
    assert!(matches!(open(directory.path()), Err(ProgramError::NotAFile)));
    let link = directory.path().join("loop");
    symlink("loop", &link).unwrap();
    for path in [&link, &directory.path().join("missing")] {
        assert!(
            matches!(open(path), Err(ProgramError::Open { path: shown, .. }) if shown == *path)
        );
    }
    assert!(matches!(open(Path::new("/dev/null")), Err(ProgramError::NotAFile)));
}
