// SPDX-License-Identifier: Apache-2.0
//! A file of keepalived that was edited: what keepalived has loaded decides roles and instances until it reloads.

mod storm;

use vipwatch_testkit::keepalived::Keepalived;
use vipwatch_testkit::{wait_for, wait_within_showing};

use super::{CHECK_LIMIT, ProcessLab, conf, findings, signal};
use crate::http_server::HttpServer;
use crate::support::{query_json, recorded, role, wait_for_role, write};

/// The address of each file.
const VIP: &str = "192.0.2.9/24";
const SECOND: &str = "192.0.2.8/24";

impl ProcessLab {
    /// The file with a second address.
    fn longer_conf(&self) -> String {
        self.conf_with(SECOND)
    }

    fn conf_with(&self, second: &str) -> String {
        self.conf().replace("  192.0.2.9/24", &format!("  {second} dev eth0\n  192.0.2.9/24"))
    }

    fn edit(&self, text: &str) {
        write(&self.lab.path().join("keepalived/keepalived.conf"), text);
    }

    fn reload(&self) {
        signal("HUP", self.pid("keepalived.pid"));
    }

    fn wait_for_second(&self, is_there: bool) {
        self.wait_for_presence(SECOND, is_there);
    }

    fn wait_for_presence(&self, address: &str, is_there: bool) {
        wait_for("keepalived to change its addresses", || {
            (self.netns.addresses("eth0").contains(address) == is_there).then_some(())
        });
    }

    /// The hint of the only finding about the instance.
    fn hint(&self) -> String {
        self.findings()[0]["hint"].as_str().unwrap_or_default().to_owned()
    }

    /// This test's file problems, each with its severity; the node also knows those of other tests.
    fn problems(&self) -> String {
        let answer = query_json(&self.fixture, &["doctor"]);
        let items = answer["items"].as_array().unwrap().iter();
        let own = items.filter(|item| item["name"] == "configuration-problem");
        let own = own.map(|item| format!("{}: {}\n", item["severity"], item["text"]));
        own.filter(|problem| problem.contains(self.lab.path().to_str().unwrap())).collect()
    }

    #[track_caller]
    fn wait_for_no_problem(&self) {
        wait_within_showing(
            CHECK_LIMIT,
            "no problem",
            || self.problems(),
            || self.problems().is_empty().then_some(()),
        );
    }

    /// The recorded changes of the instances of this test.
    fn own_records(&self) -> Vec<String> {
        let mut records = recorded(&self.fixture);
        records.retain(|record| record.contains(&self.name));
        records
    }

    /// Waits until the node judges the role by this number of addresses.
    #[track_caller]
    fn wait_for_watched(&self, count: usize) {
        wait_for("the addresses that decide the role", || {
            let instance = &query_json(&self.fixture, &["show", &self.name])["instance"];
            (instance["addresses"].as_array()?.len() == count).then_some(())
        });
    }
}

#[test]
fn an_address_that_keepalived_has_not_loaded_makes_no_primary_partial() {
    let lab = ProcessLab::new("APPENDED");
    let server = HttpServer::new(&[]);
    lab.fixture.configure(&format!(
        "[[notify]]\ninstances = \"{}\"\n[[notify.webhook]]\nurl = \"{}\"\ndeliver = \"every\"\n",
        lab.name, server.url
    ));
    let _keepalived = lab.start_keepalived();
    let node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.edit(&lab.longer_conf());
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    assert_eq!(role(&lab.fixture, &lab.name), "primary");
    // A node that starts meanwhile has not seen the content from before.
    drop(node);
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.wait_for_watched(1);
    let primary = format!("{} primary", lab.name);
    assert_eq!(lab.own_records(), std::slice::from_ref(&primary));
    assert_eq!(server.accepted(), ["primary"]);

    lab.reload();
    lab.wait_for_watched(2);
    lab.wait_for_findings(&[]);
    assert_eq!(role(&lab.fixture, &lab.name), "primary");
    assert_eq!(lab.own_records(), [primary]);
}

#[test]
fn an_edit_of_an_included_file_is_pending_until_keepalived_reloads() {
    let lab = ProcessLab::new("INCLUDED");
    let included = lab.directory("keepalived/conf.d").join("web.conf");
    write(&included, &lab.conf());
    let directory = lab.directory("keepalived");
    let include = format!("include {}\n", included.display());
    let _keepalived = Keepalived::start_with(&lab.netns, &directory, &include);
    lab.wait_for_address();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.wait_for_findings(&[]);
    write(&included, &lab.longer_conf());
    // Its time is before keepalived's start, as after a step of the clock.
    let edited = std::fs::File::options().write(true).open(&included).unwrap();
    edited.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    let main = directory.join("keepalived.conf");
    assert!(lab.text().contains(main.to_str().unwrap()), "{}", lab.text());
    lab.wait_for_watched(1);
    let primary = format!("{} primary", lab.name);
    assert_eq!(lab.own_records(), std::slice::from_ref(&primary));

    lab.reload();
    lab.wait_for_findings(&[]);
    lab.wait_for_watched(2);
    assert_eq!(lab.own_records(), [primary]);
}

