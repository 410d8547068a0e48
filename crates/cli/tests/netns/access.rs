// SPDX-License-Identifier: Apache-2.0
//! Which users may query a node, report to a receiver and act as the agent, and where credentials are sent.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rustix::process::{Gid, Uid};
use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, NodeFixture, run, wait_for};

use crate::header_recorder::HeaderRecorder;
use crate::http_server::HttpServer;
use crate::receiver_process::ReceiverProcess;
use crate::support::{ADD_VIP, PROGRAM, REMOVE_VIP, fixture_with, node_fixture, vi_1_conf};

/// A user without rights, and a group that it may be a member of.
const OTHER_USER: u32 = 65534;
const GROUP: u32 = 4242;

/// Lets every user enter the directory of the lab.
fn permit_all_users(lab: &Lab) {
    set_mode(lab.path(), 0o755);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A path of the program that every user can reach, also if the repository is in a closed directory.
fn reachable_program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = PathBuf::from("/run/vipwatch-under-test");
        std::fs::File::create(&path).unwrap();
        run(Command::new("mount").args(["--bind", PROGRAM]).arg(&path));
        path
    })
}

/// A command that runs the program as [`OTHER_USER`] with these supplementary groups.
fn command_of_other_user(groups: &[u32]) -> Command {
    let mut command = Command::new("setpriv");
    let user = OTHER_USER.to_string();
    command.args(["--reuid", &user, "--regid", &user]);
    match groups {
        [] => command.arg("--clear-groups"),
        groups => {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            command.args(["--groups", &groups.join(",")])
        }
    };
    command.arg(reachable_program());
    command
}

