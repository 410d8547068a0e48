//! What `vipwatch agent` does with what settles: programs, addresses, an upstream, the routers' namespaces.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, run, stays, wait_for};

use crate::notify::{program, read};
use crate::receiver::{ReceiverProcess, configure, report};
use crate::server::Server;

/// A program that writes down its input, a line each.
fn hook(lab: &Lab) -> (String, std::path::PathBuf) {
    let said = lab.path().join("said");
    let hook = program(&lab.path().join("hook"), &format!("cat >> {}", said.display()));
    (hook.display().to_string(), said)
}

fn lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn programs_and_addresses_are_told_what_settles() {
    let lab = Lab::new();
    let (variables, server) = (lab.path().join("variables"), Server::new(&[503]));
    let hook = program(
        &lab.path().join("hook"),
        &format!("env | grep ^VIPWATCH_ | sort > {0}.new; mv {0}.new {0}", variables.display()),
    );
    let text = format!(
        "[agent]\ninterval = \"0s\"\n\
         [[agent.hook]]\nprogram = [\"{}\"]\non = \"primary\"\n[[agent.webhook]]\nurl = \"{}\"\n",
        hook.display(),
        server.url
    );
    configure(lab.path(), Some(&text));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    for word in ["backup", "master"] {
        assert_eq!(report(lab.path(), "r1", word), Some(200));
    }
    wait_for("the address", || (server.said().last()? == "2 primary").then_some(()));
    let told = server.bodies().pop().unwrap();
    assert_eq!((&told["schema"], &told["id"]), (&"vipwatch.claim/1".into(), &"r1".into()));
    assert_eq!((&told["from"], &told["state"]), (&"backup".into(), &"active".into()));
    let variables =
        wait_for("the program", || Some(read(&variables)).filter(|text| !text.is_empty()));
    for expected in ["VIPWATCH_ID=r1", "VIPWATCH_TO=primary", "VIPWATCH_STATE=active"] {
        assert!(variables.lines().any(|line| line == expected), "{expected}: {variables}");
    }
    wait_for("the counts", || (agent.duty("webhook")["pending"] == 0).then_some(()));
    wait_for("its note", || (agent.duty("hook")["pending"] == 0).then_some(()));
    assert_eq!(agent.duty("hook")["told"], 1, "only of what it wants to hear");
    assert!(!agent.status().to_string().contains("secret"), "what may be secret is not shown");
}

#[test]
fn what_was_owed_when_it_was_killed_is_told_by_the_next_and_nothing_is_told_twice() {
    let lab = Lab::new();
    let ((hook, said), server) = (hook(&lab), Server::new(&[503; 1000]));
    let text = format!(
        "[agent]\ninterval = \"0s\"\n[[agent.hook]]\nprogram = [\"{hook}\"]\n\
         [[agent.webhook]]\nurl = \"{}\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    for (id, word) in [("r1", "primary"), ("r2", "backup"), ("r1", "backup"), ("r1", "primary")] {
        assert_eq!(report(lab.path(), id, word), Some(200));
    }
    let error = wait_for("the backlog", || {
        let webhook = agent.duty("webhook");
        let error = webhook["failing"][0]["error"].as_str().map(str::to_owned);
        error.filter(|_| webhook["pending"] == 2)
    });
    assert_eq!(error, "it answered with status 503");
    wait_for("the program", || (lines(&said).len() == 4).then_some(()));
    wait_for("its note", || (agent.duty("hook")["pending"] == 0).then_some(()));
    // What is not noted on the disk is told once more, which is not what this test is about.
    let notes = "SELECT (SELECT sum(seq) FROM told WHERE party LIKE 'hook%') || ' ' || \
                 (SELECT sum(acted) FROM settled)";
    wait_for("its notes on the disk", || {
        let mut sqlite = std::process::Command::new("sqlite3");
        let count = run(sqlite.arg(lab.path().join("claims/claims.sqlite")).arg(notes));
        // The fourth report about the one, and the second about the other.
        (count.trim() == "6 6").then_some(())
    });
    agent.kill();
    server.take_all();
    let agent = ReceiverProcess::start(lab.path(), &[]);
    wait_for("what was owed", || (server.bodies().len() == 2).then_some(()));
    let mut told: Vec<Value> = server.bodies().iter().map(|one| one["to"].clone()).collect();
    told.sort_by_key(ToString::to_string);
    assert_eq!(told, ["backup", "primary"], "the last of each");
    wait_for("nothing to be owed", || (agent.duty("webhook")["pending"] == 0).then_some(()));
    stays(Duration::from_secs(1), "the program was told", || lines(&said).len() == 4);
}

