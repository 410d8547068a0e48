// SPDX-License-Identifier: Apache-2.0
//! Hooks of the node: their input, their order, their limits, and hooks that fail.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use vipwatch_testkit::{Lab, wait_for};

use crate::support::{
    ADD_VIP, fixture_with, instance_conf, query_json, read, role, transitions, vi_1_conf,
    wait_for_content, write, write_hook,
};

#[test]
fn a_hook_gets_the_change_on_its_standard_input_and_in_its_environment() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (input, variables) = (lab.path().join("input"), lab.path().join("variables"));
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!(
            "cat > {0}.new; env | grep ^VIPWATCH_ | sort > {1}.new; echo called with $1; \
             mv {1}.new {1}; mv {0}.new {0}",
            input.display(),
            variables.display()
        ),
    );
    fixture.configure(&format!(
        "[[notify]]\nhook = {{ program = [\"{}\", \"word\"], on = [\"primary\"] }}\n",
        hook.display()
    ));
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    let change: Value = wait_for("the hook", || serde_json::from_str(&read(&input)).ok());
    assert_eq!(
        (&change["id"], &change["from"], &change["to"]),
        (&"VI_1".into(), &"backup".into(), &"primary".into())
    );
    assert_eq!(change["schema"], "vipwatch.transition/2");
    let variables = read(&variables);
    for expected in [
        "VIPWATCH_ADDRESSES=192.0.2.9/24",
        "VIPWATCH_TRIGGER=address",
        "VIPWATCH_CAUSE=unknown",
        "VIPWATCH_FROM=backup",
        "VIPWATCH_ID=VI_1",
        "VIPWATCH_ORIGIN=keepalived",
        &format!("VIPWATCH_SEQ={}", change["seq"]),
        &format!("VIPWATCH_EPOCH={}", change["epoch"].as_str().unwrap()),
        "VIPWATCH_SOURCE=node",
        "VIPWATCH_TO=primary",
    ] {
        assert!(variables.lines().any(|line| line == expected), "{expected}: {variables}");
    }
    wait_for("its output in the log", || {
        fixture.log().contains("hook output: called with word").then_some(())
    });
    wait_for("the latency", || {
        let latencies = &query_json(&fixture, &["status"])["instances"][0]["latencies"];
        latencies["hook"].as_i64().filter(|micros| *micros > 0)
    });
    wait_for("the record", || {
        transitions(&fixture, &[]).get(1)?["latencies"]["hook"]
            .as_i64()
            .filter(|micros| *micros > 0)
    });
}

#[test]
fn hooks_of_one_instance_run_in_order_and_do_not_delay_other_instances() {
    let lab = Lab::new();
    let two = [vi_1_conf(), instance_conf("SLOW", "eth0", &["192.0.2.8/24"])];
    let (netns, fixture) = fixture_with(&lab, &two);
    let (hook_output, gate) = (lab.path().join("hook-output"), lab.path().join("gate"));
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!(
            "if [ $VIPWATCH_ID = SLOW ]; then while [ ! -e {} ]; do sleep 0.05; done; fi\n\
             echo $VIPWATCH_ID $VIPWATCH_TO >> {}",
            gate.display(),
            hook_output.display()
        ),
    );
    fixture.configure(&format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let _node = fixture.start();
    let step = |args: &str, id: &str, expected: &str| {
        netns.ip(args);
        wait_for(expected, || (role(&fixture, id) == expected).then_some(()));
    };
    for _ in 0..2 {
        step("address add 192.0.2.8/24 dev eth0", "SLOW", "primary");
        step("address del 192.0.2.8/24 dev eth0", "SLOW", "backup");
    }
    step(ADD_VIP, "VI_1", "primary");
    wait_for_content(&hook_output, "VI_1 backup\nVI_1 primary");
    write(&gate, "");
    let slow = "SLOW backup\nSLOW primary\nSLOW backup\nSLOW primary\nSLOW backup";
    wait_for_content(&hook_output, &format!("VI_1 backup\nVI_1 primary\n{slow}"));
}

