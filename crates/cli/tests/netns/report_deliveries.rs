// SPDX-License-Identifier: Apache-2.0
//! Deliveries of the receiver: settled states go to hooks, webhooks, an upstream and the IPv6 settings of routers.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, run, stays, wait_for};

use crate::http_server::HttpServer;
use crate::receiver_process::{ReceiverProcess, configure, report};
use crate::support::{read, write_hook};

/// A hook that appends its input, one line for each run, to a file; returns the paths of the hook and the file.
fn recording_hook(lab: &Lab) -> (String, std::path::PathBuf) {
    let hook_output = lab.path().join("hook-output");
    let hook = write_hook(&lab.path().join("hook"), &format!("cat >> {}", hook_output.display()));
    (hook.display().to_string(), hook_output)
}

/// The JSON values in a file, one on each line.
fn json_lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn hooks_and_webhooks_get_each_settled_state() {
    let lab = Lab::new();
    let (variables, server) = (lab.path().join("variables"), HttpServer::new(&[503]));
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!("env | grep ^VIPWATCH_ | sort > {0}.new; mv {0}.new {0}", variables.display()),
    );
    let text = format!(
        "[receiver]\ninterval = \"0s\"\n\
         [[receiver.hook]]\nprogram = [\"{}\"]\non = \"primary\"\n[[receiver.webhook]]\nurl = \"{}\"\n",
        hook.display(),
        server.url
    );
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for state in ["backup", "master"] {
        assert_eq!(report(lab.path(), "r1", state), Some(200));
    }
    wait_for("the webhook", || (server.accepted().last()? == "primary").then_some(()));
    let body = server.accepted_bodies().pop().unwrap();
    assert_eq!((&body["schema"], &body["id"]), (&"vipwatch.report/2".into(), &"r1".into()));
    assert_eq!((&body["from"], &body["state"]), (&"backup".into(), &"active".into()));
    let variables = wait_for("the hook", || Some(read(&variables)).filter(|text| !text.is_empty()));
    for expected in ["VIPWATCH_ID=r1", "VIPWATCH_TO=primary", "VIPWATCH_STATE=active"] {
        assert!(variables.lines().any(|line| line == expected), "{expected}: {variables}");
    }
    wait_for("the webhook to be concluded", || {
        (receiver.target("webhook")["pending"] == 0).then_some(())
    });
    wait_for("the hook to be concluded", || {
        (receiver.target("hook")["pending"] == 0).then_some(())
    });
    assert_eq!(receiver.target("hook")["delivered"], 1, "it runs for primary only");
    assert!(
        !receiver.status().to_string().contains("secret"),
        "the query part of the URL is not shown"
    );
}