#[test]
fn an_upstream_is_told_the_first_at_once_then_all_at_once_and_until_it_takes_it() {
    let lab = Lab::new();
    let server = Server::new(&[]);
    let text = format!(
        "[agent]\ninterval = \"0s\"\n[agent.upstream]\nurl = \"{}\"\ninterval = \"1s\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    assert_eq!(report(lab.path(), "r0", "primary"), Some(200));
    wait_for("the first", || (server.bodies().len() == 1).then_some(()));
    let first = server.bodies().remove(0);
    assert_eq!(first["schema"], "vipwatch.states/1");
    assert_eq!(first["states"], json!({ "r0": "active" }));
    server.answers.lock().unwrap().extend([500, 503]);
    let began = std::time::Instant::now();
    for number in 0..50 {
        for word in ["primary", "fault"] {
            assert_eq!(report(lab.path(), &format!("r{number}"), word), Some(200));
        }
    }
    wait_for("the others", || (agent.duty("upstream")["pending"] == 0).then_some(()));
    assert_eq!(agent.duty("upstream")["failing"], json!([]));
    let bodies = server.bodies();
    // One each second, while there is something to tell; one by one they would be a hundred.
    let most = 4 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(bodies.len() <= most, "not one by one: {bodies:?}");
    let mut known = serde_json::Map::new();
    for body in &bodies {
        known.extend(body["states"].as_object().unwrap().clone());
    }
    assert_eq!(known.len(), 50);
    assert!(known.values().all(|state| state == "standby"), "{known:?}");
    assert!(agent.duty("upstream")["failures"].as_u64() > Some(0));
    agent.wait_for_log("it answered with status");
}

#[test]
fn a_reload_of_the_receiver_that_changes_a_webhook_keeps_its_queue() {
    let lab = Lab::new();
    let server = Server::shut(&[]);
    let text = |timeout: &str| {
        format!(
            "[agent]\ninterval = \"0s\"\n[[agent.webhook]]\nurl = \"{}\"\ndeliver = \"every\"\n\
             timeout = \"{timeout}\"\n",
            server.url
        )
    };
    configure(lab.path(), Some(&text("5m")));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    for (count, word) in (1..).zip(["primary", "backup", "primary"]) {
        assert_eq!(report(lab.path(), "r1", word), Some(200));
        wait_for("it to settle", || {
            (agent.log().matches("settled").count() == count).then_some(())
        });
    }
    configure(lab.path(), Some(&text("4m")));
    agent.reload();
    agent.wait_for_log("the configuration was read again");
    server.open();
    let all = ["1 primary", "2 backup", "3 primary"];
    wait_for("every state", || (server.said() == all).then_some(()));
}

/// A receiver whose upstream is `server`, and the reports of ten routers, `r0` to `r9`.
fn with_ten_reports(lab: &Lab, server: &Server) -> ReceiverProcess {
    let text = format!(
        "[agent]\ninterval = \"0s\"\n[agent.upstream]\nurl = \"{}\"\ninterval = \"0s\"\n",
        server.url
    );
    configure(lab.path(), Some(&text));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    for number in 0..10 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "primary"), Some(200));
    }
    agent
}

#[test]
fn an_upstream_that_rejects_one_router_is_told_of_all_others() {
    let lab = Lab::new();
    let server = Server::new(&[503; 1000]);
    let agent = with_ten_reports(&lab, &server);
    wait_for("all to wait", || (agent.duty("upstream")["pending"] == 10).then_some(()));
    // From now on the server takes everything, except whatever contains this router.
    server.reject_whatever_contains("r7");
    server.take_all();
    wait_for("nothing to wait", || (agent.duty("upstream")["pending"] == 0).then_some(()));
    let known = || -> std::collections::BTreeSet<String> {
        let bodies = server.bodies();
        let states = bodies.iter().flat_map(|body| body["states"].as_object().unwrap().keys());
        states.cloned().collect()
    };
    let expected: Vec<String> = (0..10).filter(|n| *n != 7).map(|n| format!("r{n}")).collect();
    assert_eq!(known().into_iter().collect::<Vec<_>>(), expected);
    agent.wait_for_log("given up");
    let failing = agent.duty("upstream")["failing"].clone();
    assert_eq!(failing.as_array().map(Vec::len), Some(1), "only the one is failing: {failing}");
    assert!(failing.to_string().contains("r7"), "{failing}");
    // The upstream is not blocked.
    assert_eq!(report(lab.path(), "later", "primary"), Some(200));
    wait_for("the next router", || known().contains("later").then_some(()));
}

