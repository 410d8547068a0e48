// SPDX-License-Identifier: Apache-2.0
//! Sockets in a directory of another user: their files are replaced while this process sets mode and owner.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;
use vipwatch_linux::listen::{ListenError, SocketOptions, listen_at};
use vipwatch_testkit::wait_for;

const OTHER_USER: u32 = 65534;

const OPTIONS: SocketOptions =
    SocketOptions { mode: 0o666, user: Some(OTHER_USER), group: Some(OTHER_USER), backlog: 8 };

/// A directory of the other user, and beside it a file that only this user may use.
struct ForeignDirectory {
    root: TempDir,
}

impl ForeignDirectory {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let directory = Self { root };
        std::fs::create_dir(directory.path("d")).unwrap();
        chown(directory.path("d"), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
        std::fs::File::create(directory.path("victim")).unwrap();
        std::fs::set_permissions(directory.path("victim"), PermissionsExt::from_mode(0o600))
            .unwrap();
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Runs `attack` again and again as the other user, and beside it `round`, `rounds` times and until the attack has
    /// succeeded 50 times.
    fn during(
        &self,
        rounds: usize,
        attack: impl Fn(&Path) -> bool + Sync,
        mut round: impl FnMut(&Path),
    ) {
        let directory = self.path("d");
        std::thread::scope(|scope| {
            let successes = Arc::new(AtomicUsize::new(0));
            let counter = Arc::downgrade(&successes);
            scope.spawn(|| {
                let uid = rustix::process::Uid::from_raw(OTHER_USER);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                // Until the other thread has dropped the counter.
                let counter = counter;
                while let Some(counter) = counter.upgrade() {
                    counter.fetch_add(usize::from(attack(&directory)), Ordering::Relaxed);
                }
            });
            wait_for("the attack to succeed 50 times", || {
                (0..rounds).for_each(|_| round(&directory));
                (successes.load(Ordering::Relaxed) >= 50).then_some(())
            });
        });
        let victim = self.path("victim").metadata().unwrap();
        assert_eq!((victim.uid(), victim.gid(), victim.mode() & 0o777), (0, 0, 0o600));
    }
}

#[test]
fn a_link_at_the_name_of_a_new_socket_changes_no_other_file() {
    let directory = ForeignDirectory::new();
    let victim = directory.path("victim");
    // Replaces a new name by a link.
    let attack = |directory: &Path| {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut staged = entries.filter(|path| {
            path.file_name().unwrap().to_str().unwrap().starts_with(".new-") && !path.is_symlink()
        });
        staged.any(|staged| {
            std::fs::rename(&staged, directory.join("moved")).is_ok()
                && symlink(&victim, &staged).is_ok()
        })
    };
    directory.during(2_000, attack, |directory| {
        // The other user can prevent a socket in its directory.
        let socket = directory.join("socket");
        match listen_at(&socket, OPTIONS) {
            Ok(bound) => bound.file.remove(),
            Err(_) => drop(std::fs::remove_file(&socket)),
        }
    });
}

#[test]
fn a_link_at_a_socket_changes_no_other_file_when_its_mode_is_set_again() {
    let directory = ForeignDirectory::new();
    let socket = directory.path("d/socket");
    let bound = listen_at(&socket, OPTIONS).unwrap();
    symlink(directory.path("victim"), directory.path("d/link")).unwrap();
    let attack = |directory: &Path| {
        let (socket, link) = (directory.join("socket"), directory.join("link"));
        renameat_with(CWD, socket, CWD, link, RenameFlags::EXCHANGE).is_ok()
    };
    let mut is_refused = false;
    directory.during(20_000, attack, |_| match bound.file.set_permissions(OPTIONS) {
        Ok(()) => {}
        Err(ListenError::Lost(_)) => is_refused = true,
        Err(error) => panic!("{error}"),
    });
    assert!(is_refused, "a socket that was replaced is reported");
}
