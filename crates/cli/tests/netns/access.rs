//! Which users may ask, report and serve, and where credentials go.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::process::{Gid, Uid};
use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, NodeFixture, run, wait_for};

use crate::notify::{NO_VIP, VIP};
use crate::server::Server;
use crate::{PROGRAM, one, place, stage};

/// A user without rights, and a group that it may be a member of.
const OTHER_USER: u32 = 65534;
const GROUP: u32 = 4242;

/// Lets every user reach what is in the lab.
fn open_to_all(lab: &Lab) {
    set_mode(lab.path(), 0o755);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The program at a path that every user can reach, wherever the repository is.
fn reachable_program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = PathBuf::from("/run/vipwatch-of-the-tests");
        std::fs::File::create(&path).unwrap();
        run(Command::new("mount").args(["--bind", PROGRAM]).arg(&path));
        path
    })
}

/// The program, run by [`OTHER_USER`], who is a member of `groups` only.
fn other_user(groups: &[u32]) -> Command {
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

/// Does `work` on a thread that is [`OTHER_USER`], with `groups`.
fn on_a_thread_of_another_user<T: Send>(groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
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

/// A node that `GROUP` may ask, whose configuration only root may read, and whose socket has the
/// default name.
fn node_with_a_closed_configuration(lab: &Lab) -> (vipwatch_testkit::TestNetns, NodeFixture) {
    open_to_all(lab);
    let (netns, place) = stage(lab, &[one()]);
    place.configure(&format!("[node]\nsocket_group = \"{GROUP}\"\n[agent]\ninterval = \"0s\"\n"));
    set_mode(&place.config(), 0o600);
    // No other test uses it.
    (netns, place.with_socket(Path::new("/run/vipwatch/node.sock")))
}

#[test]
fn a_group_member_uses_every_asking_command_without_reading_the_configuration() {
    let lab = Lab::new();
    let (netns, place) = node_with_a_closed_configuration(&lab);
    let node = place.start();
    let ask = |groups: &[u32], words: &[&str]| {
        output_of(other_user(groups).args(words).env("VIPWATCH_CONFIG", place.config()))
    };
    for (words, expected) in [
        (&["status"][..], "VI_1"),
        (&["show", "VI"], "VI_1"),
        (&["history"], "VI_1"),
        (&["doctor"], "1 instances of this node"),
        (&["agent", "status"], "0 accepted"),
    ] {
        let output = ask(&[GROUP], words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        assert!(text(&output).contains(expected), "{words:?}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{words:?}: {}", text(&output));
        let refused = ask(&[], words);
        assert_eq!(refused.status.code(), Some(3), "{words:?}: {refused:?}");
        assert!(text(&refused).contains("not permitted"), "{words:?}: {refused:?}");
    }
    let mut complete = other_user(&[GROUP]);
    complete.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    complete.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    complete.env("_CLAP_IFS", "\n").env("VIPWATCH_CONFIG", place.config());
    let output = output_of(complete.args(["--", "vipwatch", "show", "V"]));
    assert_eq!(text(&output).trim(), "VI_1", "{output:?}");
    let shown = lab.path().join("shown");
    let mut watch = other_user(&[GROUP]);
    watch.args(["watch", "--changes", "1"]).env("VIPWATCH_CONFIG", place.config());
    let mut watch = watch.stdout(std::fs::File::create(&shown).unwrap()).spawn().unwrap();
    wait_for("the first line", || {
        std::fs::read_to_string(&shown).unwrap().contains("VI_1").then_some(())
    });
    netns.ip(VIP);
    assert!(end_of(&mut watch).is_some_and(|status| status.success()));
    // Without a node, the configuration could have named another socket.
    assert!(node.stop().success());
    let output = ask(&[GROUP], &["status"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = text(&output);
    assert!(said.contains("no vipwatch node is listening on /run/vipwatch/node.sock"), "{said}");
    assert!(said.contains("hint: cannot read") && said.contains("--socket"), "{said}");
}

#[test]
fn databases_are_closed_to_other_users() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    place.configure("[agent]\ninterval = \"0s\"\n");
    let _node = place.start();
    assert_eq!(crate::receiver::report(lab.path(), "r1", "primary"), Some(200));
    netns.ip(VIP);
    for name in ["history.sqlite", "claims.sqlite"] {
        for suffix in ["", "-wal", "-shm"] {
            let path = place.state_dir().join(format!("{name}{suffix}"));
            let metadata = wait_for(&path.display().to_string(), || path.metadata().ok());
            let mode = metadata.permissions().mode() & 0o777;
            assert_eq!(mode, 0o640, "{}: {mode:o}", path.display());
        }
    }
}

/// A configuration with a secret in it.
fn with_a_secret(url: &str) -> String {
    format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{url}\"\nheaders = {{ Authorization = \"Bearer x\" }}\n"
    )
}

#[test]
fn a_configuration_with_credentials_that_others_can_read_is_refused() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    place.configure(&with_a_secret("http://127.0.0.1:1/"));
    let node = place.start();
    set_mode(&place.config(), 0o644);
    node.reload();
    place.wait_for_log("holds credentials, and every user can read it");
    assert!(place.say(&["doctor"]).contains("node-configuration"));
    assert!(node.stop().success());
    for words in [&["node"][..], &["config", "check"]] {
        let mut command = Command::new(PROGRAM);
        let output = output_of(command.args(words).env("VIPWATCH_CONFIG", place.config()));
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:?}");
        let hint = format!("hint: chmod 0640 {}", place.config().display());
        assert!(text(&output).contains(&hint), "{words:?}: {}", text(&output));
    }
}

#[test]
fn config_check_refuses_every_file_that_a_node_refuses() {
    let lab = Lab::new();
    let place = place(&lab);
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
        ("no URL", "[[outlet]]\nwebhook = { url = \"http://a b/\" }\n".to_owned(), 0o640),
    ];
    let state_dir = lab.path().join("state");
    for (what, text, mode) in cases {
        place.configure(&text);
        set_mode(&place.config(), mode);
        let mut command = Command::new(PROGRAM);
        command.args(["node", "--config"]).arg(place.config());
        if !text.contains("state_dir") {
            command.arg("--state-dir").arg(&state_dir);
        }
        let refused = output_of(&mut command);
        let mut command = Command::new(PROGRAM);
        let checked = output_of(command.args(["config", "check"]).arg(place.config()));
        assert!(!refused.status.success(), "{what}: {refused:?}");
        assert_eq!(checked.status.code(), refused.status.code(), "{what}: {checked:?}");
    }
    place.configure(&node(&format!("state_dir = \"{}\"\n", state_dir.display())));
    let mut command = Command::new(PROGRAM);
    let checked = output_of(command.args(["config", "check"]).arg(place.config()));
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn config_check_and_the_log_warn_of_a_hook_that_cannot_be_run_now() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    place.configure("[[outlet]]\nhook = { program = \"/no/such/hook\" }\n");
    let _node = place.start();
    let mut command = Command::new(PROGRAM);
    let checked = output_of(command.args(["config", "check"]).arg(place.config()));
    assert!(checked.status.success(), "{checked:?}");
    let warning = "hook /no/such/hook: ";
    assert!(text(&checked).contains(&format!("warning: {warning}")), "{}", text(&checked));
    place.wait_for_log(&format!("configuration warning warning=\"{warning}"));
}