/// Calls `work` on a thread that runs as [`OTHER_USER`] with these supplementary groups.
pub(crate) fn as_other_user<T: Send>(groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let change_and_work = move || {
        let (user, group) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
        rustix::thread::set_thread_groups(&groups).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(change_and_work).join().unwrap())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// A node that members of `GROUP` may query. Only root may read its configuration, and its socket is at the
/// default path.
fn node_with_a_closed_configuration(lab: &Lab) -> (vipwatch_testkit::TestNetns, NodeFixture) {
    permit_all_users(lab);
    let (netns, fixture) = fixture_with(lab, &[vi_1_conf()]);
    fixture
        .configure(&format!("[node]\nsocket_group = \"{GROUP}\"\n[receiver]\ninterval = \"0s\"\n"));
    set_mode(&fixture.config(), 0o600);
    // No other test uses the default path.
    (netns, fixture.with_socket(Path::new("/run/vipwatch/node.sock")))
}

#[test]
fn a_group_member_uses_every_query_command_without_reading_the_configuration() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_a_closed_configuration(&lab);
    let node = fixture.start();
    let query = |groups: &[u32], args: &[&str]| {
        output_of(command_of_other_user(groups).args(args).env("VIPWATCH_CONFIG", fixture.config()))
    };
    for (args, expected) in [
        (&["status"][..], "VI_1"),
        (&["show", "VI"], "VI_1"),
        (&["history"], "VI_1"),
        (&["doctor"], "no findings, 1 instance"),
        (&["receiver", "status"], "0 accepted"),
    ] {
        let output = query(&[GROUP], args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        assert!(text(&output).contains(expected), "{args:?}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output));
        let refused = query(&[], args);
        assert_eq!(refused.status.code(), Some(3), "{args:?}: {refused:?}");
        assert!(text(&refused).contains("not permitted"), "{args:?}: {refused:?}");
    }
    let mut complete = command_of_other_user(&[GROUP]);
    complete.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    complete.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    complete.env("_CLAP_IFS", "\n").env("VIPWATCH_CONFIG", fixture.config());
    let output = output_of(complete.args(["--", "vipwatch", "show", "V"]));
    assert_eq!(text(&output).trim(), "VI_1", "{output:?}");
    let shown = lab.path().join("shown");
    let mut watch = command_of_other_user(&[GROUP]);
    watch.args(["watch", "-n", "1"]).env("VIPWATCH_CONFIG", fixture.config());
    let mut watch = watch.stdout(std::fs::File::create(&shown).unwrap()).spawn().unwrap();
    wait_for("the first line", || {
        std::fs::read_to_string(&shown).unwrap().contains("VI_1").then_some(())
    });
    netns.ip(ADD_VIP);
    assert!(end_of(&mut watch).is_some_and(|status| status.success()));
    // When no node runs, the hint says that the unreadable configuration may name another socket.
    assert!(node.stop().success());
    let output = query(&[GROUP], &["status"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let printed = text(&output);
    assert!(
        printed.contains("no vipwatch node is listening on /run/vipwatch/node.sock"),
        "{printed}"
    );
    assert!(printed.contains("hint: cannot read") && printed.contains("--socket"), "{printed}");
}

#[test]
fn databases_are_closed_to_other_users() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    let _node = fixture.start();
    assert_eq!(crate::receiver_process::report(lab.path(), "r1", "primary"), Some(200));
    netns.ip(ADD_VIP);
    for name in ["history.sqlite", "journal.sqlite"] {
        for suffix in ["", "-wal", "-shm"] {
            let path = fixture.state_dir().join(format!("{name}{suffix}"));
            let metadata = wait_for(&path.display().to_string(), || path.metadata().ok());
            let mode = metadata.permissions().mode() & 0o777;
            assert_eq!(mode, 0o640, "{}: {mode:o}", path.display());
        }
    }
}

/// A configuration with a webhook and its credentials.
fn with_a_secret(url: &str) -> String {
    format!(
        "[[notify]]\n[[notify.webhook]]\nurl = \"{url}\"\nheaders = {{ Authorization = \"Bearer x\" }}\n"
    )
}

#[test]
fn a_configuration_with_credentials_that_others_can_read_is_refused() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(&with_a_secret("http://127.0.0.1:1/"));
    let node = fixture.start();
    set_mode(&fixture.config(), 0o644);
    node.reload();
    fixture.wait_for_log("holds credentials, and every user can read it");
    assert!(fixture.run_text(&["doctor"]).contains("node-configuration"));
    assert!(node.stop().success());
    for args in [&["node"][..], &["config", "check"]] {
        let mut command = Command::new(PROGRAM);
        let output = output_of(command.args(args).env("VIPWATCH_CONFIG", fixture.config()));
        assert_eq!(output.status.code(), Some(3), "{args:?}: {output:?}");
        let hint = format!("hint: chmod 0640 {}", fixture.config().display());
        assert!(text(&output).contains(&hint), "{args:?}: {}", text(&output));
    }
}

#[test]
fn config_check_refuses_every_file_that_a_node_refuses() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let file = lab.path().join("file");
    std::fs::File::create(&file).unwrap();
    let (file, socket) = (file.display(), lab.path().join("s"));
    let node = |more: &str| format!("[node]\nsocket = \"{}\"\n{more}", socket.display());
    let cases = [
        ("others may write it", node(""), 0o666),
        ("others may read a secret", with_a_secret("http://127.0.0.1:1/"), 0o644),
        ("a secret without encryption", with_a_secret("http://192.0.2.1/"), 0o640),
        ("a directory below a file", node(&format!("state_dir = \"{file}/x\"\n")), 0o640),
        ("a file at the socket's name", format!("[node]\nsocket = \"{file}\"\n"), 0o640),
        ("a long name", format!("[node]\nsocket = \"/run/{}\"\n", "x".repeat(110)), 0o640),
        ("no such group", node("socket_group = \"no-such-group\"\n"), 0o640),
        ("no hook", "[[notify]]\nhook = { program = \"/no/such/hook\" }\n".to_owned(), 0o640),
        ("a relative hook", "[[notify]]\nhook = { program = \"bin/true\" }\n".to_owned(), 0o640),
        ("no {id}", "[[notify]]\nstate_file = \"/run/same\"\n".to_owned(), 0o640),
        ("single brackets", "[notify]\nannounce = true\n".to_owned(), 0o640),
        ("no URL", "[[notify]]\nwebhook = { url = \"http://a b/\" }\n".to_owned(), 0o640),
    ];
    let state_dir = lab.path().join("state");
    for (name, text, mode) in cases {
        fixture.configure(&text);
        set_mode(&fixture.config(), mode);
        let mut command = Command::new(PROGRAM);
        command.args(["node", "--config"]).arg(fixture.config());
        if !text.contains("state_dir") {
            command.arg("--state-dir").arg(&state_dir);
        }
        let refused = output_of(&mut command);
        let mut command = Command::new(PROGRAM);
        let checked = output_of(command.args(["config", "check"]).arg(fixture.config()));
        assert!(!refused.status.success(), "{name}: {refused:?}");
        assert_eq!(checked.status.code(), refused.status.code(), "{name}: {checked:?}");
    }
    fixture.configure(&node(&format!("state_dir = \"{}\"\n", state_dir.display())));
    let mut command = Command::new(PROGRAM);
    let checked = output_of(command.args(["config", "check"]).arg(fixture.config()));
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn a_reload_refuses_a_hook_that_cannot_run() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    fixture.configure("[[notify]]\nhook = { program = \"/no/such/hook\" }\n");
    node.reload();
    fixture.wait_for_log("/no/such/hook");
    assert!(fixture.run_text(&["doctor"]).contains("node-configuration"));
}

#[test]
fn config_check_and_the_log_warn_of_a_pattern_that_matches_no_instance() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let rule = "[[notify]]\ninstances = [\"VI_1\", \"VI_2*\"]\nannounce = true\n";
    let keepalived = fixture.keepalived_conf();
    fixture.configure(&format!("[find]\nkeepalived_conf = {keepalived:?}\n{rule}"));
    let _node = fixture.start();
    let check = |format: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["config", "check", "--output", format]);
        output_of(command.env("VIPWATCH_CONFIG", fixture.config()))
    };
    let (table, json) = (check("table"), check("json"));
    assert!(table.status.success() && json.status.success(), "{table:?} {json:?}");
    let warning = "[[notify]] number 1: the pattern \"VI_2*\" matches no instance";
    let stderr = String::from_utf8_lossy(&table.stderr).into_owned();
    assert_eq!(stderr, format!("vipwatch: warning: {warning}\n"));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["schema"], "vipwatch.config-check/1");
    assert_eq!((&json["is_valid"], &json["warnings"]), (&true.into(), &[warning].into()));
    fixture.wait_for_log("configuration warning");
}