#[test]
fn a_hook_that_hangs_floods_or_cannot_run_is_reported_and_affects_nothing_else() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let directory = lab.path();
    let children = directory.join("children");
    let hang = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", children.display());
    write_hook(&directory.join("hangs"), &hang);
    write_hook(&directory.join("floods"), "yes flood | head -c 1000000");
    write_hook(&directory.join("fails"), "echo sorry; exit 7");
    for name in ["not-executable", "exposed", "missing"] {
        write_hook(&directory.join(name), "true");
    }
    let names = ["hangs", "floods", "fails", "not-executable", "exposed", "missing"];
    let hook = |name: &&str| {
        let path = directory.join(name);
        let deadline = if *name == "hangs" { "300ms" } else { "1m" };
        format!("[[notify.hook]]\nprogram = \"{}\"\ntimeout = \"{deadline}\"\n", path.display())
    };
    let hooks = names.iter().map(hook).collect::<Vec<_>>().concat();
    let states = directory.join("states");
    fixture
        .configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n{hooks}", states.display()));
    let mut node = fixture.start();
    // The node refuses a file with such hooks, so they change while it runs.
    let set_mode = |name: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(directory.join(name), permissions).unwrap();
    };
    set_mode("not-executable", 0o644);
    set_mode("exposed", 0o777);
    std::fs::remove_file(directory.join("missing")).unwrap();
    netns.ip(ADD_VIP);
    wait_for_content(&states.join("VI_1/state"), "primary");
    for expected in [
        "the program took longer than 300 ms and was killed",
        "hook output too long",
        "hook output: sorry",
        "the program ended with code 7",
        "the program file is not executable",
        "users other than its owner can write to the program file",
        "missing: No such file or directory",
    ] {
        wait_for(expected, || fixture.log().contains(expected).then_some(()));
    }
    let child: i32 = wait_for("the child of the hook", || read(&children).trim().parse().ok());
    wait_for("the child to be killed", || {
        (!vipwatch_testkit::monitor::is_alive(child)).then_some(())
    });
    assert!(node.is_alive());
    assert!(fixture.run_text(&["doctor"]).contains("hook-failed"));
    assert!(fixture.log().lines().count() < 100, "the output of a hook in the log is limited");
}

#[test]
fn a_hook_that_gets_only_the_latest_change_does_not_affect_other_hooks() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let hook_output = lab.path().join("hook-output");
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!("echo $1 $VIPWATCH_TO >> {}", hook_output.display()),
    );
    let hook = |name: &str, deliver: &str| {
        let program = hook.display();
        format!("[[notify.hook]]\nprogram = [\"{program}\", \"{name}\"]\ndeliver = \"{deliver}\"\n")
    };
    fixture.configure(&format!(
        "[[notify]]\n{}{}",
        hook("first", "every"),
        hook("second", "latest")
    ));
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("both hooks for the last change", || {
        let text = read(&hook_output);
        let all = ["first backup\n", "first primary\n", "second primary\n"];
        all.iter().all(|line| text.contains(line)).then_some(())
    });
}

