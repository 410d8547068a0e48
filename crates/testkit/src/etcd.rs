// SPDX-License-Identifier: Apache-2.0
//! Real etcd: one or more members, as processes that a test stops, pauses and kills.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::{SignedCertificate, TestNetns, run, wait_showing};

/// The ports of every member. Members differ by their address.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// Where a member runs.
#[derive(Debug, Clone)]
pub struct EtcdPlace {
    /// Its address.
    pub address: IpAddr,
    /// The name of its namespace; `None` for that of the test.
    pub netns: Option<String>,
}

impl EtcdPlace {
    /// A loopback address that no other member of this process has.
    pub fn loopback() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let [_, _, high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        // The process id in it keeps two test programs apart that run in one namespace.
        let [.., process] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 64 | (process & 63), high ^ (process & 0xc0), low.max(1));
        Self { address: address.into(), netns: None }
    }

    /// An address in a namespace.
    pub fn in_netns(netns: &TestNetns, address: IpAddr) -> Self {
        Self { address, netns: Some(netns.name().to_owned()) }
    }

    fn command(&self, program: &str) -> Command {
        let Some(netns) = &self.netns else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns, program]);
        command
    }
}

/// The certificates of etcd for its clients.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// The certificate that the members show. It must be valid for their addresses.
    pub server: SignedCertificate,
    /// The authority of the members and of the clients.
    pub ca: PathBuf,
    /// Whether a client must show a certificate.
    pub needs_client_certificate: bool,
    /// The certificate for `etcdctl`.
    pub client: SignedCertificate,
}

/// How etcd is started.
#[derive(Debug, Clone, Default)]
pub struct EtcdProcessOptions {
    /// The certificates; `None` for plain HTTP.
    pub tls: Option<EtcdTls>,
    /// The maximum size of the database in bytes; `None` for etcd's own.
    pub quota: Option<u64>,
}

/// A cluster of etcd. Dropping it kills its members.
#[derive(Debug)]
pub struct Etcd {
    directory: PathBuf,
    options: EtcdProcessOptions,
    members: Vec<EtcdMember>,
    /// `USER:PASSWORD` of `etcdctl`, after [`Etcd::enable_login`].
    login: Option<String>,
}

#[derive(Debug)]
struct EtcdMember {
    place: EtcdPlace,
    /// Its own place while it runs on another one.
    home: Option<EtcdPlace>,
    /// `None` after it was stopped or killed.
    child: Option<Child>,
}

impl Etcd {
    /// One member on a loopback address. Its files are in `directory`.
    pub fn single(directory: &Path) -> Self {
        Self::start(directory, vec![EtcdPlace::loopback()], EtcdProcessOptions::default())
    }

    /// Three members on loopback addresses.
    pub fn three(directory: &Path) -> Self {
        let places = (0..3).map(|_| EtcdPlace::loopback()).collect();
        Self::start(directory, places, EtcdProcessOptions::default())
    }

    /// Starts a member at each place, and waits until they answer.
    pub fn start(directory: &Path, places: Vec<EtcdPlace>, options: EtcdProcessOptions) -> Self {
        let etcd = Self::spawned(directory, places, options);
        etcd.wait_until_healthy();
        etcd
    }

    /// As [`Self::start`], without waiting: for certificates that `etcdctl` does not accept.
    pub fn spawned(directory: &Path, places: Vec<EtcdPlace>, options: EtcdProcessOptions) -> Self {
        let members =
            places.into_iter().map(|place| EtcdMember { place, home: None, child: None }).collect();
        let directory = directory.join("etcd");
        let mut etcd = Self { directory, options, members, login: None };
        std::fs::create_dir_all(&etcd.directory).expect("create the directory of etcd");
        for number in 0..etcd.members.len() {
            etcd.spawn(number);
        }
        etcd
    }

    /// One member with a database of 4 MiB, which [`Self::fill`] fills.
    pub fn small(directory: &Path) -> Self {
        let quota = Some(4 * 1024 * 1024);
        let options = EtcdProcessOptions { quota, ..EtcdProcessOptions::default() };
        Self::start(directory, vec![EtcdPlace::loopback()], options)
    }

    /// Writes until etcd is full, and rejects writes.
    #[track_caller]
    pub fn fill(&self) {
        let filler = "x".repeat(100_000);
        wait_showing("etcd to be full", String::new, || {
            let put = self.ctl_command(&["put", "/fill", &filler]).output();
            put.is_ok_and(|put| !put.status.success()).then_some(())
        });
    }

    /// Makes a full etcd accept writes again.
    pub fn make_space(&self) {
        self.compact();
        self.ctl(&["defrag"]);
        self.ctl(&["alarm", "disarm"]);
    }

