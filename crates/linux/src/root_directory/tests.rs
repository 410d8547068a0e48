// SPDX-License-Identifier: Apache-2.0
//! Tests of paths that try to leave a root directory.

use std::io::Write;
use std::os::unix::fs::symlink;

use super::*;

/// A directory that is the root of a container, beside a secret of the host.
struct Tree {
    directory: tempfile::TempDir,
    root: RootDirectory,
}

impl Tree {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        write("secret", "secret");
        write("root/etc/k.conf", "inside");
        write("root/secret", "own secret");
        let inside = directory.path().join("root");
        let link = |target: &str, name: &str| symlink(target, inside.join(name)).unwrap();
        link("/etc/k.conf", "absolute");
        link("etc", "directory");
        link("../../../../../../secret", "upwards");
        link("/proc/self/root", "magic");
        link("loop", "loop");
        let root = RootDirectory::new(open_directory(&inside).unwrap(), "/proc/7/root".into());
        Self { directory, root }
    }

    fn read(&self, path: &str) -> io::Result<String> {
        Ok(self.root.read_text_file(Path::new(path), 100)?.text)
    }

    fn walk(&self, path: &str) -> io::Result<String> {
        let file = Walk::new(&self.root, Path::new(path)).open(OFlags::RDONLY)?;
        Ok(crate::file::text_file(file, 100)?.text)
    }
}

#[test]
fn no_link_leads_out_of_the_root_directory_of_a_process() {
    let tree = Tree::new();
    let expected = [
        ("/etc/k.conf", "inside"),
        ("etc/../etc/./k.conf", "inside"),
        ("/absolute", "inside"),
        ("/directory/k.conf", "inside"),
        // Above the root directory there is only itself, so that the secret of the host cannot be reached.
        ("/upwards", "own secret"),
        ("/etc/../../../secret", "own secret"),
    ];
    for (path, text) in expected {
        assert_eq!(tree.read(path).unwrap(), text, "{path}");
        assert_eq!(tree.walk(path).unwrap(), text, "{path}, without openat2");
    }
    let outside = tree.directory.path().join("secret");
    for path in [outside.to_str().unwrap(), "/magic/etc/passwd", "/loop", "/etc/k.conf/x"] {
        assert!(tree.read(path).is_err(), "{path}");
        assert!(tree.walk(path).is_err(), "{path}, without openat2");
    }
}

#[test]
fn files_of_the_kernel_and_pipes_are_errors_and_do_not_block() {
    let root = RootDirectory::own().unwrap();
    let read = |path: &Path| root.read_text_file(path, 1 << 20);
    assert!(read(Path::new("/proc/self/status")).is_err());
    assert!(root.names(Path::new("/proc"), 1 << 20).is_err());
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    assert!(read(&pipe).is_err());
}

#[test]
fn a_directory_with_more_names_than_the_limit_is_not_listed() {
    let tree = Tree::new();
    assert_eq!(tree.root.names(Path::new("/"), 6).unwrap(), None);
    assert_eq!(tree.root.names(Path::new("/"), 7).unwrap().unwrap().len(), 7);
    assert_eq!(
        tree.root.shown(Path::new("/etc/k.conf")),
        Path::new("/proc/7/root").join("etc/k.conf")
    );
}

#[test]
fn the_root_directory_of_a_process_that_has_ended_is_not_opened() {
    let id = process_table::stat(std::process::id()).unwrap().id;
    assert!(RootDirectory::of_process(id).is_ok());
    let other = ProcessId { started: id.started + 1, ..id };
    assert!(RootDirectory::of_process(other).is_err(), "another process with the same pid");
}