#[test]
fn a_pending_webhook_is_delivered_after_a_kill_and_a_finished_hook_does_not_run_again() {
    let lab = Lab::new();
    let ((hook, hook_output), server) = (recording_hook(&lab), HttpServer::new(&[503; 1000]));
    let text = format!(
        "[receiver]\ninterval = \"0s\"\n[[receiver.hook]]\nprogram = [\"{hook}\"]\n\
         [[receiver.webhook]]\nurl = \"{}\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for (id, state) in [("r1", "primary"), ("r2", "backup"), ("r1", "backup"), ("r1", "primary")] {
        assert_eq!(report(lab.path(), id, state), Some(200));
    }
    let error = wait_for("the backlog", || {
        let webhook = receiver.target("webhook");
        let error = webhook["failing"][0]["error"].as_str().map(str::to_owned);
        error.filter(|_| webhook["pending"] == 2)
    });
    assert_eq!(error, "the server answered with status 503");
    wait_for("the hook", || (json_lines(&hook_output).len() == 4).then_some(()));
    wait_for("the hook to be concluded", || {
        (receiver.target("hook")["pending"] == 0).then_some(())
    });
    // A run of the hook that is not stored on the disk is repeated after a kill. This test waits until all are stored.
    let sum = |file: &str, query: &str| {
        let mut sqlite = std::process::Command::new("sqlite3");
        run(sqlite.arg(lab.path().join("receiver").join(file)).arg(query)).trim().to_owned()
    };
    wait_for("the stored deliveries", || {
        let of_hook = "SELECT sum(seq) FROM delivery WHERE target LIKE '%hook'";
        let deliveries = sum("receiver/history.sqlite", of_hook);
        let settled = sum("journal.sqlite", "SELECT sum(acted) FROM settled");
        // The last sequence numbers: 4 for r1 and 2 for r2.
        (deliveries == "6" && settled == "6").then_some(())
    });
    receiver.kill();
    server.accept_all();
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    wait_for("the pending deliveries", || (server.accepted_bodies().len() == 2).then_some(()));
    let mut states: Vec<Value> =
        server.accepted_bodies().iter().map(|body| body["to"].clone()).collect();
    states.sort_by_key(ToString::to_string);
    assert_eq!(states, ["backup", "primary"], "the last state of each router");
    wait_for("no pending delivery", || (receiver.target("webhook")["pending"] == 0).then_some(()));
    stays(Duration::from_secs(1), "the hook does not run again", || {
        json_lines(&hook_output).len() == 4
    });
}

/// The value that a query of the receiver's journal returns.
fn journal_value(lab: &Lab, query: &str) -> String {
    let mut sqlite = std::process::Command::new("sqlite3");
    run(sqlite.arg(lab.path().join("receiver/journal.sqlite")).arg(query)).trim().to_owned()
}

/// Starts a receiver with `server` as a webhook for every report, which fails, and reports `count` states of `r1`.
fn start_with_undelivered(
    lab: &Lab,
    server: &HttpServer,
    count: usize,
    limit: usize,
) -> ReceiverProcess {
    let text = format!(
        "[history]\nkeep_undelivered = {limit}\n[receiver]\ninterval = \"0s\"\n\
         [[receiver.webhook]]\nname = \"every\"\nurl = \"{}\"\ndeliver = \"every\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for state in ["primary", "backup"].iter().cycle().take(count) {
        assert_eq!(report(lab.path(), "r1", state), Some(200));
    }
    wait_for("the settled reports", || {
        let kept = journal_value(lab, "SELECT count(*) FROM undelivered");
        (kept == count.to_string()).then_some(())
    });
    receiver
}

#[test]
fn a_target_for_every_report_gets_all_of_them_in_order_after_a_kill() {
    // More than the 64 that are kept in memory.
    let count = 150;
    for is_killed in [false, true] {
        let lab = Lab::new();
        let server = HttpServer::new(&vec![503; 10_000]);
        let mut receiver = start_with_undelivered(&lab, &server, count, 100_000);
        if is_killed {
            receiver.kill();
            receiver = ReceiverProcess::start(lab.path(), &[]);
        }
        server.accept_all();
        wait_for("every report", || (server.accepted().len() >= count).then_some(()));
        let seqs: Vec<Value> =
            server.accepted_bodies().iter().map(|body| body["seq"].clone()).collect();
        assert_eq!(seqs, (1..=count).map(Value::from).collect::<Vec<_>>());
        assert_eq!(server.accepted_bodies()[1]["from"], "primary");
        wait_for("the conclusion", || (receiver.target("webhook")["pending"] == 0).then_some(()));
        assert_eq!(receiver.target("webhook")["dropped"], 0);
    }
}