    /// The URLs of the members for clients.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|number| self.endpoint(number)).collect()
    }

    /// The URL of a member for clients.
    pub fn endpoint(&self, number: usize) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        url(scheme, self.members[number].place.address, CLIENT_PORT)
    }

    /// The metrics of the member at `http://HOST:PORT`, as text for Prometheus.
    pub fn metrics(endpoint: &str) -> String {
        let host = endpoint.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("connect to etcd");
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("send a request to etcd");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("read the metrics of etcd");
        text
    }

    /// Runs `etcdctl` on the running members, and returns its output. Panics if it fails.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        run(&mut self.ctl_command(args))
    }

    /// A command that runs `etcdctl` on the running members.
    pub fn ctl_command(&self, args: &[&str]) -> Command {
        let running = self.members.iter().position(|member| member.child.is_some()).unwrap_or(0);
        let mut command = self.members[running].place.command("etcdctl");
        let endpoints: Vec<String> = (0..self.members.len())
            .filter(|number| self.members[*number].child.is_some())
            .map(|number| self.endpoint(number))
            .collect();
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints.join(","));
        if let Some(tls) = &self.options.tls {
            command.arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.client.certificate).arg("--key").arg(&tls.client.key);
        }
        if let Some(login) = &self.login {
            command.args(["--user", login]);
        }
        command.args(args);
        command
    }

    /// Runs `etcdctl` with this text as its input. Panics if it fails.
    #[track_caller]
    pub fn ctl_with_input(&self, args: &[&str], input: &str) {
        let mut command = self.ctl_command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("start etcdctl");
        let mut stdin = child.stdin.take().expect("the input of etcdctl");
        stdin.write_all(input.as_bytes()).expect("write the input");
        drop(stdin);
        assert!(child.wait().expect("wait for etcdctl").success(), "etcdctl {args:?} failed");
    }

    /// The keys below a prefix and their values.
    pub fn entries(&self, prefix: &str) -> Vec<(String, String)> {
        let output = self.ctl(&["get", "--prefix", prefix]);
        let mut lines = output.lines();
        let mut entries = Vec::new();
        while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
            entries.push((key.to_owned(), value.to_owned()));
        }
        entries
    }

    /// The revision of etcd.
    pub fn revision(&self) -> i64 {
        let output = self.ctl(&["get", "absent", "--write-out", "json"]);
        let json: serde_json::Value = serde_json::from_str(&output).expect("JSON of etcdctl");
        json["header"]["revision"].as_i64().expect("a revision")
    }

    /// Requires a login: the user `root`, and a user with a role for one prefix. `etcdctl` uses `root` from now on.
    pub fn enable_login(&mut self, user: &str, password: &str, prefix: &str) {
        self.ctl(&["user", "add", "root:root-password"]);
        self.ctl(&["user", "add", &format!("{user}:{password}")]);
        self.ctl(&["role", "add", "vipwatch"]);
        self.ctl(&["role", "grant-permission", "--prefix=true", "vipwatch", "readwrite", prefix]);
        self.ctl(&["user", "grant-role", user, "vipwatch"]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["auth", "enable"]);
        self.login = Some("root:root-password".to_owned());
    }

    /// Changes the password of a user. Tokens of earlier logins are not valid any more.
    pub fn set_password(&self, user: &str, password: &str) {
        let args = ["user", "passwd", user, "--interactive=false"];
        self.ctl_with_input(&args, &format!("{password}\n"));
    }

    /// The number of leases.
    pub fn lease_count(&self) -> usize {
        // The first line has the number of the others.
        self.ctl(&["lease", "list"]).lines().skip(1).count()
    }

    /// Stops the process of a member for a while (SIGSTOP): its sockets stay open, and it answers nothing.
    pub fn pause(&self, number: usize) {
        self.signal(number, Signal::STOP);
        let pid = self.members[number].child.as_ref().map_or(0, Child::id);
        // Each thread stops when it next runs in the kernel.
        crate::wait_for("all threads to stop", || are_threads_stopped(pid).then_some(()));
    }

    /// Continues a paused member.
    pub fn resume(&self, number: usize) {
        self.signal(number, Signal::CONT);
    }

    /// Kills a member. Its data stay.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Deletes the data of a killed member.
    pub fn delete_data(&self, number: usize) {
        std::fs::remove_dir_all(self.directory.join(format!("m{number}")))
            .expect("delete the data of etcd");
    }

    /// Saves the data of the running member of a cluster with one member.
    pub fn save(&self, file: &Path) {
        self.ctl(&["snapshot", "save", &file.display().to_string()]);
    }

    /// Replaces the data of the killed member of a cluster with one member by those of a snapshot, as the manual of etcd shows:
    /// name, URLs and token stay, and so does the id of the cluster.
    pub fn restore(&self, file: &Path) {
        self.delete_data(0);
        let peer = url("http", self.members[0].place.address, PEER_PORT);
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(file);
        command.args(["--name", "m0", "--initial-cluster", &format!("m0={peer}")]);
        command.args(["--initial-advertise-peer-urls", &peer, "--data-dir"]);
        run(command.arg(self.directory.join("m0")));
    }

    /// Starts a killed member with its data, and waits until all members answer.
    pub fn restart(&mut self, number: usize) {
        self.spawn(number);
        self.wait_until_healthy();
    }

    /// As [`Self::restart`], without waiting: without a majority, no member answers.
    pub fn restart_only(&mut self, number: usize) {
        self.spawn(number);
    }

    /// Starts the killed member of a cluster with one member on another address for its clients, so that only the test
    /// reaches it. [`Self::move_back`] ends this.
    pub fn move_member(&mut self, number: usize, place: EtcdPlace) {
        let home = std::mem::replace(&mut self.members[number].place, place);
        self.members[number].home = Some(home);
        self.restart(number);
    }

    /// Starts a moved member on its own address again.
    pub fn move_back(&mut self, number: usize) {
        self.kill(number);
        if let Some(home) = self.members[number].home.take() {
            self.members[number].place = home;
        }
        self.restart(number);
    }

    /// The number of the member that leads the cluster.
    pub fn leader(&self) -> usize {
        let find = || {
            let output = self.ctl(&["endpoint", "status", "--write-out", "json"]);
            let json: serde_json::Value = serde_json::from_str(&output).ok()?;
            let leads = |entry: &&serde_json::Value| {
                let status = &entry["Status"];
                status["leader"] == status["header"]["member_id"]
            };
            let endpoint = json.as_array()?.iter().find(leads)?["Endpoint"].as_str()?.to_owned();
            (0..self.members.len()).find(|number| self.endpoint(*number) == endpoint)
        };
        crate::wait_for("a leader of etcd", find)
    }

    /// Deletes old revisions up to the current one.
    pub fn compact(&self) {
        let revision = self.revision().to_string();
        self.ctl(&["compact", &revision]);
    }

    fn signal(&self, number: usize, signal: Signal) {
        let child = self.members[number].child.as_ref().expect("the member runs");
        kill_process(Pid::from_child(child), signal).expect("the member is a child of the test");
    }

    fn spawn(&mut self, number: usize) {
        let name = |number: usize| format!("m{number}");
        // The id of a new cluster follows from these addresses, and a moved member keeps it.
        let home = |number: usize| {
            let member = &self.members[number];
            member.home.as_ref().unwrap_or(&member.place).address
        };
        let peer = |number: usize| url("http", home(number), PEER_PORT);
        let cluster: Vec<String> = (0..self.members.len())
            .map(|number| format!("{}={}", name(number), peer(number)))
            .collect();
        let client = self.endpoint(number);
        let mut command = self.members[number].place.command("etcd");
        command.args(["--name", &name(number), "--data-dir"]);
        command.arg(self.directory.join(format!("m{number}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(number)]);
        command.args(["--initial-advertise-peer-urls", &peer(number)]);
        command.args(["--initial-cluster", &cluster.join(","), "--logger", "zap"]);
        // A majority that has lost its leader elects a new one sooner than with the defaults.
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        if let Some(quota) = self.options.quota {
            command.args(["--quota-backend-bytes", &quota.to_string()]);
        }
        if let Some(tls) = &self.options.tls {
            command.arg("--cert-file").arg(&tls.server.certificate);
            command.arg("--key-file").arg(&tls.server.key);
            if tls.needs_client_certificate {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            }
        }
        let log = self.log_path(number);
        let log = std::fs::File::options().create(true).append(true).open(log).expect("etcd.log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("etcd.log")).stderr(log);
        let child = command.spawn().expect("etcd; hint: `cargo xtask test` installs it");
        self.members[number].child = Some(child);
    }

    fn wait_until_healthy(&self) {
        let logs = || {
            let read = |number| std::fs::read_to_string(self.log_path(number)).unwrap_or_default();
            (0..self.members.len()).map(read).collect()
        };
        wait_showing("etcd to answer", logs, || {
            let mut command = self.ctl_command(&["endpoint", "health"]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success()).then_some(())
        });
    }

    fn log_path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("m{number}.log"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
        }
    }
}

/// Whether every thread of a process is stopped: the state after the name in parentheses is `T`.
fn are_threads_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

fn url(scheme: &str, address: IpAddr, port: u16) -> String {
    format!("{scheme}://{}", std::net::SocketAddr::new(address, port))
}
