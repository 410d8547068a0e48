// SPDX-License-Identifier: Apache-2.0
//! keepalived in a container: a process with another root directory. The kernel proves that it runs; its files are not
//! those of this machine.
//!
//! Several of these containers attack the node. A file outside of them contains a secret word, which must not occur in
//! anything that the node writes, prints, stores or sends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for, wait_showing, wait_within_showing};

use crate::curl::curl;
use crate::support::{
    PROGRAM, on_old_kernel, query_json, read, write, write_hook, write_with_mode,
};

/// Longest time until a finding opens that a periodic check must see first.
const CHECK_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// The secret of the host.
const SECRET: &str = "kNqV7canary";

/// Builds a root directory on a file system of its own, in a mount and pid namespace of its own, and runs a program there.
/// `$1` are the files of the container, `$2` is a directory that it shares with the host.
const BUILD: &str = r#"
set -e
files=$1 shared=$2; shift 2
mount -t tmpfs tmpfs "$files/root"
cp -a "$files/files/." "$files/root"
cd "$files/root"
mkdir -p usr proc dev tmp run etc var/lib/neutron
mount --rbind /usr usr
for name in bin sbin lib lib64; do
    if [ -L /$name ]; then cp -P /$name .; elif [ -d /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
mount --rbind /dev dev
mount -t proc proc proc
mount --bind "$shared" var/lib/neutron
exec chroot . "$@"
"#;

/// Without these words, a process of user 0 has all capabilities that its container may have.
const WITHOUT_RIGHTS: [&str; 4] =
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

/// A running container. Dropping it ends all its processes.
struct Container {
    child: Child,
}

impl Container {
    /// Runs `words` in `netns` with the files below `files/files`.
    fn start(netns: &TestNetns, files: &Path, shared: &Path, words: &[&str]) -> Self {
        std::fs::create_dir_all(files.join("root")).unwrap();
        std::fs::create_dir_all(files.join("files")).unwrap();
        let log = std::fs::File::create(files.join("log")).unwrap();
        let mut command = netns.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", BUILD, "sh"]);
        command.arg(files).arg(shared).args(words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap() }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct ContainerLab {
    lab: Lab,
    netns: TestNetns,
    fixture: NodeFixture,
    name: String,
}

impl ContainerLab {
    fn new(name: &str) -> Self {
        let lab = Lab::new();
        let netns = lab.netns("k");
        netns.add_link("eth0");
        netns.ip("address add 192.0.2.1/24 dev eth0");
        let fixture = NodeFixture::new(Path::new(PROGRAM), lab.path()).with_processes();
        let name = format!("{name}_{}", lab.number());
        write_with_mode(&lab.path().join("secret"), &format!("{SECRET}\n"), 0o600);
        Self { lab, netns, fixture, name }
    }

    /// A hook that adds its input to the file `hook`.
    fn hook(&self) -> PathBuf {
        let output = self.lab.path().join("hook");
        write_hook(&self.lab.path().join("run"), &format!("cat >> {}", output.display()))
    }

    /// Whether an instance of this lab was removed. The node sees those of other tests, too.
    fn has_removed(&self) -> bool {
        let log = self.fixture.log();
        log.lines().any(|line| line.contains("instance removed") && line.contains(&self.name))
    }

    fn secret(&self) -> PathBuf {
        self.lab.path().join("secret")
    }

    fn conf(&self, vrid: u8, vip: &str) -> String {
        instance(&self.name, vrid, vip)
    }

    /// Writes a file of the container `name`; returns the directory of the container.
    fn file(&self, name: &str, path: &str, text: &str) -> PathBuf {
        let directory = self.lab.path().join(name);
        write(&directory.join("files").join(path), text);
        directory
    }

    /// Starts real keepalived in a container, with `conf` as its `/etc/keepalived/keepalived.conf`.
    fn start_keepalived(&self, name: &str, conf: &str) -> Container {
        let files = self.file(name, "etc/keepalived/keepalived.conf", conf);
        Container::start(&self.netns, &files, self.lab.path(), &["keepalived", "-n", "-P", "-l"])
    }

    /// Starts a program with keepalived's name and keywords that is none: `program` runs the first line of `conf`, which is
    /// a comment for keepalived.
    fn start_fake(&self, program: &str, rights: &[&str], conf: &str) -> Container {
        let files = self.file("fake", "etc/k.conf", conf);
        let copy = files.join("files/opt/keepalived");
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(program, &copy).unwrap();
        let mut file = std::fs::File::options().append(true).open(&copy).unwrap();
        std::io::Write::write_all(&mut file, b"vrrp_instance").unwrap();
        drop(file);
        assert!(Command::new("mkfifo").arg(files.join("files/pipe")).status().unwrap().success());
        let words = [rights, &["/opt/keepalived", "-f", "/etc/k.conf"]].concat();
        let container = Container::start(&self.netns, &files, self.lab.path(), &words);
        wait_showing(
            "the fake keepalived",
            || read(&files.join("log")),
            || self.lab.path().join("started").exists().then_some(()),
        );
        container
    }

    /// The role of an instance; empty if there is no such instance yet.
    fn role(&self, id: &str) -> String {
        let answer = query_json(&self.fixture, &["status"]);
        let mut instances = answer["instances"].as_array().unwrap().iter();
        let found = instances.find(|one| one["id"] == id);
        found.and_then(|one| one["role"].as_str()).unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn wait_for_role(&self, id: &str, expected: &str) {
        let is_it = || (self.role(id) == expected).then_some(());
        wait_showing(expected, || self.fixture.log(), is_it);
    }

    fn finding_names(&self, id: &str) -> Vec<String> {
        let answer = query_json(&self.fixture, &["doctor"]);
        let items = answer["items"].as_array().unwrap().iter();
        let of_id = items.filter(|item| item["id"].as_str() == Some(id));
        let mut names: Vec<String> =
            of_id.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    }

    #[track_caller]
    fn wait_for_findings(&self, id: &str, expected: &[&str]) {
        let names = || self.finding_names(id);
        let details = || format!("{:?}\n{}", names(), self.fixture.log());
        wait_within_showing(CHECK_LIMIT, &format!("{expected:?}"), details, || {
            (names() == expected).then_some(())
        });
    }

    /// The keepaliveds in containers that `doctor` knows in the namespace of this lab.
    fn containers(&self) -> Vec<Value> {
        let answer = query_json(&self.fixture, &["doctor"]);
        let all = answer["containers"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|one| one["netns"] == self.netns.name()).collect()
    }

    /// Everything that the node writes, prints, stores and sends.
    fn everything(&self) -> String {
        let mut text = self.fixture.log();
        for args in [
            &["status"][..],
            &["doctor", "-v"],
            &["findings"],
            &["history"],
            &["discover"],
            &["targets"],
            &["config", "show"],
        ] {
            for format in [&[][..], &["-o", "json"]] {
                let output = self.fixture.run(&[args, format].concat());
                text += &String::from_utf8_lossy(&output.stdout);
                text += &String::from_utf8_lossy(&output.stderr);
            }
        }
        for path in ["/v1/status", "/v1/findings", "/v1/instances", "/v1/config", "/metrics"] {
            text += &curl(&self.fixture, &[], path).body;
        }
        let files = std::fs::read_dir(self.fixture.state_dir()).unwrap().flatten();
        for path in files.map(|entry| entry.path()).chain([self.lab.path().join("hook")]) {
            text += &String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default());
        }
        text
    }

    #[track_caller]
    fn assert_secret_is_kept(&self) {
        let everything = self.everything();
        let line = everything.lines().find(|line| line.contains(SECRET));
        assert_eq!(line, None, "the secret of the host is in an output");
    }
}

fn instance(name: &str, vrid: u8, vip: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n interface eth0\n virtual_router_id {vrid}\n priority 100\n advert_int 1\n \
         virtual_ipaddress {{\n  {vip} dev eth0\n }}\n}}\n"
    )
}