#[test]
fn an_upstream_that_forbids_every_post_for_a_while_is_told_of_every_router() {
    for status in [401, 403, 404] {
        let lab = Lab::new();
        let server = Server::new(&[status; 1000]);
        let agent = with_ten_reports(&lab, &server);
        agent.wait_for_log(&format!("status {status}"));
        wait_for("all to wait", || (agent.duty("upstream")["pending"] == 10).then_some(()));
        server.take_all();
        wait_for("nothing to wait", || (agent.duty("upstream")["pending"] == 0).then_some(()));
        let bodies = server.bodies();
        let states = bodies.iter().flat_map(|body| body["states"].as_object().unwrap().keys());
        let known: std::collections::BTreeSet<&String> = states.collect();
        assert_eq!(known.len(), 10, "{known:?}");
        assert_eq!(agent.duty("upstream")["failing"], json!([]));
    }
}

#[test]
fn a_router_forwards_ipv6_while_it_is_primary() {
    let lab = Lab::new();
    let id = format!("r{}", lab.number());
    let name = format!("qrouter-{id}");
    run(std::process::Command::new("ip").args(["netns", "add", &name]));
    let set = |key: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{key}");
        let mut command = std::process::Command::new("ip");
        run(command.args(["netns", "exec", &name, "cat", &path])).trim().to_owned()
    };
    let mut add = std::process::Command::new("ip");
    run(add.args(["-n", &name]).args("link add qg-1 type veth peer name other".split(' ')));
    configure(lab.path(), Some("[agent]\ninterval = \"0s\"\nipv6_params = true\n"));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    let params = || [set("all/forwarding"), set("qg-1/accept_ra"), set("qg-1/forwarding")];
    assert_eq!(report(lab.path(), &id, "primary"), Some(200));
    wait_for("a primary", || (params() == ["1", "2", "1"]).then_some(()));
    assert_eq!(report(lab.path(), &id, "backup"), Some(200));
    wait_for("a backup", || (params() == ["1", "0", "0"]).then_some(()));
    // With a route of its own it needs no advertised one.
    let conf = "vrrp_instance VR_1 {\n interface ha-1\n virtual_router_id 1\n virtual_ipaddress {\n  169.254.0.1/24\n }\n \
                virtual_routes {\n  ::/0 via fe80::1 dev qg-1\n }\n}\n";
    crate::write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
    assert_eq!(report(lab.path(), &id, "primary"), Some(200));
    wait_for("a primary with a gateway", || (params() == ["1", "0", "1"]).then_some(()));
    // The kernel sets one with the other: it is so before all of it is done.
    wait_for("nothing to be owed", || (agent.duty("ipv6")["pending"] == 0).then_some(()));
    // Without a gateway there is nothing to be set for one.
    run(std::process::Command::new("ip").args(["-n", &name, "link", "del", "qg-1"]));
    assert_eq!(report(lab.path(), &id, "backup"), Some(200));
    wait_for("nothing to be owed", || (agent.duty("ipv6")["pending"] == 0).then_some(()));
    assert_eq!(
        (set("all/forwarding"), &agent.duty("ipv6")["failures"]),
        ("1".to_owned(), &0.into())
    );
    // One that is not here is given up, and said.
    assert_eq!(report(lab.path(), "elsewhere", "primary"), Some(200));
    agent.wait_for_log("namespace called qrouter-elsewhere");
    wait_for("nothing to be owed", || (agent.duty("ipv6")["pending"] == 0).then_some(()));
    run(std::process::Command::new("ip").args(["netns", "del", &name]));
}

