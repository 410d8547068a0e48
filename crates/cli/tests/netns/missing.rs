//! Configuration files that disappear: for a moment, or for good.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vipwatch_testkit::{Lab, NodeFixture, Routers, wait_for};

use crate::notify::{VIP, program, read, wait_for_text};
use crate::{json, one, place, stage, write};

/// A node that follows one instance, writes its state file, and runs a hook.
struct Outlets {
    states: PathBuf,
    said: PathBuf,
}

impl Outlets {
    fn configure(lab: &Lab, place: &NodeFixture) -> Self {
        let (states, said) = (lab.path().join("states"), lab.path().join("said"));
        let text = format!("echo $VIPWATCH_TO >> {}", said.display());
        let hook = program(&lab.path().join("hook"), &text);
        place.configure(&format!(
            "[[outlet]]\norigin = [\"keepalived\", \"neutron\"]\nstate_file = \"{}/{{id}}\"\n\
             hook = {{ program = \"{}\" }}\n",
            states.display(),
            hook.display()
        ));
        Self { states, said }
    }

    fn state_file(&self, id: &str) -> PathBuf {
        self.states.join(id).join("state")
    }
}

/// Waits until the node has noticed that a file is missing, whatever it concludes.
fn wait_until_noticed(place: &NodeFixture) {
    wait_for("the node to notice", || {
        let log = place.log();
        let is_noticed =
            log.contains("the file is missing") || log.contains("is not there any more");
        is_noticed.then_some(())
    });
}

/// Waits until the node has nothing to say about any file.
fn wait_until_content(place: &NodeFixture) {
    wait_for("no problem with a file", || {
        let problems = json(place, &["status"])["problems"].as_array()?.len();
        (problems == 0).then_some(())
    });
}

fn instances(place: &NodeFixture) -> usize {
    json(place, &["status"])["instances"].as_array().unwrap().len()
}

/// Removes with `remove`, restores with `restore`, and sees that nothing came of it.
fn survives(
    place: &NodeFixture,
    outlets: &Outlets,
    id: &str,
    remove: impl Fn(),
    restore: impl Fn(),
) {
    let file = outlets.state_file(id);
    wait_for_text(&file, "backup");
    wait_for_text(&outlets.said, "backup");
    let inode = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let before = inode(&file);
    remove();
    wait_until_noticed(place);
    restore();
    wait_until_content(place);
    assert!(!place.log().contains("is not there any more"), "{}", place.log());
    assert_eq!(inode(&file), before, "the state file was removed or written again");
}

#[test]
fn a_file_that_is_missing_for_a_moment_changes_nothing() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let outlets = Outlets::configure(&lab, &place);
    let _node = place.start();
    let conf = place.keepalived_conf();
    let text = read(&conf);
    let remove = || std::fs::remove_file(&conf).unwrap();
    survives(&place, &outlets, "VI_1", remove, || write(&conf, &text));
    // It is followed as before, and the hook was run for no other reason.
    netns.ip(VIP);
    wait_for_text(&outlets.state_file("VI_1"), "primary");
    wait_for_text(&outlets.said, "backup\nprimary");
}

#[test]
fn a_router_whose_directory_is_missing_for_a_moment_stays() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("h{}", lab.number()), 1, 0);
    let router = &routers.each[0];
    let place = place(&lab);
    let outlets = Outlets::configure(&lab, &place);
    let _node = place.start();
    let (directory, aside) = (lab.path().join("ha_confs").join(&router.id), lab.path().join("x"));
    let remove = || std::fs::rename(&directory, &aside).unwrap();
    survives(&place, &outlets, &router.id, remove, || std::fs::rename(&aside, &directory).unwrap());
    router.take();
    wait_for_text(&outlets.state_file(&router.id), "primary");
    wait_for_text(&outlets.said, "backup\nprimary");
}

#[test]
fn a_file_that_stays_missing_takes_its_instances_with_it_after_the_hold() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let outlets = Outlets::configure(&lab, &place);
    let _node = place.start();
    wait_for_text(&outlets.state_file("VI_1"), "backup");
    std::fs::remove_file(place.keepalived_conf()).unwrap();
    place.wait_for_log("the file is missing; its instances are kept for 5 s");
    wait_for("the instance to go", || (instances(&place) == 0).then_some(()));
    wait_for("its file to go", || (!outlets.state_file("VI_1").exists()).then_some(()));
    wait_until_content(&place);
}

#[test]
fn a_router_that_is_deleted_with_its_namespace_is_no_fault() {
    let lab = Lab::new();
    let mut routers = Routers::new(lab.path(), &format!("g{}", lab.number()), 1, 0);
    // Without the test's own socket in the namespace, which would keep it alive.
    let (id, netns) = {
        let router = routers.each.remove(0);
        (router.id, router.netns)
    };
    let place = place(&lab);
    let outlets = Outlets::configure(&lab, &place);
    let _node = place.start();
    wait_for_text(&outlets.said, "backup");
    std::fs::remove_dir_all(lab.path().join("ha_confs").join(&id)).unwrap();
    wait_until_noticed(&place);
    netns.delete();
    wait_for("the router to go", || (instances(&place) == 0).then_some(()));
    assert_eq!(read(&outlets.said).trim(), "backup", "{}", place.log());
}
