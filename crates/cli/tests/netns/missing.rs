// SPDX-License-Identifier: Apache-2.0
//! Configuration files that disappear briefly or permanently.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vipwatch_testkit::routers::HaRouter;
use vipwatch_testkit::{Lab, NodeFixture, Routers, pause, wait_for};

use crate::support::{
    ADD_VIP, fixture_with, node_fixture, query_json, read, recorded, vi_1_conf, wait_for_content,
    write, write_hook,
};

/// The files that the outlets of the node write.
struct Outlets {
    states: PathBuf,
    /// One line with the new role for each run of the hook.
    hook_output: PathBuf,
}

impl Outlets {
    /// Configures a state file and a hook for every instance.
    fn configure(lab: &Lab, fixture: &NodeFixture) -> Self {
        let (states, hook_output) = (lab.path().join("states"), lab.path().join("hook-output"));
        let text = format!("echo $VIPWATCH_TO >> {}", hook_output.display());
        let hook = write_hook(&lab.path().join("hook"), &text);
        fixture.configure(&format!(
            "[[notify]]\norigin = [\"keepalived\", \"neutron\"]\nstate_file = \"{}/{{id}}\"\n\
             hook = {{ program = \"{}\" }}\n",
            states.display(),
            hook.display()
        ));
        Self { states, hook_output }
    }

    fn state_file(&self, id: &str) -> PathBuf {
        self.states.join(id).join("state")
    }
}

/// Waits until the log says that a file is missing or that its instances are removed.
fn wait_until_noticed(fixture: &NodeFixture) {
    wait_for("the node to notice", || {
        let log = fixture.log();
        let is_noticed = log.contains("the file is missing") || log.contains("instance removed");
        is_noticed.then_some(())
    });
}

/// Waits until the node reports no problem with a configuration file.
fn wait_until_no_problems(fixture: &NodeFixture) {
    wait_for("no problem with a file", || {
        let problems = query_json(fixture, &["status"])["problems"].as_array()?.len();
        (problems == 0).then_some(())
    });
}

fn instance_count(fixture: &NodeFixture) -> usize {
    query_json(fixture, &["status"])["instances"].as_array().unwrap().len()
}

/// Removes and restores a configuration file, and checks that the state file was not touched meanwhile.
fn assert_unaffected(
    fixture: &NodeFixture,
    outlets: &Outlets,
    id: &str,
    remove: impl Fn(),
    restore: impl Fn(),
) {
    let file = outlets.state_file(id);
    wait_for_content(&file, "backup");
    wait_for_content(&outlets.hook_output, "backup");
    let inode = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let before = inode(&file);
    remove();
    wait_until_noticed(fixture);
    restore();
    wait_until_no_problems(fixture);
    assert!(!fixture.log().contains("instance removed"), "{}", fixture.log());
    assert_eq!(inode(&file), before, "the state file was removed or written again");
}

#[test]
fn a_configuration_file_that_is_missing_briefly_changes_nothing() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let outlets = Outlets::configure(&lab, &fixture);
    let _node = fixture.start();
    let conf = fixture.keepalived_conf();
    let text = read(&conf);
    let remove = || std::fs::remove_file(&conf).unwrap();
    assert_unaffected(&fixture, &outlets, "VI_1", remove, || write(&conf, &text));
    // The node still follows the instance. The hook ran for the first role and for this change only.
    netns.ip(ADD_VIP);
    wait_for_content(&outlets.state_file("VI_1"), "primary");
    wait_for_content(&outlets.hook_output, "backup\nprimary");
}

#[test]
fn a_router_whose_directory_is_missing_briefly_is_still_followed() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("h{}", lab.number()), 1, 0);
    let router = &routers.each[0];
    let fixture = node_fixture(&lab);
    let outlets = Outlets::configure(&lab, &fixture);
    let _node = fixture.start();
    let (directory, aside) = (lab.path().join("ha_confs").join(&router.id), lab.path().join("x"));
    let remove = || std::fs::rename(&directory, &aside).unwrap();
    assert_unaffected(&fixture, &outlets, &router.id, remove, || {
        std::fs::rename(&aside, &directory).unwrap();
    });
    router.take();
    wait_for_content(&outlets.state_file(&router.id), "primary");
    wait_for_content(&outlets.hook_output, "backup\nprimary");
}

#[test]
fn the_file_of_a_router_that_keeps_changing_holds_back_no_role_of_the_router() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("k{}", lab.number()), 2, 0);
    let [changing, other] = &routers.each[..] else { panic!("two routers") };
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    let conf = lab.path().join("ha_confs").join(&changing.id).join("keepalived.conf");
    let text = read(&conf);
    let count = |router: &HaRouter| {
        let records = recorded(&fixture);
        records.iter().filter(|record| record.starts_with(&router.id)).count()
    };
    let wait_for_count = |wanted| wait_for("the change", || (count(other) == wanted).then_some(()));
    wait_for_count(1);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // BOUND: a minute.
            let is_wanted = |_: &usize| !has_ended.load(Ordering::Relaxed);
            for _ in (0..3_000).take_while(is_wanted) {
                write(&conf, &text);
                pause(Duration::from_millis(20));
            }
        });
        let counts = (0..8).map(|round| {
            let change: fn(&HaRouter) =
                if round % 2 == 0 { HaRouter::take } else { HaRouter::give_up };
            change(changing);
            // These changes are later.
            for number in 0..3 {
                other.take();
                wait_for_count(6 * round + 2 * number + 2);
                other.give_up();
                wait_for_count(6 * round + 2 * number + 3);
            }
            count(changing)
        });
        let counts: Vec<usize> = counts.collect();
        has_ended.store(true, Ordering::Relaxed);
        assert_eq!(counts, (2..10).collect::<Vec<_>>(), "a change was held back");
    });
}

#[test]
fn instances_of_a_missing_file_are_removed_after_the_hold_time() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let outlets = Outlets::configure(&lab, &fixture);
    let _node = fixture.start();
    wait_for_content(&outlets.state_file("VI_1"), "backup");
    std::fs::remove_file(fixture.keepalived_conf()).unwrap();
    fixture.wait_for_log("the file is missing; its instances are kept for 5 s");
    wait_for("the instance to be removed", || (instance_count(&fixture) == 0).then_some(()));
    wait_for("its state file to be removed", || {
        (!outlets.state_file("VI_1").exists()).then_some(())
    });
    wait_until_no_problems(&fixture);
}

#[test]
fn deleting_a_router_with_its_namespace_reports_no_fault() {
    let lab = Lab::new();
    let mut routers = Routers::new(lab.path(), &format!("g{}", lab.number()), 1, 0);
    // This drops the test's own netlink socket in the namespace, which would keep the namespace alive.
    let (id, netns) = {
        let router = routers.each.remove(0);
        (router.id, router.netns)
    };
    let fixture = node_fixture(&lab);
    let outlets = Outlets::configure(&lab, &fixture);
    let _node = fixture.start();
    wait_for_content(&outlets.hook_output, "backup");
    std::fs::remove_dir_all(lab.path().join("ha_confs").join(&id)).unwrap();
    wait_until_noticed(&fixture);
    netns.delete();
    wait_for("the router to be removed", || (instance_count(&fixture) == 0).then_some(()));
    assert_eq!(read(&outlets.hook_output).trim(), "backup", "{}", fixture.log());
}