/// The first line of a fake configuration for bash. It marks its start in the shared directory, and waits for ever.
const WAIT_IN_SHELL: &str = "! touch /var/lib/neutron/started; read line <>/pipe\n";

#[test]
fn a_container_without_rights_is_not_keepalived_and_its_files_are_not_read() {
    let lab = ContainerLab::new("POWERLESS");
    // The instance of the host, for which no keepalived runs.
    let text = format!("net_namespace {}\n{}", lab.netns.name(), lab.conf(51, "192.0.2.9/24"));
    write(&lab.fixture.keepalived_conf(), &text);
    lab.fixture.configure("[find]\ncontainers = true\n");
    let attack = instance("ATTACK", 52, &format!("\ninclude {}\n", lab.secret().display()));
    let _fake = lab.start_fake("/bin/bash", &WITHOUT_RIGHTS, &format!("{WAIT_IN_SHELL}{attack}"));
    let _node = lab.fixture.start();
    lab.wait_for_findings(&lab.name, &["keepalived-gone"]);
    assert_eq!(lab.containers(), [Value::Null; 0]);
    assert!(!lab.fixture.run_text(&["status"]).contains("ATTACK"));
    lab.assert_secret_is_kept();
}

#[test]
fn a_container_cannot_make_the_node_read_a_file_of_the_host() {
    let lab = ContainerLab::new("READER");
    let hook = lab.hook();
    lab.fixture.configure(&format!(
        "[find]\ncontainers = true\n[[notify]]\nhook = {{ program = {hook:?}, on = [\"primary\", \"backup\", \"finding\"] }}\n"
    ));
    let secret = lab.secret();
    let attack = format!(
        "{WAIT_IN_SHELL}net_namespace {}\ninclude {}\ninclude {}\ninclude /link\ninclude /proc/1/root{}\n{}",
        lab.netns.name(),
        secret.display(),
        secret.with_file_name("secre[t]").display(),
        secret.display(),
        instance(
            &lab.name,
            51,
            &format!("192.0.2.9/24\ninclude {}\n  192.0.2.8/24", secret.display())
        ),
    );
    let files = lab.file("fake", "etc/empty", "");
    std::os::unix::fs::symlink(&secret, files.join("files/link")).unwrap();
    let _fake = lab.start_fake("/bin/bash", &[], &attack);
    lab.netns.ip("address add 192.0.2.9/24 dev eth0");
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "partial");
    let shown = query_json(&lab.fixture, &["show", &lab.name]);
    assert_eq!(shown["instance"]["origin"], "container", "{shown}");
    wait_for("the problems", || {
        lab.fixture.run_text(&["discover"]).contains("no such file").then_some(())
    });
    lab.assert_secret_is_kept();
    let calls = read(&lab.lab.path().join("hook"));
    assert!(!calls.contains(&lab.name), "the rule does not name containers: {calls}");
}