#[test]
fn reports_beyond_the_limit_are_counted_as_missed() {
    let lab = Lab::new();
    let server = HttpServer::new(&vec![503; 10_000]);
    let receiver = start_with_undelivered(&lab, &server, 10, 3);
    receiver.kill();
    // The journal is cleaned up at the start.
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    wait_for("the cleanup", || {
        (journal_value(&lab, "SELECT group_concat(seq) FROM undelivered") == "8,9,10").then_some(())
    });
    receiver.kill();
    server.accept_all();
    let _receiver = ReceiverProcess::start(lab.path(), &[]);
    wait_for("the reports that are left", || (server.accepted().len() >= 3).then_some(()));
    let bodies = server.accepted_bodies();
    let numbers: Vec<_> = bodies.iter().map(|body| (&body["seq"], &body["missed"])).collect();
    let none = Value::Null;
    assert_eq!(numbers, [(&8.into(), &7.into()), (&9.into(), &none), (&10.into(), &none)]);
}

#[test]
fn reports_are_delivered_after_the_journal_was_deleted() {
    let lab = Lab::new();
    let server = HttpServer::new(&[]);
    let text =
        format!("[receiver]\ninterval = \"0s\"\n[[receiver.webhook]]\nurl = \"{}\"\n", server.url);
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for (count, state) in (1..).zip(["primary", "backup", "primary"]) {
        assert_eq!(report(lab.path(), "r1", state), Some(200));
        wait_for("the webhook", || (server.accepted().len() == count).then_some(()));
    }
    receiver.kill();
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(lab.path().join(format!("receiver/journal.sqlite{end}")));
    }
    let _receiver = ReceiverProcess::start(lab.path(), &[]);
    assert_eq!(report(lab.path(), "r1", "backup"), Some(200));
    wait_for("the webhook", || {
        (server.accepted() == ["primary", "backup", "primary", "backup"]).then_some(())
    });
}