#[test]
fn a_restart_after_history_retention_runs_no_hook_for_an_unchanged_role() {
    let lab = Lab::new();
    let (netns, fixture) =
        fixture_with(&lab, &[vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.3/24"])]);
    let hook_output = lab.path().join("hook-output");
    let text = format!("echo $VIPWATCH_TO >> {}", hook_output.display());
    let hook = write_hook(&lab.path().join("hook"), &text);
    fixture.configure(&format!(
        "[history]\nkeep_transitions = 1\n[[notify]]\ninstances = \"VI_*\"\nhook = {{ program = \"{}\" }}\n",
        hook.display()
    ));
    let node = fixture.start();
    wait_for("the delivery to be recorded", || {
        let of_hook =
            |change: &Value| change["id"] == "VI_1" && change["latencies"]["hook"].is_i64();
        transitions(&fixture, &[]).iter().any(of_hook).then_some(())
    });
    netns.ip("address add 192.0.2.3/24 dev eth0");
    wait_for("the other instance", || (role(&fixture, "DB") == "primary").then_some(()));
    // The node deletes old history when it stops: only the last change is left.
    assert!(node.stop().success());
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the hook", || read(&hook_output).contains("primary").then_some(()));
    assert_eq!(
        read(&hook_output),
        "backup\nprimary\n",
        "hooks run in order: a second backup would come before primary"
    );
}

#[test]
fn a_hook_that_hangs_for_many_instances_does_not_delay_another_hook() {
    let lab = Lab::new();
    // Eight: the number of hooks that may run at the same time.
    let mut instances: Vec<String> = (1..=8)
        .map(|n| instance_conf(&format!("HANG_{n}"), "eth0", &[&format!("192.0.2.10{n}/24")]))
        .collect();
    instances.push(vi_1_conf());
    let (netns, fixture) = fixture_with(&lab, &instances);
    let (hanging, hook_output) = (lab.path().join("hanging"), lab.path().join("hook-output"));
    let hangs = write_hook(
        &lab.path().join("hangs"),
        &format!("echo $$ >> {}; exec sleep 600", hanging.display()),
    );
    let quick = write_hook(
        &lab.path().join("quick"),
        &format!("echo $VIPWATCH_TO >> {}", hook_output.display()),
    );
    fixture.configure(&format!(
        "[[notify]]\ninstances = \"HANG_*\"\nhook = {{ program = \"{}\", timeout = \"10m\" }}\n\
         [[notify]]\ninstances = \"VI_1\"\nhook = {{ program = \"{}\", on = \"primary\" }}\n",
        hangs.display(),
        quick.display()
    ));
    let _node = fixture.start();
    wait_for("all eight hooks to hang", || (read(&hanging).lines().count() == 8).then_some(()));
    netns.ip(ADD_VIP);
    wait_for_content(&hook_output, "primary");
}

#[test]
fn a_terminated_hook_runs_again_although_another_hook_of_the_instance_waits() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let hook_output = lab.path().join("hook-output");
    // The first run sleeps until it is terminated; the second one ends at once.
    let again =
        format!("echo $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] && exit 0", hook_output.display());
    let stopped = write_hook(&lab.path().join("stopped"), &format!("{again}; exec sleep 600"));
    let other = write_hook(&lab.path().join("other"), "true");
    fixture.configure(&format!(
        "[[notify]]\n[[notify.hook]]\nprogram = \"{}\"\ntimeout = \"10m\"\ndeliver = \"latest\"\n\
         [[notify.hook]]\nprogram = \"{}\"\n",
        stopped.display(),
        other.display()
    ));
    let _node = fixture.start();
    let pid = wait_for("the first run", || read(&hook_output).lines().next().map(str::to_owned));
    vipwatch_testkit::run(std::process::Command::new("kill").args(["-TERM", &pid]));
    wait_for("the second run", || (read(&hook_output).lines().count() == 2).then_some(()));
}

#[test]
fn a_hook_that_fails_after_a_reload_has_removed_it_is_no_finding() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (began, gate) = (lab.path().join("began"), lab.path().join("gate"));
    let text = format!(
        "echo began > {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        began.display(),
        gate.display()
    );
    let hook = write_hook(&lab.path().join("hook"), &text);
    fixture.configure(&format!(
        "[[notify]]\nhook = {{ program = \"{}\", timeout = \"10m\" }}\n",
        hook.display()
    ));
    let node = fixture.start();
    wait_for_content(&began, "began");
    fixture.configure("");
    node.reload();
    write(&gate, "");
    fixture.wait_for_log("the program ended with code 7");
    assert_eq!(
        fixture.run(&["doctor"]).status.code(),
        Some(0),
        "{}",
        fixture.run_text(&["doctor"])
    );
}

#[test]
fn a_link_name_with_a_command_does_not_run_in_a_script_that_evaluates_a_variable() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[]);
    let (output, input) = (lab.path().join("output"), lab.path().join("input"));
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!(
            "sh -c \"echo \\\"$VIPWATCH_REASON\\\"\" > {0}.new 2>&1; mv {0}.new {0}; cat > {1}.new; mv {1}.new {1}",
            output.display(),
            input.display()
        ),
    );
    fixture.configure(&format!(
        "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1/24 dev $(id)\"]\n\
         [[notify]]\nhook = {{ program = \"{}\" }}\n",
        hook.display()
    ));
    let _node = fixture.start();
    let change: Value = wait_for("the hook", || serde_json::from_str(&read(&input)).ok());
    assert!(change["reason"].as_str().unwrap().contains("$(id)"), "{change}");
    let output = read(&output);
    assert!(output.contains("(id)") && !output.contains("uid="), "{output}");
}