#[test]
fn a_rule_covers_the_instances_of_a_container_if_it_names_them() {
    let lab = ContainerLab::new("NAMED");
    let hook = lab.hook();
    lab.fixture.configure(&format!(
        "[find]\ncontainers = true\n[[notify]]\norigin = [\"container\"]\nhook = {{ program = {hook:?} }}\n"
    ));
    let _container = lab.start_keepalived("c", &lab.conf(51, "192.0.2.9/24"));
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "primary");
    let hook = lab.lab.path().join("hook");
    wait_showing(
        "the hook",
        || lab.fixture.log(),
        || read(&hook).contains(&lab.name).then_some(()),
    );
    lab.wait_for_findings(&lab.name, &[]);
}

#[test]
fn a_container_is_named_by_doctor_and_is_no_finding() {
    let lab = ContainerLab::new("QUIET");
    let _container = lab.start_keepalived("c", &lab.conf(51, "192.0.2.9/24"));
    let _node = lab.fixture.start();
    wait_for("the container", || (lab.containers().len() == 1).then_some(()));
    let output = lab.fixture.run(&["doctor", "-v"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("keepalived in a container") && text.contains(lab.netns.name()),
        "{text}"
    );
    assert!(!lab.fixture.run_text(&["status"]).contains(&lab.name));
}

#[test]
fn two_containers_with_the_same_path_are_both_followed() {
    let lab = ContainerLab::new("TWICE");
    lab.fixture.configure("[find]\ncontainers = true\n");
    let _one = lab.start_keepalived("one", &lab.conf(51, "192.0.2.9/24"));
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "primary");
    let other = format!("OTHER_{}", lab.lab.number());
    let _two = lab.start_keepalived("two", &instance(&other, 52, "192.0.2.8/24"));
    lab.wait_for_role(&other, "primary");
    assert_eq!(lab.role(&lab.name), "primary", "the first one stays");
    assert!(!lab.has_removed(), "{}", lab.fixture.log());
}