#[test]
fn an_upstream_gets_the_first_state_at_once_and_later_states_in_batches() {
    let lab = Lab::new();
    let server = HttpServer::new(&[]);
    let text = format!(
        "[receiver]\ninterval = \"0s\"\n[receiver.upstream]\nurl = \"{}\"\ninterval = \"1s\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    assert_eq!(report(lab.path(), "r0", "primary"), Some(200));
    wait_for("the first state", || (server.accepted_bodies().len() == 1).then_some(()));
    let first = server.accepted_bodies().remove(0);
    assert_eq!(first["schema"], "vipwatch.states/1");
    assert_eq!(first["states"], json!({ "r0": "active" }));
    server.answer_next(&[500, 503]);
    let began = std::time::Instant::now();
    for number in 0..50 {
        for state in ["primary", "fault"] {
            assert_eq!(report(lab.path(), &format!("r{number}"), state), Some(200));
        }
    }
    wait_for("the other states", || (receiver.target("upstream")["pending"] == 0).then_some(()));
    assert_eq!(receiver.target("upstream")["failing"], json!([]));
    let bodies = server.accepted_bodies();
    // At most one post each second; without batches there would be a hundred.
    let most = 4 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(bodies.len() <= most, "states are sent in batches: {bodies:?}");
    let mut known = serde_json::Map::new();
    for body in &bodies {
        known.extend(body["states"].as_object().unwrap().clone());
    }
    assert_eq!(known.len(), 50);
    assert!(known.values().all(|state| state == "standby"), "{known:?}");
    assert!(receiver.target("upstream")["failures"].as_u64() > Some(0));
    receiver.wait_for_log("the server answered with status");
}

#[test]
fn a_reload_of_the_receiver_that_changes_a_webhook_keeps_its_queue() {
    let lab = Lab::new();
    let server = HttpServer::paused(&[]);
    let text = |timeout: &str| {
        format!(
            "[receiver]\ninterval = \"0s\"\n[[receiver.webhook]]\nurl = \"{}\"\ndeliver = \"every\"\n\
             timeout = \"{timeout}\"\n",
            server.url
        )
    };
    configure(lab.path(), Some(&text("5m")));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for (count, state) in (1..).zip(["primary", "backup", "primary"]) {
        assert_eq!(report(lab.path(), "r1", state), Some(200));
        wait_for("the state to settle", || {
            (receiver.log().matches("settled").count() == count).then_some(())
        });
    }
    configure(lab.path(), Some(&text("4m")));
    receiver.reload();
    receiver.wait_for_log("configuration reloaded");
    server.resume();
    let all = ["primary", "backup", "primary"];
    wait_for("every state", || (server.accepted() == all).then_some(()));
}

/// Starts a receiver with `server` as its upstream, and reports `r0` to `r9` as primary.
fn start_with_ten_reports(lab: &Lab, server: &HttpServer) -> ReceiverProcess {
    let text = format!(
        "[receiver]\ninterval = \"0s\"\n[receiver.upstream]\nurl = \"{}\"\ninterval = \"0s\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for number in 0..10 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "primary"), Some(200));
    }
    receiver
}

#[test]
fn an_upstream_that_rejects_one_router_gets_all_others() {
    let lab = Lab::new();
    let server = HttpServer::new(&[503; 1000]);
    let receiver = start_with_ten_reports(&lab, &server);
    wait_for("ten pending states", || (receiver.target("upstream")["pending"] == 10).then_some(()));
    // From now on the server accepts each post that does not contain this router.
    server.reject_bodies_with("r7");
    server.accept_all();
    wait_for("no pending state", || (receiver.target("upstream")["pending"] == 0).then_some(()));
    let known = || -> std::collections::BTreeSet<String> {
        let bodies = server.accepted_bodies();
        let states = bodies.iter().flat_map(|body| body["states"].as_object().unwrap().keys());
        states.cloned().collect()
    };
    let expected: Vec<String> = (0..10).filter(|n| *n != 7).map(|n| format!("r{n}")).collect();
    assert_eq!(known().into_iter().collect::<Vec<_>>(), expected);
    receiver.wait_for_log("given up");
    let failing = receiver.target("upstream")["failing"].clone();
    assert_eq!(failing.as_array().map(Vec::len), Some(1), "only r7 fails: {failing}");
    assert!(failing.to_string().contains("r7"), "{failing}");
    // The rejected router does not block later ones.
    assert_eq!(report(lab.path(), "later", "primary"), Some(200));
    wait_for("the next router", || known().contains("later").then_some(()));
}

#[test]
fn an_upstream_that_rejects_every_post_for_some_time_gets_every_router() {
    for status in [401, 403, 404] {
        let lab = Lab::new();
        let server = HttpServer::new(&[status; 1000]);
        let receiver = start_with_ten_reports(&lab, &server);
        receiver.wait_for_log(&format!("status {status}"));
        wait_for("ten pending states", || {
            (receiver.target("upstream")["pending"] == 10).then_some(())
        });
        server.accept_all();
        wait_for("no pending state", || {
            (receiver.target("upstream")["pending"] == 0).then_some(())
        });
        let bodies = server.accepted_bodies();
        let states = bodies.iter().flat_map(|body| body["states"].as_object().unwrap().keys());
        let known: std::collections::BTreeSet<&String> = states.collect();
        assert_eq!(known.len(), 10, "{known:?}");
        assert_eq!(receiver.target("upstream")["failing"], json!([]));
    }
}

#[test]
fn a_router_forwards_ipv6_while_it_is_primary() {
    let lab = Lab::new();
    let id = format!("r{}", lab.number());
    let name = format!("qrouter-{id}");
    run(std::process::Command::new("ip").args(["netns", "add", &name]));
    let setting = |key: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{key}");
        let mut command = std::process::Command::new("ip");
        run(command.args(["netns", "exec", &name, "cat", &path])).trim().to_owned()
    };
    let mut add = std::process::Command::new("ip");
    run(add.args(["-n", &name]).args("link add qg-1 type veth peer name other".split(' ')));
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\nipv6_params = true\n"));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    let params =
        || [setting("all/forwarding"), setting("qg-1/accept_ra"), setting("qg-1/forwarding")];
    assert_eq!(report(lab.path(), &id, "primary"), Some(200));
    wait_for("the settings of a primary", || (params() == ["1", "2", "1"]).then_some(()));
    assert_eq!(report(lab.path(), &id, "backup"), Some(200));
    wait_for("the settings of a backup", || (params() == ["1", "0", "0"]).then_some(()));
    // A router with a configured default route does not accept router advertisements.
    let conf = "vrrp_instance VR_1 {\n interface ha-1\n virtual_router_id 1\n virtual_ipaddress {\n  169.254.0.1/24\n }\n \
                virtual_routes {\n  ::/0 via fe80::1 dev qg-1\n }\n}\n";
    crate::support::write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
    assert_eq!(report(lab.path(), &id, "primary"), Some(200));
    wait_for("the settings of a primary with a default route", || {
        (params() == ["1", "0", "1"]).then_some(())
    });
    // The kernel changes all/forwarding and qg-1/forwarding together, so the values are right before the outlet is done.
    wait_for("no pending delivery", || (receiver.target("ipv6")["pending"] == 0).then_some(()));
    // Without a gateway link the outlet sets all/forwarding only.
    run(std::process::Command::new("ip").args(["-n", &name, "link", "del", "qg-1"]));
    assert_eq!(report(lab.path(), &id, "backup"), Some(200));
    wait_for("no pending delivery", || (receiver.target("ipv6")["pending"] == 0).then_some(()));
    assert_eq!(
        (setting("all/forwarding"), &receiver.target("ipv6")["failures"]),
        ("1".to_owned(), &0.into())
    );
    // A router without a namespace on this node is given up with a log line.
    assert_eq!(report(lab.path(), "elsewhere", "primary"), Some(200));
    receiver.wait_for_log("namespace called qrouter-elsewhere");
    wait_for("no pending delivery", || (receiver.target("ipv6")["pending"] == 0).then_some(()));
    run(std::process::Command::new("ip").args(["netns", "del", &name]));
}

