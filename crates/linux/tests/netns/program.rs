// SPDX-License-Identifier: Apache-2.0
//! Programs in directories that all users can write. These tests need root and a second user.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use vipwatch_linux::program::{CheckedProgram, ProgramError};
use vipwatch_testkit::{Lab, run, script};

/// The kernel itself refuses to follow such a link only where `fs.protected_symlinks` is set.
#[test]
fn a_link_of_another_user_in_a_directory_like_tmp_does_not_choose_the_program() {
    const USER: u32 = 65534;
    let lab = Lab::new();
    let directory = |name: &str, mode| {
        let path = lab.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    std::fs::set_permissions(lab.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (programs, shared) = (directory("programs", 0o755), directory("shared", 0o1777));
    script(&programs.join("hook"), "");
    let mut link = Command::new("setpriv");
    link.args(["--reuid", "65534", "--clear-groups", "ln", "-s"]);
    run(link.arg(&programs).arg(shared.join("theirs")));
    symlink(&programs, shared.join("roots")).unwrap();

    let theirs = shared.join("theirs/hook");
    let refused = CheckedProgram::open(&theirs, &[]);
    assert!(matches!(&refused, Err(ProgramError::ForeignLink { user: USER, .. })), "{refused:?}");
    assert!(CheckedProgram::open(&theirs, &[USER]).is_ok(), "a trusted user");
    assert!(CheckedProgram::open(&shared.join("roots/hook"), &[]).is_ok());
}