#[test]
fn a_program_that_is_stopped_with_us_is_run_again_by_the_next() {
    // By the signal itself, and by its own decision when it gets the signal.
    for at_first in ["exec sleep 600", "while :; do sleep 0.1; done"] {
        let lab = Lab::new();
        let said = lab.path().join("said");
        // The first time it takes too long.
        let again = format!("echo $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] && exit 0", said.display());
        let text = format!("trap 'exit 3' TERM; {again}; {at_first}");
        let hook = program(&lab.path().join("hook"), &text);
        let text = format!(
            "[agent]\ninterval = \"0s\"\n[[agent.hook]]\nprogram = [\"{}\"]\ndeadline = \"10m\"\n",
            hook.display()
        );
        configure(lab.path(), Some(&text));
        let mut agent = ReceiverProcess::start(lab.path(), &[]);
        assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
        let pid = wait_for("the program", || read(&said).lines().next().map(str::to_owned));
        // As a service manager stops everybody at once.
        let agent_pid = agent.child.id().to_string();
        run(std::process::Command::new("kill").args(["-TERM", &agent_pid]));
        agent.wait_for_log("stopping");
        run(std::process::Command::new("kill").args(["-TERM", &pid]));
        agent.child.wait().unwrap();
        let agent = ReceiverProcess::start(lab.path(), &[]);
        wait_for("the program again", || (read(&said).lines().count() == 2).then_some(()));
        wait_for("nothing to be owed", || (agent.duty("hook")["pending"] == 0).then_some(()));
    }
}

#[test]
fn whoever_is_told_is_shown_and_nobody_tells_himself() {
    let lab = Lab::new();
    let text = "[agent]\n[[agent.hook]]\nprogram = [\"/bin/true\"]\n\
                [agent.upstream]\nurl = \"http://127.0.0.1:9/s?token=x\"\n";
    configure(lab.path(), Some(text));
    let config = lab.path().join("vipwatch.toml");
    let ask = |words: &[&str]| {
        let mut command = std::process::Command::new(crate::PROGRAM);
        let output = output_of(command.arg("config").args(words).arg(&config));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let shown = ask(&["show", "--config"]);
    assert!(shown.contains("hook /bin/true; upstream http://127.0.0.1:9/s ~"), "{shown}");
    let checked = ask(&["check"]);
    assert!(checked.contains("monitors report to /var/lib/neutron/keepalived"), "{checked}");
    let socket = "/var/lib/neutron/keepalived-state-change";
    let text = format!("{text}[[outlet]]\norigin = \"neutron\"\nagent = \"{socket}\"\n");
    configure(lab.path(), Some(&text));
    assert!(ask(&["check"]).contains("which is our own"), "{}", ask(&["check"]));
}

#[test]
fn another_configuration_is_taken_while_it_receives_and_a_wrong_one_is_not() {
    let lab = Lab::new();
    let (hook, said) = hook(&lab);
    configure(lab.path(), Some("[agent]\ninterval = \"0s\"\n"));
    let agent = ReceiverProcess::start(lab.path(), &[]);
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    // Whoever has begun to speak is heard out by the one before.
    let mut begun =
        std::os::unix::net::UnixStream::connect(crate::receiver::socket(lab.path())).unwrap();
    let request = "POST / HTTP/1.1\r\nX-Neutron-Router-Id: r2\r\nX-Neutron-State: backup\r\n";
    std::io::Write::write_all(&mut begun, request.as_bytes()).unwrap();
    let text = format!("[agent]\ninterval = \"0s\"\n[[agent.hook]]\nprogram = [\"{hook}\"]\n");
    configure(lab.path(), Some(&text));
    agent.reload();
    std::io::Write::write_all(&mut begun, b"\r\n").unwrap();
    let told = || lines(&said).iter().any(|one| one["id"] == "r1" && one["to"] == "primary");
    wait_for("the new program to be told where everybody stands", || told().then_some(()));
    let told = || lines(&said).iter().any(|one| one["id"] == "r2" && one["to"] == "backup");
    wait_for("what was said meanwhile", || told().then_some(()));
    assert_eq!(agent.status()["accepted"], 2, "what was counted stays");
    configure(lab.path(), Some("[agent]\nintervall = \"0s\"\n"));
    agent.reload();
    let why = "there is no key intervall in agent; did you mean interval?";
    wait_for("the fault", || agent.log().contains(why).then_some(()));
    assert_eq!(report(lab.path(), "r3", "primary"), Some(200));
    wait_for("the program", || lines(&said).iter().any(|one| one["id"] == "r3").then_some(()));
}