#[test]
fn a_hook_that_is_terminated_with_the_receiver_runs_again_after_the_restart() {
    // The first program is ended by SIGTERM itself; the second one handles SIGTERM and exits with code 3.
    for first_run in ["exec sleep 600", "while :; do sleep 0.1; done"] {
        let lab = Lab::new();
        let hook_output = lab.path().join("hook-output");
        // The first run does not end by itself; the second one ends at once.
        let again =
            format!("echo $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] && exit 0", hook_output.display());
        let text = format!("trap 'exit 3' TERM; {again}; {first_run}");
        let hook = write_hook(&lab.path().join("hook"), &text);
        let text = format!(
            "[receiver]\ninterval = \"0s\"\n[[receiver.hook]]\nprogram = [\"{}\"]\ntimeout = \"10m\"\n",
            hook.display()
        );
        configure(lab.path(), Some(&text));
        let mut receiver = ReceiverProcess::start(lab.path(), &[]);
        assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
        let pid =
            wait_for("the first run", || read(&hook_output).lines().next().map(str::to_owned));
        // A service manager sends SIGTERM to all processes of the service.
        let receiver_pid = receiver.child.id().to_string();
        run(std::process::Command::new("kill").args(["-TERM", &receiver_pid]));
        receiver.wait_for_log("shutting down");
        run(std::process::Command::new("kill").args(["-TERM", &pid]));
        receiver.child.wait().unwrap();
        let receiver = ReceiverProcess::start(lab.path(), &[]);
        wait_for("the second run", || (read(&hook_output).lines().count() == 2).then_some(()));
        wait_for("no pending delivery", || (receiver.target("hook")["pending"] == 0).then_some(()));
    }
}

