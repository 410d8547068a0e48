//! Who is told, when everything goes well and when it does not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use vipwatch_testkit::agent::Leftover;
use vipwatch_testkit::keepalived::Switch;
use vipwatch_testkit::{Agent, Lab, Manner, Netns, Place, Routers, Wire, stays, wait_for};

use crate::{instance, json, place, role, stage, write};

const VIP: &str = "address add 192.0.2.9/24 dev eth0";
const NO_VIP: &str = "address del 192.0.2.9/24 dev eth0";

fn one() -> String {
    instance("VI_1", "eth0", &["192.0.2.9/24"])
}

/// A program that the node may run.
fn program(path: &Path, text: &str) -> PathBuf {
    write(path, &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn wait_for_text(path: &Path, expected: &str) {
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
    // The directory goes, and comes back: the word is written again.
    std::fs::remove_dir_all(states.join("VI_1")).unwrap();
    netns.ip("link set eth0p up");
    wait_for("the failure to be known", || {
        place.say(&["doctor"]).contains("file-not-told").then_some(())
    });
    std::fs::create_dir_all(states.join("VI_1")).unwrap();
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
    let changes = json(&place, &["history"])["changes"].as_array().unwrap().len();
    assert_eq!(changes, 1, "nothing has changed");
    place.configure("");
    node.reload();
    netns.ip(NO_VIP);
    wait_for("it to be backup", || (role(&place, "VI_1") == "backup").then_some(()));
    assert!(!states.join("VI_1/state").exists(), "nobody keeps it true any more");
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
    assert!(json(&place, &["history"])["changes"][1]["latencies"]["hook"].as_i64() > Some(0));
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
    let hang = format!("sleep 1000 & echo $! > {}; wait", children.display());
    program(&directory.join("hangs"), &hang);
    program(&directory.join("floods"), "yes flood | head -c 1000000");
    program(&directory.join("fails"), "echo sorry; exit 7");
    write(&directory.join("not-executable"), "#!/bin/sh\n");
    program(&directory.join("exposed"), "true");
    let exposed = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.join("exposed"), exposed).unwrap();
    let names = ["hangs", "floods", "fails", "not-executable", "exposed", "missing"];
    let hooks: String = names
        .iter()
        .map(|name| {
            let path = directory.join(name);
            format!("[[outlet.hook]]\nprogram = \"{}\"\ndeadline = \"300ms\"\n", path.display())
        })
        .collect();
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
    let child: i32 = read(&children).trim().parse().unwrap();
    wait_for("what it started to be gone", || {
        (!vipwatch_testkit::monitor::is_alive(child)).then_some(())
    });
    assert!(node.is_alive());
    assert!(place.say(&["doctor"]).contains("hook-not-told"));
    assert!(place.log().lines().count() < 100, "a flood does not reach the log");
}

/// A server that takes what is posted, and answers as it is told to.
struct Server {
    url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
    answers: Arc<Mutex<Vec<u16>>>,
}

impl Server {
    /// The first answers; 200 from then on.
    fn new(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/vip?secret", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers.to_vec()));
        let (seen, next) = (Arc::clone(&bodies), Arc::clone(&answers));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim().to_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let status = next.lock().unwrap().pop().unwrap_or(200);
                if status == 200 {
                    seen.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                }
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, bodies, answers }
    }

    fn said(&self) -> Vec<String> {
        let bodies = self.bodies.lock().unwrap();
        bodies
            .iter()
            .map(|body| format!("{} {}", body["seq"], body["to"]).replace('"', ""))
            .collect()
    }
}

#[test]
fn a_webhook_is_posted_until_it_is_taken_and_given_up_if_it_never_will_be() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (busy, never) = (Server::new(&[503, 500]), Server::new(&[404]));
    place.configure(&format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{}\"\n[[outlet.webhook]]\nurl = \"{}\"\n",
        busy.url, never.url
    ));
    let _node = place.start();
    netns.ip(VIP);
    wait_for("it to be taken", || (busy.said().last()? == "2 primary").then_some(()));
    wait_for("the log", || place.log().contains("it will not take it: status 404").then_some(()));
    assert!(place.log().contains("it answered with status 500"), "{}", place.log());
    assert!(!place.log().contains("secret"), "what may be secret is not logged");
    netns.ip(NO_VIP);
    wait_for("the next", || (never.said().last()? == "3 backup").then_some(()));
    wait_for("its latency", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["webhook"].as_i64().filter(|micros| *micros > 0)
    });
}

