//! Who is told, when everything goes well and when it does not.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{
    Behaviour, FakeAgent, Lab, NodeFixture, Routers, TestNetns, Wire, script, stays, wait_for,
};

use crate::{instance, json, one, place, role, stage, write};

pub(crate) const VIP: &str = "address add 192.0.2.9/24 dev eth0";
pub(crate) const NO_VIP: &str = "address del 192.0.2.9/24 dev eth0";

/// A program that the node may run.
pub(crate) fn program(path: &Path, text: &str) -> PathBuf {
    script(path, text);
    path.to_owned()
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

pub(crate) fn wait_for_text(path: &Path, expected: &str) {
    wait_for(expected, || (read(path).trim() == expected).then_some(()));
}

#[test]
fn a_state_file_holds_the_role_and_goes_with_its_instance() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one(), instance("DB", "eth0", &["192.0.2.3/24"])]);
    let states = lab.path().join("states");
    place.configure(&format!(
        "[[outlet]]\ninstances = \"VI_*\"\nstate_file = \"{}/{{id}}\"\n",
        states.display()
    ));
    let node = place.start();
    let file = states.join("VI_1/state");
    wait_for_text(&file, "backup");
    assert!(!states.join("DB").exists(), "no pattern is about it");
    netns.ip(VIP);
    wait_for_text(&file, "primary");
    netns.ip("link set eth0p down");
    netns.ip(NO_VIP);
    wait_for_text(&file, "fault");
    // The directory goes, and something is in its place: the word is written when that has gone.
    std::fs::remove_dir_all(states.join("VI_1")).unwrap();
    write(&states.join("VI_1"), "in the way");
    netns.ip("link set eth0p up");
    wait_for("the failure to be known", || {
        place.say(&["doctor"]).contains("file-not-told").then_some(())
    });
    std::fs::remove_file(states.join("VI_1")).unwrap();
    wait_for_text(&file, "backup");
    wait_for("it to be over", || (!place.say(&["doctor"]).contains("file-not-told")).then_some(()));
    // What nobody keeps true any more is taken away.
    let text =
        format!("net_namespace {}\n{}", netns.name(), instance("DB", "eth0", &["192.0.2.3/24"]));
    write(&place.keepalived_conf(), &text);
    wait_for("the file to be gone", || (!file.exists()).then_some(()));
    assert!(node.stop().success());
}

#[test]
fn outlets_that_are_configured_while_it_runs_are_told_what_is_so() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    netns.ip(VIP);
    let node = place.start();
    let states = lab.path().join("states");
    place.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    node.reload();
    wait_for_text(&states.join("VI_1/state"), "primary");
    place.configure("");
    node.reload();
    netns.ip(NO_VIP);
    wait_for("it to be backup", || (role(&place, "VI_1") == "backup").then_some(()));
    assert!(!states.join("VI_1/state").exists(), "nobody keeps it true any more");
    // To be told of an outlet is no change: the address went, and nothing else is recorded.
    let to = |change: &Value| change["to"].as_str().unwrap().to_owned();
    let recorded = wait_for("it to be recorded", || {
        let answer = json(&place, &["history"]);
        let roles: Vec<String> = answer["changes"].as_array().unwrap().iter().map(to).collect();
        (roles.last()? == "backup").then_some(roles)
    });
    assert_eq!(recorded, ["primary", "backup"]);
}

#[test]
fn a_program_is_told_by_its_input_and_its_environment() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (input, variables) = (lab.path().join("input"), lab.path().join("variables"));
    let hook = program(
        &lab.path().join("hook"),
        &format!(
            "cat > {0}.new; env | grep ^VIPWATCH_ | sort > {1}.new; echo told $1; \
             mv {1}.new {1}; mv {0}.new {0}",
            input.display(),
            variables.display()
        ),
    );
    place.configure(&format!(
        "[[outlet]]\nhook = {{ program = [\"{}\", \"word\"], on = [\"primary\"] }}\n",
        hook.display()
    ));
    let _node = place.start();
    netns.ip(VIP);
    let told: Value = wait_for("the program", || serde_json::from_str(&read(&input)).ok());
    assert_eq!(
        (&told["id"], &told["from"], &told["to"]),
        (&"VI_1".into(), &"backup".into(), &"primary".into())
    );
    assert_eq!((&told["schema"], &told["seq"]), (&"vipwatch.change/1".into(), &2.into()));
    let variables = read(&variables);
    for expected in [
        "VIPWATCH_ADDRESSES=192.0.2.9/24",
        "VIPWATCH_CAUSE=address",
        "VIPWATCH_FROM=backup",
        "VIPWATCH_ID=VI_1",
        "VIPWATCH_ORIGIN=keepalived",
        "VIPWATCH_SEQ=2",
        "VIPWATCH_TO=primary",
    ] {
        assert!(variables.lines().any(|line| line == expected), "{expected}: {variables}");
    }
    wait_for("its words in the log", || place.log().contains("hook says: told word").then_some(()));
    wait_for("its latency", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["hook"].as_i64().filter(|micros| *micros > 0)
    });
    wait_for("it to be recorded", || {
        let change = &json(&place, &["history"])["changes"][1];
        change["latencies"]["hook"].as_i64().filter(|micros| *micros > 0)
    });
}