#[test]
fn config_show_lists_all_settings_and_config_check_refuses_the_own_socket_as_a_target() {
    let lab = Lab::new();
    let text = "[receiver]\n[[receiver.hook]]\nprogram = [\"/bin/true\"]\n\
                [receiver.upstream]\nurl = \"http://127.0.0.1:9/s?token=x\"\n";
    configure(lab.path(), Some(text));
    let config = lab.path().join("vipwatch.toml");
    let config_command = |args: &[&str]| {
        let mut command = std::process::Command::new(crate::support::PROGRAM);
        let output = output_of(command.arg("config").args(args).arg(&config));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let shown = config_command(&["show", "--config"]);
    let value = |key: &str| {
        let mut lines = shown.lines().filter_map(|line| line.strip_prefix(key));
        lines.next().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(value("receiver.hook.1.program "), "/bin/true");
    assert_eq!(value("receiver.upstream.url "), "http://127.0.0.1:9/…");
    let checked = config_command(&["check"]);
    assert!(checked.contains("monitors report to /var/lib/neutron/keepalived"), "{checked}");
    let socket = "/var/lib/neutron/keepalived-state-change";
    let text = format!("{text}[[notify]]\norigin = \"neutron\"\nagent = \"{socket}\"\n");
    configure(lab.path(), Some(&text));
    assert!(
        config_command(&["check"]).contains("its own receiver"),
        "{}",
        config_command(&["check"])
    );
}

#[test]
fn a_reload_applies_a_correct_configuration_and_ignores_a_wrong_one() {
    let lab = Lab::new();
    let (hook, hook_output) = recording_hook(&lab);
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\n"));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    // A request that began before the reload is still read to its end.
    let mut begun =
        std::os::unix::net::UnixStream::connect(crate::receiver_process::socket(lab.path()))
            .unwrap();
    let request = "POST / HTTP/1.1\r\nX-Neutron-Router-Id: r2\r\nX-Neutron-State: backup\r\n";
    std::io::Write::write_all(&mut begun, request.as_bytes()).unwrap();
    let text =
        format!("[receiver]\ninterval = \"0s\"\n[[receiver.hook]]\nprogram = [\"{hook}\"]\n");
    configure(lab.path(), Some(&text));
    receiver.reload();
    std::io::Write::write_all(&mut begun, b"\r\n").unwrap();
    let has_run = |id: &str, state: &str| {
        json_lines(&hook_output).iter().any(|line| line["id"] == id && line["to"] == state)
    };
    wait_for("the new hook to get the current state", || has_run("r1", "primary").then_some(()));
    wait_for("the report that began before", || has_run("r2", "backup").then_some(()));
    assert_eq!(receiver.status()["accepted"], 2, "counters survive a reload");
    configure(lab.path(), Some("[receiver]\nintervall = \"0s\"\n"));
    receiver.reload();
    let problem = "there is no key intervall in receiver; did you mean interval?";
    wait_for("the problem in the log", || receiver.log().contains(problem).then_some(()));
    assert_eq!(report(lab.path(), "r3", "primary"), Some(200));
    wait_for("the hook", || {
        json_lines(&hook_output).iter().any(|line| line["id"] == "r3").then_some(())
    });
}

#[test]
fn a_reload_of_the_receiver_process_and_its_error_are_in_the_version_document() {
    let lab = Lab::new();
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\n"));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    let client = vipwatch_api::client::Client::new(lab.path().join("agent.sock"));
    let last_error = |what: &str| {
        wait_for(what, || {
            let last_reload = client.version().unwrap().last_reload?;
            Some(last_reload.error).filter(|error| error.is_some() == (what == "the error"))
        })
    };
    assert_eq!(client.config().unwrap().settings["receiver"]["interval"], "0s");
    assert_eq!(client.version().unwrap().last_reload, None);
    configure(lab.path(), Some("[receiver]\nintervall = \"0s\"\n"));
    receiver.reload();
    let error = last_error("the error").unwrap_or_default();
    assert!(error.contains("intervall"), "{error}");
    configure(lab.path(), Some("[receiver]\ninterval = \"7s\"\n"));
    receiver.reload();
    assert_eq!(last_error("the reload"), None);
    assert_eq!(client.config().unwrap().settings["receiver"]["interval"], "7s");
}