#[test]
fn an_agent_of_another_user_is_refused_unless_the_configuration_names_it() {
    let lab = Lab::new();
    permit_all_users(&lab);
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    // Every user may create a socket in this directory, as in /tmp.
    let directory = lab.path().join("agent");
    std::fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o777);
    let agent = as_other_user(&[], || FakeAgent::listen(&directory, Behaviour::Threaded));
    let socket = directory.join("keepalived-state-change").display().to_string();
    let configure = |more: &str| {
        fixture.configure(&format!("[[notify]]\nagent = {{ socket = \"{socket}\"{more} }}\n"));
    };
    configure("");
    let node = fixture.start();
    fixture.wait_for_log("belongs to user 65534, not to the agent's user or root");
    assert!(
        fixture.run_text(&["doctor"]).contains("agent-failed"),
        "{}",
        fixture.run_text(&["doctor"])
    );
    assert_eq!(agent.words(), [""; 0], "the agent of the other user got a report");
    configure(&format!(", user = \"{OTHER_USER}\""));
    node.reload();
    agent.wait_for_word("backup");
    configure(", user = \"root\"");
    node.reload();
    netns.ip(ADD_VIP);
    wait_for("the refusal", || {
        fixture.run_text(&["show", "VI_1"]).contains("belongs to user").then_some(())
    });
    configure(", allow_any_agent = true");
    node.reload();
    agent.wait_for_word("primary");
    // Without `user`, the owner of the directory counts as the user of the agent.
    chown(&directory, Some(OTHER_USER), None).unwrap();
    configure("");
    node.reload();
    netns.ip(REMOVE_VIP);
    agent.wait_for_word("backup");
}

#[test]
fn a_member_of_an_allowed_group_reports_and_other_users_do_not() {
    let lab = Lab::new();
    permit_all_users(&lab);
    let group = format!("@{GROUP}");
    let args = ["--interval", "0s", "--mode", "666", "--allow", &group];
    let receiver = ReceiverProcess::start(lab.path(), &args);
    let report = |groups: &[u32]| {
        as_other_user(groups, || crate::receiver_process::report(lab.path(), "r1", "primary"))
    };
    assert_eq!(report(&[]), Some(403));
    assert_eq!(report(&[GROUP]), Some(200));
    assert_eq!(receiver.count_settled("primary"), 1);
}

#[test]
fn a_webhook_follows_no_redirect_and_sends_its_credentials_to_no_other_host() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let other = HeaderRecorder::accepting();
    let redirecting = HeaderRecorder::new(&format!(
        "HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        other.url
    ));
    fixture.configure(&with_a_secret(&redirecting.url));
    let _node = fixture.start();
    fixture.wait_for_log("status 302");
    let heads = redirecting.heads();
    assert!(heads[0].to_lowercase().contains("authorization: bearer x"), "{heads:?}");
    assert_eq!(other.heads(), [""; 0], "the target of the redirect got a request");
}

#[test]
fn a_webhook_ignores_the_proxies_of_the_environment() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let proxy = HeaderRecorder::accepting();
    let server = HttpServer::new(&[]);
    let names =
        ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let fixture =
        names.iter().fold(fixture, |fixture, name| fixture.with_variable(name, &proxy.url));
    fixture.configure(&with_a_secret(&server.url));
    let _node = fixture.start();
    wait_for("the webhook", || (server.accepted() == ["backup"]).then_some(()));
    assert_eq!(proxy.heads(), [""; 0], "the proxy got a request");
}

#[test]
fn the_end_of_a_silence_is_logged_and_stored_with_the_user() {
    let lab = Lab::new();
    permit_all_users(&lab);
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(&format!("[node]\nsocket_group = \"{GROUP}\"\n"));
    let node = fixture.start();
    let client = vipwatch_api::client::Client::new(fixture.socket());
    let (id, seconds, reason) = (None, 3600, "switch upgrade".to_owned());
    let silence =
        client.create_silence(&vipwatch_api::SilenceRequest { id, seconds, reason }).unwrap();
    as_other_user(&[GROUP], || client.end_silence(silence.number).unwrap());
    let line = |line: &&str| line.contains("silence ended") && line.contains("user=\"nobody\"");
    wait_for("the log", || {
        fixture
            .log()
            .lines()
            .find(line)
            .filter(|line| line.contains("created_by=\"root\""))
            .map(drop)
    });
    assert!(node.stop().success());
    let query = "SELECT created_by, ended_by FROM silence";
    assert_eq!(crate::deliveries::stored(&fixture, query), "root|nobody");
}