#[test]
fn a_container_that_starts_again_keeps_the_id_of_its_instance() {
    let lab = ContainerLab::new("AGAIN");
    lab.fixture.configure("[find]\ncontainers = true\n");
    let first = lab.start_keepalived("c", &lab.conf(51, "192.0.2.9/24"));
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "primary");
    drop(first);
    lab.wait_for_findings(&lab.name, &["keepalived-gone-address-left"]);
    let _second = lab.start_keepalived("c", &lab.conf(51, "192.0.2.9/24"));
    lab.wait_for_findings(&lab.name, &[]);
    assert!(!lab.has_removed(), "{}", lab.fixture.log());
}

#[test]
fn a_router_of_an_agent_in_a_container_has_no_finding_until_its_keepalived_is_killed() {
    follow_router_of_container("");
}

#[test]
fn a_router_of_an_agent_in_a_container_is_followed_once_if_containers_are_followed() {
    follow_router_of_container("[find]\ncontainers = true\n");
}

/// A router of an L3 agent in a container: the agent's directory is shared with the host, the root directory is not.
fn follow_router_of_container(settings: &str) {
    let lab = ContainerLab::new("r");
    let id = lab.name.replace('_', "-");
    let netns = TestNetns::create(&format!("qrouter-{id}"));
    netns.add_link("eth0");
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let directory = lab.lab.path().join("ha_confs").join(&id);
    write(&directory.join("state"), "primary");
    write(&directory.join("keepalived.conf"), &instance("VR_1", 1, "169.254.0.1/24"));
    let conf = format!("/var/lib/neutron/ha_confs/{id}/keepalived.conf");
    let words = ["keepalived", "-n", "-P", "-l", "-f", conf.as_str()];
    let files = lab.lab.path().join("agent");
    let container = Container::start(&netns, &files, lab.lab.path(), &words);
    wait_showing(
        "the address",
        || read(&files.join("log")),
        || netns.addresses("eth0").contains("169.254.0.1").then_some(()),
    );
    lab.fixture.configure(settings);
    let _node = lab.fixture.start();
    lab.wait_for_role(&id, "primary");
    let show = || query_json(&lab.fixture, &["show", &id]);
    wait_for("the process", || (show()["keepalived"]["state"] == "runs").then_some(()));
    let is_about_keepalived = |name: &String| name.starts_with("keepalived");
    assert!(!lab.finding_names(&id).iter().any(is_about_keepalived));
    let status = lab.fixture.run_text(&["status", "-o", "wide"]);
    let in_netns = status.lines().filter(|line| line.contains(&format!("qrouter-{id}")));
    assert_eq!(in_netns.count(), 1, "{status}");
    drop(container);
    let details = || format!("{:?}\n{}", lab.finding_names(&id), lab.fixture.log());
    wait_within_showing(CHECK_LIMIT, "the finding", details, || {
        lab.finding_names(&id).iter().any(|name| name.starts_with("keepalived-gone")).then_some(())
    });
}