#[test]
fn a_block_or_file_that_keepalived_still_runs_is_not_removed() {
    let lab = ProcessLab::new("BLOCK");
    let second = conf(&format!("{}_2", lab.name), 52, SECOND);
    let both = format!("{}{second}", lab.conf());
    let file = lab.directory("keepalived").join("keepalived.conf");
    let keepalived = Keepalived::start_with(&lab.netns, file.parent().unwrap(), &both);
    lab.wait_for_second(true);
    let _node = lab.fixture.start();
    let names = || super::ids(&lab.fixture, &lab.name);
    let two = [lab.name.clone(), format!("{}_2", lab.name)];
    wait_for("both instances", || (names() == two).then_some(()));
    lab.edit(&lab.conf());
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    assert_eq!(names(), two);
    lab.reload();
    wait_for("the removal", || (names() == two[..1]).then_some(()));
    lab.wait_for_second(false);

    std::fs::remove_file(&file).unwrap();
    lab.fixture.wait_for_log("keepalived still runs with it");
    assert_eq!(names(), two[..1]);
    keepalived.stop();
    wait_for("the removal", || names().is_empty().then_some(()));
}

#[test]
fn a_removed_block_of_a_killed_keepalived_still_has_a_finding_about_its_address() {
    let lab = ProcessLab::new("UNLOADED");
    let removed = format!("{}_2", lab.name);
    let both = format!("{}{}", lab.conf(), conf(&removed, 52, SECOND));
    let directory = lab.directory("keepalived");
    let keepalived = Keepalived::start_with(&lab.netns, &directory, &both);
    lab.wait_for_second(true);
    lab.edit(&lab.conf());
    let _node = lab.fixture.start();
    // The block is only in the copy that keepalived keeps.
    wait_for_role(&lab.fixture, &removed, "primary");
    keepalived.kill();
    wait_within_showing(
        CHECK_LIMIT,
        "the finding about the address",
        || lab.fixture.log(),
        || {
            let found = findings(&lab.fixture, &removed);
            found.iter().any(|one| one["name"] == "keepalived-gone-address-left").then_some(())
        },
    );
    assert_eq!(role(&lab.fixture, &removed), "primary");

    // The first process of the sandbox does not collect the killed child, which its pid file keeps alive for keepalived.
    for file in ["keepalived.pid", "keepalived-vrrp.pid"] {
        std::fs::remove_file(directory.join(file)).unwrap();
    }
    let _next = Keepalived::start_with(&lab.netns, &directory, &lab.conf());
    let name = std::slice::from_ref(&lab.name);
    wait_for("the removal", || (super::ids(&lab.fixture, &lab.name) == name).then_some(()));
}

#[test]
fn a_file_with_a_problem_decides_the_role_once_keepalived_has_loaded_it() {
    let lab = ProcessLab::new("IMPERFECT");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    // keepalived reports the priority, and uses its default.
    let imperfect =
        lab.conf().replace("192.0.2.9/24", SECOND).replace("priority 100", "priority 300");
    lab.edit(&imperfect);
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    assert!(!lab.hint().contains("do not reload"), "{}", lab.hint());
    lab.reload();
    lab.wait_for_second(true);
    lab.wait_for_findings(&[]);
    wait_for("the new address", || {
        let instance = &query_json(&lab.fixture, &["show", &lab.name])["instance"];
        (instance["addresses"][0]["cidr"].as_str()? == SECOND).then_some(())
    });
    assert_eq!(lab.own_records(), [format!("{} primary", lab.name)]);
}

#[test]
fn an_included_file_that_is_removed_with_a_reload_makes_no_primary_partial() {
    let lab = ProcessLab::new("INCLUDE_GONE");
    let parts = lab.directory("keepalived/conf.d");
    let second = parts.join("second.conf");
    write(&second, &format!("{SECOND} dev eth0\n"));
    let directory = lab.directory("keepalived");
    let include = format!("  include {}/*.conf\n  192.0.2.9/24", parts.display());
    let text = lab.conf().replace("  192.0.2.9/24", &include);
    let _keepalived = Keepalived::start_with(&lab.netns, &directory, &text);
    lab.wait_for_second(true);
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.wait_for_watched(2);
    std::fs::remove_file(&second).unwrap();
    lab.reload();
    lab.wait_for_second(false);
    lab.wait_for_watched(1);
    assert_eq!(lab.own_records(), [format!("{} primary", lab.name)]);
}

