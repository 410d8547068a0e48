// SPDX-License-Identifier: Apache-2.0
//! Neutron's own API server and Keystone, each a process with a database of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::Neutron;
use crate::{EtcdPlace, SignedCertificate};

/// A Python program that is a server. It is killed when dropped.
#[derive(Debug)]
struct PythonServer {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
}

impl PythonServer {
    fn start(mut command: Command, log: PathBuf) -> Self {
        let file = File::create(&log).expect("create the log of the server");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        let mut process = command.spawn().expect("start Python");
        let commands = process.stdin.take().expect("a pipe to the server");
        let answers = BufReader::new(process.stdout.take().expect("a pipe from the server"));
        Self { process, commands, answers, log }
    }

    fn read_answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("read from the server");
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the server ended:\n{}", log()))
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/neutron").join(name)
}

/// How Neutron's API server is started.
#[derive(Debug, Clone)]
pub struct NeutronServerOptions {
    /// The address to listen on, port 9696.
    pub address: IpAddr,
    /// The address of Keystone; `None` for a server without authentication.
    pub keystone: Option<String>,
    /// The certificate of the server; `None` for plain HTTP.
    pub tls: Option<SignedCertificate>,
}

impl NeutronServerOptions {
    /// A server without authentication on a loopback address of its own.
    pub fn new() -> Self {
        Self { address: EtcdPlace::loopback().address, keystone: None, tls: None }
    }
}

impl Default for NeutronServerOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Neutron's API server, release 29. PyPI's release 28 starts only with a matching release of its libraries.
#[derive(Debug)]
pub struct NeutronServer {
    server: PythonServer,
    url: String,
}

impl NeutronServer {
    /// Starts a server with its files in `directory`, which keeps its database for the next one.
    pub fn start(directory: &Path, options: &NeutronServerOptions) -> Self {
        let NeutronServerOptions { address, keystone, tls } = options;
        std::fs::create_dir_all(directory).expect("create the directory of the server");
        let mut command = Command::new(Neutron::V29.directory().join("bin/python"));
        command.arg(program("neutron_server.py")).arg(directory);
        command.args([&address.to_string(), "9696"]).args(keystone);
        if let Some(tls) = tls {
            command.env("TLS_CERTIFICATE", &tls.certificate).env("TLS_KEY", &tls.key);
        }
        let mut server = PythonServer::start(command, directory.join("log"));
        assert_eq!(server.read_answer(), "ready");
        let scheme = if tls.is_some() { "https" } else { "http" };
        Self { server, url: format!("{scheme}://{address}:9696") }
    }

    /// The address of the API.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds an HA router that is `standby` on these hosts.
    pub fn add_router(&mut self, router: &str, hosts: &[&str]) {
        self.call(&json!({ "do": "add_router", "router": router, "hosts": hosts }));
    }

    /// Sets the state of a router on a host, as a report of its agent does: `active` or `standby`.
    pub fn set_state(&mut self, router: &str, host: &str, state: &str) {
        self.call(&json!({ "do": "set_state", "router": router, "host": host, "state": state }));
    }

    fn call(&mut self, call: &Value) {
        writeln!(self.server.commands, "{call}").expect("send to the server");
        assert_eq!(self.server.read_answer(), json!({}), "{call}");
    }
}

/// Keystone, with the user `vipwatch` (password `vipwatch-secret`) and an application credential of it.
#[derive(Debug)]
pub struct KeystoneServer {
    server: PythonServer,
    /// The address of the API.
    pub url: String,
    /// The id of the application credential. It permits one request: the list of the agents of a router.
    pub credential_id: String,
    /// Its secret.
    pub credential_secret: String,
}

impl KeystoneServer {
    /// Starts Keystone with its files in `directory`.
    pub fn start(directory: &Path) -> Self {
        let name = "VIPWATCH_KEYSTONE";
        let python = std::env::var_os(name).map(PathBuf::from);
        let python = python
            .unwrap_or_else(|| panic!("{name} is not set; hint: run `cargo xtask test neutron`"));
        std::fs::create_dir_all(directory).expect("create the directory of the server");
        let address = EtcdPlace::loopback().address;
        let mut command = Command::new(python.join("bin/python"));
        command.arg(program("keystone_server.py")).arg(directory);
        command.args([&address.to_string(), "5000"]);
        let mut server = PythonServer::start(command, directory.join("log"));
        let credential = server.read_answer();
        let text = |key: &str| credential[key].as_str().expect("a credential").to_owned();
        let url = format!("http://{address}:5000/v3");
        Self { url, credential_id: text("id"), credential_secret: text("secret"), server }
    }

    /// Replaces the keys with which tokens are made: no token is valid any more.
    pub fn replace_keys(&mut self) {
        writeln!(self.server.commands).expect("send to the server");
        assert_eq!(self.server.read_answer(), json!({}));
    }
}