#[test]
fn programs_of_one_instance_run_in_order_and_hold_nobody_else_up() {
    let lab = Lab::new();
    let two = [one(), instance("SLOW", "eth0", &["192.0.2.8/24"])];
    let (netns, place) = stage(&lab, &two);
    let (said, gate) = (lab.path().join("said"), lab.path().join("gate"));
    let hook = program(
        &lab.path().join("hook"),
        &format!(
            "if [ $VIPWATCH_ID = SLOW ]; then while [ ! -e {} ]; do sleep 0.05; done; fi\n\
             echo $VIPWATCH_ID $VIPWATCH_SEQ $VIPWATCH_TO >> {}",
            gate.display(),
            said.display()
        ),
    );
    place.configure(&format!("[[outlet]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let _node = place.start();
    let step = |words: &str, id: &str, expected: &str| {
        netns.ip(words);
        wait_for(expected, || (role(&place, id) == expected).then_some(()));
    };
    for _ in 0..2 {
        step("address add 192.0.2.8/24 dev eth0", "SLOW", "primary");
        step("address del 192.0.2.8/24 dev eth0", "SLOW", "backup");
    }
    step(VIP, "VI_1", "primary");
    wait_for_text(&said, "VI_1 2 backup\nVI_1 7 primary");
    write(&gate, "");
    let slow = "SLOW 1 backup\nSLOW 3 primary\nSLOW 4 backup\nSLOW 5 primary\nSLOW 6 backup";
    wait_for_text(&said, &format!("VI_1 2 backup\nVI_1 7 primary\n{slow}"));
}

#[test]
fn a_program_that_hangs_floods_or_cannot_run_is_said_and_nothing_else_suffers() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let directory = lab.path();
    let children = directory.join("children");
    let hang = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", children.display());
    program(&directory.join("hangs"), &hang);
    program(&directory.join("floods"), "yes flood | head -c 1000000");
    program(&directory.join("fails"), "echo sorry; exit 7");
    write(&directory.join("not-executable"), "#!/bin/sh\n");
    program(&directory.join("exposed"), "true");
    let exposed = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.join("exposed"), exposed).unwrap();
    let names = ["hangs", "floods", "fails", "not-executable", "exposed", "missing"];
    let hook = |name: &&str| {
        let path = directory.join(name);
        let deadline = if *name == "hangs" { "300ms" } else { "1m" };
        format!("[[outlet.hook]]\nprogram = \"{}\"\ndeadline = \"{deadline}\"\n", path.display())
    };
    let hooks = names.iter().map(hook).collect::<Vec<_>>().concat();
    let states = directory.join("states");
    place.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n{hooks}", states.display()));
    let mut node = place.start();
    netns.ip(VIP);
    wait_for_text(&states.join("VI_1/state"), "primary");
    for expected in [
        "it took longer than 300 ms and was killed",
        "the hook says too much",
        "hook says: sorry",
        "it ended with code 7",
        "it cannot be started: Permission denied",
        "others than its owner may write to it",
        "it cannot be started: No such file",
    ] {
        wait_for(expected, || place.log().contains(expected).then_some(()));
    }
    let child: i32 = wait_for("its child", || read(&children).trim().parse().ok());
    wait_for("what it started to be gone", || {
        (!vipwatch_testkit::monitor::is_alive(child)).then_some(())
    });
    assert!(node.is_alive());
    assert!(place.say(&["doctor"]).contains("hook-not-told"));
    assert!(place.log().lines().count() < 100, "a flood does not reach the log");
}

#[test]
fn a_hook_that_wants_the_latest_takes_nothing_from_the_others() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let said = lab.path().join("said");
    let hook =
        program(&lab.path().join("hook"), &format!("echo $1 $VIPWATCH_SEQ >> {}", said.display()));
    let hook = |name: &str, deliver: &str| {
        let program = hook.display();
        format!("[[outlet.hook]]\nprogram = [\"{program}\", \"{name}\"]\ndeliver = \"{deliver}\"\n")
    };
    place.configure(&format!("[[outlet]]\n{}{}", hook("first", "every"), hook("second", "latest")));
    let _node = place.start();
    netns.ip(VIP);
    wait_for("both, of the last change", || {
        let said = read(&said);
        (said.contains("first 1\n") && said.contains("first 2\n") && said.contains("second 2\n"))
            .then_some(())
    });
}