#[test]
fn a_webhook_gets_the_last_word_or_every_word_as_it_wants() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (latest, every) = (Server::new(&[503; 3]), Server::new(&[503; 3]));
    place.configure(&format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{}\"\n[[outlet.webhook]]\nurl = \"{}\"\n\
         deliver = \"every\"\n",
        latest.url, every.url
    ));
    let _node = place.start();
    for (words, expected) in [(VIP, "primary"), (NO_VIP, "backup"), (VIP, "primary")] {
        netns.ip(words);
        wait_for(expected, || (role(&place, "VI_1") == expected).then_some(()));
    }
    let all = ["1 backup", "2 primary", "3 backup", "4 primary"];
    wait_for("every word", || (every.said() == all).then_some(()));
    wait_for("the last word", || (latest.said().last()? == "4 primary").then_some(()));
    assert!(latest.answers.lock().unwrap().is_empty());
}

#[test]
fn what_was_not_told_before_a_restart_is_told_after_it_and_nothing_else_is() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[503; 100]);
    let said = lab.path().join("said");
    let hook =
        program(&lab.path().join("hook"), &format!("echo $VIPWATCH_TO >> {}", said.display()));
    place.configure(&format!(
        "[[outlet]]\nwebhook = {{ url = \"{}\" }}\nhook = {{ program = \"{}\" }}\n",
        server.url,
        hook.display()
    ));
    let node = place.start();
    netns.ip(VIP);
    wait_for_text(&said, "backup\nprimary");
    wait_for("it to have failed", || place.log().contains("status 503").then_some(()));
    node.kill();
    server.answers.lock().unwrap().clear();
    let node = place.start();
    wait_for("it to be told after all", || {
        (server.said().last()?.ends_with("primary")).then_some(())
    });
    // The program knew, and hears it again with the address: they are told together.
    wait_for("the stages to be known", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["webhook"].as_i64()
    });
    assert!(node.stop().success());
    let (told, run) = (server.said().len(), read(&said));
    let node = place.start();
    netns.ip(NO_VIP);
    wait_for("the next change", || (server.said().last()?.ends_with("backup")).then_some(()));
    assert_eq!(server.said().len(), told + 1, "what was known is not told again");
    wait_for_text(&said, &format!("{}\nbackup", run.trim()));
    assert!(node.stop().success());
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
fn reloading_ends_what_is_configured_no_more() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let (old, new) = (lab.path().join("old"), lab.path().join("new"));
    let server = Server::new(&[503; 1000]);
    place.configure(&format!(
        "[[outlet]]\nstate_file = \"{}/{{id}}\"\nwebhook = {{ url = \"{}\" }}\n",
        old.display(),
        server.url
    ));
    let node = place.start();
    wait_for_text(&old.join("VI_1/state"), "backup");
    wait_for("it to fail", || place.say(&["doctor"]).contains("webhook-not-told").then_some(()));
    place.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n", new.display()));
    node.reload();
    wait_for_text(&new.join("VI_1/state"), "backup");
    assert!(!old.join("VI_1/state").exists(), "nobody keeps it true any more");
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
    place.configure("");
    node.reload();
    let stages = json(&place, &["status"])["instances"][0]["stages"].clone();
    assert_eq!(stages.as_array().map(Vec::len), Some(0));
    // Nobody is left who would post.
    let left = server.answers.lock().unwrap().len();
    stays(std::time::Duration::from_millis(700), "silence", || {
        server.answers.lock().unwrap().len() == left
    });
}

#[test]
fn a_webhook_that_a_reload_corrects_is_told_what_it_missed() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[]);
    let webhook = |url: &str| format!("[[outlet]]\nwebhook = {{ url = \"{url}\" }}\n");
    place.configure(&webhook("http://127.0.0.1:1/nobody"));
    let node = place.start();
    netns.ip(VIP);
    wait_for("it to fail", || place.say(&["doctor"]).contains("webhook-not-told").then_some(()));
    wait_for("it to be primary", || (role(&place, "VI_1") == "primary").then_some(()));
    place.configure(&webhook(&server.url));
    node.reload();
    wait_for("what it missed", || (server.said().last()? == "2 primary").then_some(()));
}

