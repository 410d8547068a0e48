// SPDX-License-Identifier: Apache-2.0
//! Any text as a configuration with includes, in a small directory tree with links: the reader must not panic, must not leave
//! the tree, and must stay within its limits.

#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::Budget;
use vipwatch_node::discovery::fuzzing::{IncludeTree, load};

/// A few includes can stand for 16 MiB of files.
const BUDGET: Budget = Budget { memory: 64 << 20, work: 1 << 30 };

/// A word in a file outside of the tree.
const OUTSIDE: &str = "vrrp_instance OUTSIDE {\n interface eth0\n virtual_router_id 9\n virtual_ipaddress {\n 192.0.2.9\n }\n}\n";

fn tree() -> &'static IncludeTree {
    static TREE: OnceLock<IncludeTree> = OnceLock::new();
    TREE.get_or_init(|| {
        let program = std::env::current_exe().expect("the path of this program");
        let directory = program.with_extension("tree");
        let root = directory.join("root");
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a directory"))
                .expect("create a directory");
            std::fs::write(path, text).expect("write a file");
        };
        write(directory.join("outside.conf"), OUTSIDE);
        for name in ["a.conf", "b.conf", "conf.d/a.conf", "conf.d/x/c.conf"] {
            write(root.join(name), "global_defs {\n}\n");
        }
        // Includes in an included file start in its own directory.
        write(root.join("conf.d/b.conf"), "include a.conf\ninclude ../a.conf\n");
        for (name, target) in
            [("up", "../outside.conf"), ("loop", "loop"), ("d", "conf.d"), ("abs", "/a.conf")]
        {
            let _ = std::os::unix::fs::symlink(target, root.join(name));
        }
        IncludeTree::open(&root).expect("open the tree")
    })
}

fuzz_target!(|text: &str| {
    let tree = tree();
    BUDGET.run(text.len(), || {
        // The only file with such an instance is outside of the tree.
        let outside = load(tree, text).into_iter().any(|name| name == "OUTSIDE");
        assert!(!outside || text.contains("OUTSIDE"), "the reader has left the tree");
    });
});