#[test]
fn a_file_with_which_keepalived_would_end_has_a_warning_before_the_reload() {
    let lab = ProcessLab::new("REFUSED");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    let doctor = || lab.fixture.run_text(&["doctor"]);
    let (conf, vrid) = (lab.conf(), " virtual_router_id 51\n");
    for harmful in [
        conf.replace(vrid, ""),
        format!("{conf}vrrp_instance other {{\n interface eth0\n}}\n"),
        // keepalived before 2.4 ends the instance at the end of the block.
        conf.replace(vrid, &format!("{vrid} auth_hmac {{\n  mode enforce\n }}\n")),
    ] {
        lab.edit(&harmful);
        lab.wait_for_findings(&["keepalived-reload-pending"]);
        assert!(doctor().contains("do not reload or restart keepalived"), "{}", doctor());
        lab.edit(&conf);
        wait_within_showing(CHECK_LIMIT, "the end of the finding", doctor, || {
            (!doctor().contains("keepalived-reload-pending")).then_some(())
        });
    }
    // Without its file, keepalived loads nothing.
    std::fs::remove_file(lab.lab.path().join("keepalived/keepalived.conf")).unwrap();
    lab.fixture.wait_for_log("keepalived still runs with it");
    lab.reload();
    lab.fixture.wait_for_log("keepalived still runs without any instance");
    wait_within_showing(CHECK_LIMIT, "the finding", doctor, || {
        doctor().contains("keepalived still runs without any instance").then_some(())
    });
}

#[test]
fn a_reload_that_removes_an_address_makes_no_primary_partial() {
    let lab = ProcessLab::new("SHORTER");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    for _ in 0..5 {
        lab.edit(&lab.longer_conf());
        lab.reload();
        lab.wait_for_second(true);
        lab.wait_for_watched(2);
        lab.edit(&lab.conf());
        lab.reload();
        lab.wait_for_watched(1);
    }
    lab.netns.ip("address del 192.0.2.9/24 dev eth0");
    let expected = ["primary", "backup"].map(|role| format!("{} {role}", lab.name));
    wait_for("a change that the kernel shows", || (lab.own_records() == expected).then_some(()));
}

/// The operator of half a roll-out: the block is for a newer keepalived.
#[test]
fn an_older_keepalived_loses_the_addresses_behind_a_block_that_it_does_not_know() {
    let lab = ProcessLab::new("LOST");
    let block = " block_of_a_later_release {\n  key 1 x\n }\n virtual_ipaddress {";
    let text = lab.conf().replace(" virtual_ipaddress {", block);
    let directory = lab.directory("keepalived");
    let _keepalived = Keepalived::start_with(&lab.netns, &directory, &text);
    let _node = lab.fixture.start();
    wait_for("the critical problem", || {
        let answer = query_json(&lab.fixture, &["doctor"]);
        let mut items = answer["items"].as_array()?.iter();
        let problem = items
            .find(|item| item["name"] == "configuration-problem" && item["severity"] == "critical");
        problem?["text"].as_str()?.contains("loses these addresses").then_some(())
    });
    wait_for("keepalived to be primary", || {
        let log = std::fs::read_to_string(directory.join("keepalived.log")).ok()?;
        log.contains("Entering MASTER STATE").then_some(())
    });
    assert!(!lab.netns.addresses("eth0").contains(VIP), "keepalived has loaded the address");
    assert_eq!(role(&lab.fixture, &lab.name), "backup");

    // Without the reload, keepalived still cannot take over.
    lab.edit(&lab.conf());
    wait_within_showing(
        CHECK_LIMIT,
        "the pending edit",
        || lab.fixture.log(),
        || lab.finding_names().contains(&"keepalived-reload-pending".to_owned()).then_some(()),
    );
    let problems = lab.problems();
    assert!(problems.starts_with("\"critical\""), "{problems}");
    assert!(problems.contains("keepalived lost addresses when it read this file"), "{problems}");
    lab.reload();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.wait_for_no_problem();
}

#[test]
fn a_block_that_is_moved_before_the_addresses_has_a_warning_before_the_reload() {
    let lab = ProcessLab::new("MOVED");
    let block = " block_of_a_later_release {\n  key 1 x\n }\n";
    let conf = lab.conf();
    let (start, addresses) = conf.split_once(" virtual_ipaddress").unwrap();
    let (addresses, end) = addresses.rsplit_once("}\n").unwrap();
    let behind = format!("{start} virtual_ipaddress{addresses}{block}}}\n{end}");
    let before = format!("{start}{block} virtual_ipaddress{addresses}}}\n{end}");
    let _keepalived = Keepalived::start_with(&lab.netns, &lab.directory("keepalived"), &behind);
    lab.wait_for_address();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.edit(&before);
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    assert!(lab.hint().contains("do not reload or restart keepalived"), "{}", lab.hint());
    assert!(!lab.problems().contains("\"critical\""), "it works: {}", lab.problems());
}

#[test]
fn a_file_that_is_corrected_after_the_end_of_keepalived_has_no_problem() {
    let lab = ProcessLab::new("CORRECTED");
    let keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.edit(&lab.conf().replace(" virtual_router_id 51\n", ""));
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    keepalived.kill();
    lab.wait_for_findings(&["keepalived-gone-address-left"]);
    assert!(lab.problems().contains("keepalived does not start"), "{}", lab.problems());
    lab.edit(&lab.conf());
    lab.wait_for_no_problem();
}