#[test]
fn a_restart_after_retention_runs_no_hook_for_a_role_that_is_unchanged() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one(), instance("DB", "eth0", &["192.0.2.3/24"])]);
    let said = lab.path().join("said");
    let text = format!("echo $VIPWATCH_TO >> {}", said.display());
    let hook = program(&lab.path().join("hook"), &text);
    place.configure(&format!(
        "[history]\nkeep_changes = 1\n[[outlet]]\ninstances = \"VI_*\"\nhook = {{ program = \"{}\" }}\n",
        hook.display()
    ));
    let node = place.start();
    wait_for("the delivery to be recorded", || {
        let changes = json(&place, &["history"])["changes"].clone();
        let of_hook =
            |change: &Value| change["id"] == "VI_1" && change["latencies"]["hook"].is_i64();
        changes.as_array()?.iter().any(of_hook).then_some(())
    });
    netns.ip("address add 192.0.2.3/24 dev eth0");
    wait_for("the other instance", || (role(&place, "DB") == "primary").then_some(()));
    // Retention runs when the node stops: of all changes, the last one is left.
    assert!(node.stop().success());
    let _node = place.start();
    netns.ip(VIP);
    wait_for("the hook", || read(&said).contains("primary").then_some(()));
    assert_eq!(read(&said), "backup\nprimary\n", "in order, so a second backup would be there");
}

#[test]
fn a_program_that_hangs_for_many_instances_holds_up_no_other_program() {
    let lab = Lab::new();
    // As many as may run at a time.
    let mut instances: Vec<String> = (1..=8)
        .map(|n| instance(&format!("HANG_{n}"), "eth0", &[&format!("192.0.2.10{n}/24")]))
        .collect();
    instances.push(one());
    let (netns, place) = stage(&lab, &instances);
    let (hanging, said) = (lab.path().join("hanging"), lab.path().join("said"));
    let hangs = program(
        &lab.path().join("hangs"),
        &format!("echo $$ >> {}; exec sleep 600", hanging.display()),
    );
    let quick =
        program(&lab.path().join("quick"), &format!("echo $VIPWATCH_TO >> {}", said.display()));
    place.configure(&format!(
        "[[outlet]]\ninstances = \"HANG_*\"\nhook = {{ program = \"{}\", deadline = \"10m\" }}\n\
         [[outlet]]\ninstances = \"VI_1\"\nhook = {{ program = \"{}\", on = \"primary\" }}\n",
        hangs.display(),
        quick.display()
    ));
    let _node = place.start();
    wait_for("all to hang", || (read(&hanging).lines().count() == 8).then_some(()));
    netns.ip(VIP);
    wait_for_text(&said, "primary");
}

#[test]
fn a_program_that_was_stopped_runs_again_although_another_waits_for_the_same_instance() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let said = lab.path().join("said");
    // The first time it takes too long.
    let again = format!("echo $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] && exit 0", said.display());
    let stopped = program(&lab.path().join("stopped"), &format!("{again}; exec sleep 600"));
    let other = program(&lab.path().join("other"), "true");
    place.configure(&format!(
        "[[outlet]]\n[[outlet.hook]]\nprogram = \"{}\"\ndeadline = \"10m\"\ndeliver = \"latest\"\n\
         [[outlet.hook]]\nprogram = \"{}\"\n",
        stopped.display(),
        other.display()
    ));
    let _node = place.start();
    let pid = wait_for("the program", || read(&said).lines().next().map(str::to_owned));
    vipwatch_testkit::run(std::process::Command::new("kill").args(["-TERM", &pid]));
    wait_for("the program again", || (read(&said).lines().count() == 2).then_some(()));
}

#[test]
fn a_hook_that_fails_after_a_reload_has_removed_it_is_no_finding() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let (began, gate) = (lab.path().join("began"), lab.path().join("gate"));
    let text = format!(
        "echo began > {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        began.display(),
        gate.display()
    );
    let hook = program(&lab.path().join("hook"), &text);
    place.configure(&format!(
        "[[outlet]]\nhook = {{ program = \"{}\", deadline = \"10m\" }}\n",
        hook.display()
    ));
    let node = place.start();
    wait_for_text(&began, "began");
    place.configure("");
    node.reload();
    write(&gate, "");
    place.wait_for_log("it ended with code 7");
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
}