#[test]
fn floating_addresses_that_come_later_are_announced_too() {
    let lab = Lab::new();
    let id = format!("f{}-{}", std::process::id(), lab.number());
    let (router, peer) = (Netns::create(&format!("qrouter-{id}")), lab.netns("p"));
    let switch = Switch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let place: Place = place(&lab);
    // One address decides, the others follow.
    let conf = "vrrp_instance R {\n interface eth0\n virtual_ipaddress {\n 192.0.2.1/24 dev eth0\n }\n \
                virtual_ipaddress_excluded {\n 192.0.2.77/32 dev eth0\n }\n}\n";
    write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
    place.configure(
        "[[outlet]]\norigin = \"neutron\"\nannounce = { count = 1, second_burst = \"0s\" }\n",
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
    let agent = Agent::listen(lab.path(), Manner::Threaded);
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
    let agent = Agent::listen(lab.path(), Manner::Threaded);
    wait_for("all of them", || (agent.count() >= 3).then_some(()));
    assert!(agent.letters().iter().all(|letter| letter.word() == "primary"));
    agent.stop(Leftover::Nothing);
    let agent = Agent::listen(lab.path(), Manner::Threaded);
    wait_for("the new one to be told as well", || (agent.count() >= 3).then_some(()));
}

#[test]
fn who_becomes_primary_is_announced_to_the_network() {
    let lab = Lab::new();
    let (router, peer): (Netns, Netns) = (lab.netns("r"), lab.netns("p"));
    let switch = Switch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let place: Place = place(&lab);
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

/// A TLS server by somebody else's hand (`openssl s_server`), which answers every request with 200.
struct TlsServer {
    child: std::process::Child,
    url: String,
    authority: PathBuf,
    said: PathBuf,
}

impl TlsServer {
    fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let openssl = |words: &[&str]| {
            vipwatch_testkit::run(
                std::process::Command::new("openssl").args(words).current_dir(directory),
            );
        };
        let subject = ["-subj", "/CN=vipwatch test", "-days", "2", "-nodes"];
        let name = ["-addext", "subjectAltName=IP:127.0.0.1"];
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        openssl(
            &[&["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem"], &curve[..], &subject]
                .concat(),
        );
        openssl(
            &[&["req", "-keyout", "key.pem", "-out", "cert.csr"], &curve[..], &subject, &name]
                .concat(),
        );
        openssl(&[
            "x509",
            "-req",
            "-in",
            "cert.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-days",
            "2",
            "-copy_extensions",
            "copy",
            "-out",
            "cert.pem",
        ]);
        let said = directory.join("said");
        // A port that was free a moment ago; nobody else lives in this namespace.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = std::process::Command::new("openssl")
            .args(["s_server", "-quiet", "-key", "key.pem", "-cert", "cert.pem", "-accept"])
            .arg(format!("127.0.0.1:{port}"))
            .current_dir(directory)
            .stdin(std::process::Stdio::piped())
            .stdout(std::fs::File::create(&said).unwrap())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        let mut stdin = child.stdin.take().unwrap();
        let seen = said.clone();
        std::thread::spawn(move || {
            let mut answered = 0;
            // What is written to its input goes to whoever is connected.
            while stdin.flush().is_ok() {
                let asked = read(&seen).matches("POST ").count();
                if asked > answered && read(&seen).contains("\"to\":") {
                    answered = asked;
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    if stdin.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                vipwatch_testkit::pause(std::time::Duration::from_millis(5));
            }
        });
        let url = format!("https://127.0.0.1:{port}/vip");
        Self { child, url, authority: directory.join("ca.pem"), said }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_webhook_over_tls_believes_its_authority_and_no_other() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (ours, other) =
        (TlsServer::new(&lab.path().join("t1")), TlsServer::new(&lab.path().join("t2")));
    let webhook = |server: &TlsServer| {
        let authority = ours.authority.display();
        format!("[[outlet.webhook]]\nurl = \"{}\"\nca_file = \"{authority}\"\n", server.url)
    };
    place.configure(&format!("[[outlet]]\n{}{}", webhook(&ours), webhook(&other)));
    let _node = place.start();
    netns.ip(VIP);
    let is_told = |server: &TlsServer| read(&server.said).contains("\"to\":\"primary\"");
    wait_for("it to be taken", || is_told(&ours).then_some(()));
    let is_refused = |line: &str| {
        line.contains(&other.url) && line.contains("not told") && line.contains("certificate")
    };
    wait_for("the other to be refused", || place.log().lines().any(is_refused).then_some(()));
    assert!(!read(&other.said).contains("primary"), "nothing was told to a stranger");
}