#[test]
fn a_namespace_without_a_name_is_followed_through_its_process() {
    let lab = ContainerLab::new("NAMELESS");
    let directory = lab.lab.path().join("keepalived");
    write(&directory.join("keepalived.conf"), &lab.conf(51, "192.0.2.9/24"));
    let script = "ip link add eth0 type veth peer name peer0 && ip link set eth0 up && ip link set peer0 up && \
                  ip address add 192.0.2.1/24 dev eth0 && cd \"$1\" && \
                  exec keepalived -n -P -l -f \"$1/keepalived.conf\" -p \"$1/a.pid\" -r \"$1/b.pid\"";
    let mut command = lab.netns.command("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
    command.arg(&directory);
    let log = std::fs::File::create(directory.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let keepalived = Container { child: command.spawn().unwrap() };
    let _node = lab.fixture.start();
    let details = || format!("{}\n{}", read(&directory.join("log")), lab.fixture.log());
    wait_showing("the role", details, || (lab.role(&lab.name) == "primary").then_some(()));
    let shown = query_json(&lab.fixture, &["show", &lab.name]);
    let netns = shown["instance"]["netns"].as_str().unwrap_or_default().to_owned();
    assert!(netns.starts_with("pid:"), "{shown}");
    // With the process, its namespace ends, although the node has sockets in it.
    drop(keepalived);
    lab.wait_for_role(&lab.name, "fault");
}

/// A memory file of two gigabytes, and a pipe that has the name of one.
const MEMORY_ATTACK: &str = "! do { my $n = '/keepalived/consolidated'; open(my $p, '+<', '/memfd:/keepalived/consolidated0'); \
     my $fd = syscall(319, $n, 0); open(my $f, '+<&=', $fd); truncate($f, 2 << 30); \
     open(my $s, '>', '/var/lib/neutron/started'); close($s); sleep 1 while 1 };\n__END__\n";

#[test]
fn a_fake_memory_file_of_keepalived_neither_fills_the_memory_nor_blocks_the_node() {
    let lab = ContainerLab::new("MEMORY");
    lab.fixture.configure("[find]\ncontainers = true\n");
    let files = lab.file("fake", "memfd:/keepalived/empty", "");
    let pipe = files.join("files/memfd:/keepalived/consolidated0");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let conf = format!("{MEMORY_ATTACK}{}", lab.conf(51, "192.0.2.9/24"));
    let _fake = lab.start_fake("/usr/bin/perl", &[], &conf);
    let node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "backup");
    // A file that is younger than the process makes the node compare it with the memory file.
    let pid = query_json(&lab.fixture, &["show", &lab.name])["keepalived"]["pid"].as_u64().unwrap();
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    write(&root.join("etc/k.conf"), &format!("{conf}\n# changed\n"));
    lab.wait_for_findings(&lab.name, &["keepalived-vrrp-child-missing"]);
    lab.netns.ip("address add 192.0.2.9/24 dev eth0");
    lab.wait_for_role(&lab.name, "primary");
    let status = read(Path::new(&format!("/proc/{}/status", node.pid())));
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 300 << 10, "peak memory: {peak}");
}

#[test]
fn a_kernel_without_openat2_and_pidfd_gives_the_same_answers() {
    let mut lab = ContainerLab::new("OLD");
    let program = on_old_kernel(&lab.lab);
    lab.fixture = NodeFixture::new(&program, lab.lab.path()).with_processes();
    lab.fixture.configure("[find]\ncontainers = true\n");
    let include =
        format!("include /etc/keepalived/conf.d/*.conf\ninclude {}\n", lab.secret().display());
    lab.file("c", "etc/keepalived/conf.d/one.conf", &lab.conf(51, "192.0.2.9/24"));
    let container = lab.start_keepalived("c", &include);
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "primary");
    lab.assert_secret_is_kept();
    drop(container);
    lab.wait_for_findings(&lab.name, &["keepalived-gone-address-left"]);
}

/// The keepalived of this machine and one in a container, in the same network namespace.
#[test]
fn a_container_does_not_stand_in_for_the_keepalived_of_another_file() {
    let lab = ContainerLab::new("BESIDE");
    let text = format!("net_namespace {}\n{}", lab.netns.name(), lab.conf(51, "192.0.2.9/24"));
    write(&lab.fixture.keepalived_conf(), &text);
    let other = format!("OTHER_{}", lab.lab.number());
    let _container = lab.start_keepalived("c", &instance(&other, 52, "192.0.2.8/24"));
    let _node = lab.fixture.start();
    wait_for("the container", || (lab.containers().len() == 1).then_some(()));
    lab.wait_for_findings(&lab.name, &["keepalived-gone"]);
}

/// A pod on the network of the host, with a directory of the host as its own.
#[test]
fn a_container_with_the_file_of_the_host_is_the_keepalived_of_that_file() {
    let mut lab = ContainerLab::new("MOUNTED");
    let words = ["keepalived", "-n", "-P", "-l", "-f", "/var/lib/neutron/keepalived.conf"];
    let files = lab.lab.path().join("c");
    write(&lab.fixture.keepalived_conf(), &lab.conf(51, "192.0.2.9/24"));
    let container = Container::start(&lab.netns, &files, lab.lab.path(), &words);
    lab.fixture =
        NodeFixture::new(Path::new(PROGRAM), lab.lab.path()).with_processes().on(&lab.netns);
    let _node = lab.fixture.start();
    lab.wait_for_role(&lab.name, "primary");
    lab.wait_for_findings(&lab.name, &[]);
    drop(container);
    lab.wait_for_findings(&lab.name, &["keepalived-gone-address-left"]);
}