#[test]
fn floating_addresses_that_come_later_are_announced_too() {
    let lab = Lab::new();
    let id = format!("f{}-{}", std::process::id(), lab.number());
    let (router, peer) = (TestNetns::create(&format!("qrouter-{id}")), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let place: NodeFixture = place(&lab);
    // One address decides, the others follow.
    let conf = "vrrp_instance R {\n interface eth0\n virtual_router_id 1\n virtual_ipaddress {\n 192.0.2.1/24 dev eth0\n }\n \
                virtual_ipaddress_excluded {\n 192.0.2.77/32 dev eth0\n }\n}\n";
    write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
    place.configure(
        "[[outlet]]\norigin = \"neutron\"\n\
         announce = { count = 3, gap = \"100ms\", second_burst = \"0s\" }\n",
    );
    let _node = place.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip("address add 192.0.2.1/24 dev eth0");
    wire.wait_for("192.0.2.1", 2);
    router.ip("address add 192.0.2.77/32 dev eth0");
    wire.wait_for("192.0.2.77", 2);
    // And a link that gets its carrier later is waited for.
    router.ip("address del 192.0.2.1/24 dev eth0");
    wait_for("it to be backup", || (role(&place, &id) == "backup").then_some(()));
    switch.cut("port-r");
    router.ip("address add 192.0.2.1/24 dev eth0");
    wait_for("it to be primary", || (role(&place, &id) == "primary").then_some(()));
    let before = wire.frames().len();
    switch.mend("port-r");
    wait_for("the frames", || (wire.frames().len() >= before + 4).then_some(()));
}

#[test]
fn neutron_is_observed_unless_somebody_says_otherwise() {
    let lab = Lab::new();
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let routers = Routers::new(lab.path(), &format!("o{}", lab.number()), 1, 0);
    let router = &routers.each[0];
    let place = place(&lab);
    let socket = lab.path().join("keepalived-state-change");
    let outlets = |origin: &str| {
        let states = lab.path().join("states");
        format!(
            "[[outlet]]\n{origin}state_file = \"{}/{{id}}\"\nagent = \"{}\"\n",
            states.display(),
            socket.display()
        )
    };
    place.configure(&outlets(""));
    let node = place.start();
    router.take();
    wait_for("it to be primary", || (role(&place, &router.id) == "primary").then_some(()));
    assert_eq!(agent.count(), 0);
    assert!(!lab.path().join("states").exists());
    assert!(!lab.path().join("ha_confs").join(&router.id).join("state").exists());
    place.configure(&outlets("origin = \"neutron\"\n"));
    node.reload();
    agent.wait_for_words(&["primary"]);
    assert_eq!(agent.last().unwrap().router(), router.id);
    router.give_up();
    agent.wait_for_word("backup");
    wait_for("what it knows", || {
        let agent = &json(&place, &["status"])["instances"][0]["agent"];
        (agent["acknowledged"] == "backup").then_some(())
    });
}

#[test]
fn an_agent_that_was_away_is_told_when_it_comes_back() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("a{}", lab.number()), 3, 0);
    let place = place(&lab);
    let socket = lab.path().join("keepalived-state-change");
    place.configure(&format!(
        "[[outlet]]\norigin = \"neutron\"\nagent = \"{}\"\n",
        socket.display()
    ));
    let _node = place.start();
    for router in &routers.each {
        router.take();
    }
    wait_for("the doctor to know", || {
        place.say(&["doctor"]).contains("agent-behind").then_some(())
    });
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    wait_for("all of them", || (agent.count() >= 3).then_some(()));
    assert!(agent.letters().iter().all(|letter| letter.word() == "primary"));
    agent.stop(SocketRemains::Nothing);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    wait_for("the new one to be told as well", || (agent.count() >= 3).then_some(()));
}

#[test]
fn who_becomes_primary_is_announced_to_the_network() {
    let lab = Lab::new();
    let (router, peer): (TestNetns, TestNetns) = (lab.netns("r"), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let place: NodeFixture = place(&lab);
    let conf = instance("VI_1", "eth0", &["192.0.2.9/24", "192.0.2.10/32"]);
    write(&place.keepalived_conf(), &format!("net_namespace {}\n{conf}", router.name()));
    place.configure("[[outlet]]\nannounce = { count = 1, second_burst = \"0s\" }\n");
    let _node = place.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip("address add 192.0.2.9/24 dev eth0");
    wait_for("half of it", || (role(&place, "VI_1") == "partial").then_some(()));
    assert!(wire.frames().is_empty(), "half an instance announces nothing");
    router.ip("address add 192.0.2.10/32 dev eth0");
    wire.wait_for("192.0.2.9", 2);
    wire.wait_for("192.0.2.10", 2);
    wait_for("its latency", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["announce"].as_i64().filter(|micros| *micros > 0)
    });
    // And the namespace is not kept alive by it.
    let name = router.name().to_owned();
    router.delete();
    wait_for("its end", || (role(&place, "VI_1") == "fault").then_some(()));
    stays(std::time::Duration::from_millis(50), &name, || role(&place, "VI_1") == "fault");
}