#[test]
fn an_agent_of_another_user_is_refused_unless_the_configuration_names_it() {
    let lab = Lab::new();
    open_to_all(&lab);
    let (netns, place) = stage(&lab, &[one()]);
    // Every user may make a socket here, as in /tmp.
    let directory = lab.path().join("agent");
    std::fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o777);
    let agent =
        on_a_thread_of_another_user(&[], || FakeAgent::listen(&directory, Behaviour::Threaded));
    let socket = directory.join("keepalived-state-change").display().to_string();
    let configure = |more: &str| {
        place.configure(&format!("[[outlet]]\nagent = {{ socket = \"{socket}\"{more} }}\n"));
    };
    configure("");
    let node = place.start();
    place.wait_for_log("belongs to user 65534, not to the agent's user or root");
    assert!(place.say(&["doctor"]).contains("agent-not-told"), "{}", place.say(&["doctor"]));
    assert_eq!(agent.words(), [""; 0], "it was told");
    configure(&format!(", user = \"{OTHER_USER}\""));
    node.reload();
    agent.wait_for_word("backup");
    configure(", user = \"root\"");
    node.reload();
    netns.ip(VIP);
    wait_for("the refusal", || {
        place.say(&["show", "VI_1"]).contains("belongs to user").then_some(())
    });
    configure(", allow_any_agent = true");
    node.reload();
    agent.wait_for_word("primary");
    // The owner of the directory is the agent's user, if nothing else is said.
    chown(&directory, Some(OTHER_USER), None).unwrap();
    configure("");
    node.reload();
    netns.ip(NO_VIP);
    agent.wait_for_word("backup");
}

#[test]
fn a_member_of_an_allowed_group_reports_and_other_users_do_not() {
    let lab = Lab::new();
    open_to_all(&lab);
    let group = format!("@{GROUP}");
    let words = ["--interval", "0s", "--mode", "666", "--allow", &group];
    let agent = crate::receiver::ReceiverProcess::start(lab.path(), &words);
    let report = |groups: &[u32]| {
        on_a_thread_of_another_user(groups, || crate::receiver::report(lab.path(), "r1", "primary"))
    };
    assert_eq!(report(&[]), Some(403));
    assert_eq!(report(&[GROUP]), Some(200));
    assert_eq!(agent.settled("primary"), 1);
}

/// An HTTP server that answers every request with `answer`, and keeps the heads of the requests.
struct Endpoint {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    fn new(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&heads), answer.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                kept.lock().unwrap().push(head.join("\n"));
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

#[test]
fn a_webhook_follows_no_redirect_and_its_credentials_stay_with_its_host() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let other = Endpoint::new("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let redirecting = Endpoint::new(&format!(
        "HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        other.url
    ));
    place.configure(&with_a_secret(&redirecting.url));
    let _node = place.start();
    place.wait_for_log("status 302");
    let heads = redirecting.heads();
    assert!(heads[0].to_lowercase().contains("authorization: bearer x"), "{heads:?}");
    assert_eq!(other.heads(), [""; 0], "the target of the redirect was asked");
}

#[test]
fn a_webhook_ignores_the_proxies_of_the_environment() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let proxy = Endpoint::new("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let server = Server::new(&[]);
    let names =
        ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let place = names.iter().fold(place, |place, name| place.with_variable(name, &proxy.url));
    place.configure(&with_a_secret(&server.url));
    let _node = place.start();
    wait_for("the webhook", || (server.said() == ["1 backup"]).then_some(()));
    assert_eq!(proxy.heads(), [""; 0], "the proxy was asked");
}
