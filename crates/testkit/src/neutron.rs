// SPDX-License-Identifier: Apache-2.0
//! Neutron's own code, releases 28 and 29: its monitors; its agent, which `neutron/agent.py` runs as a process; and its API
//! server with Keystone ([`NeutronServer`], [`KeystoneServer`]).

mod servers;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub use self::servers::{KeystoneServer, NeutronServer, NeutronServerOptions};
use crate::{Lab, Router};
use serde_json::{Value, json};

/// A release of Neutron that is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the name is the version")]
pub enum Neutron {
    V28,
    V29,
}

impl Neutron {
    /// The directory in which the release is installed.
    pub fn directory(self) -> PathBuf {
        let name = match self {
            Self::V28 => "VIPWATCH_NEUTRON_28",
            Self::V29 => "VIPWATCH_NEUTRON_29",
        };
        let directory = std::env::var_os(name);
        directory
            .unwrap_or_else(|| panic!("{name} is not set; hint: run `cargo xtask test neutron`"))
            .into()
    }

    /// Neutron's own monitor.
    pub fn monitor(self) -> PathBuf {
        self.directory().join("bin/neutron-keepalived-state-change")
    }

    fn number(self) -> &'static str {
        match self {
            Self::V28 => "28",
            Self::V29 => "29",
        }
    }
}

/// A running agent. It is killed when dropped and leaves its socket behind, as a killed agent does.
#[derive(Debug)]
pub struct NeutronAgent {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl NeutronAgent {
    /// Starts an agent that runs `program` as its monitor. It knows `routers` before a monitor can connect to it.
    pub fn start(lab: &Lab, neutron: Neutron, program: &Path, routers: &[&Router]) -> Self {
        let bin = lab.path().join("bin");
        let _ = std::fs::create_dir(&bin);
        let _ = std::os::unix::fs::symlink(program, bin.join("neutron-keepalived-state-change"));
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        let log =
            std::fs::File::create(lab.path().join("agent.log")).expect("create the agent's log");
        let mut command = Command::new(neutron.directory().join("bin/python"));
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/neutron/agent.py"));
        // The advert interval is 1 s. The root helper `env` runs commands unchanged, because the test is already root.
        command.arg(lab.path()).args(["1", neutron.number(), "env"]);
        command.env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().expect("start Neutron's Python");
        let commands = process.stdin.take().expect("a pipe to the agent");
        let answers = BufReader::new(process.stdout.take().expect("a pipe from the agent"));
        let mut agent = Self { process, commands, answers };
        let routers: Vec<Value> = routers
            .iter()
            .map(|router| json!({ "router": router.id, "conf_dir": router.conf_dir }))
            .collect();
        writeln!(agent.commands, "{}", Value::from(routers)).expect("send to the agent");
        assert_eq!(agent.read_answer(), "ready");
        agent
    }

    /// Sends a command about `router` and returns the answer.
    pub fn send(&mut self, command: &str, router: &Router) -> Value {
        self.call(&json!({
            "do": command,
            "router": router.id,
            "netns": router.netns.name(),
            "conf_dir": router.conf_dir,
            "link": router.link,
            "cidr": router.cidr,
        }))
    }

    /// The state of each router that the agent has applied.
    pub fn applied(&mut self) -> HashMap<String, String> {
        let answer = self.call(&json!({ "do": "applied" }));
        states(&answer)
    }

    /// The state of each router that the agent has reported to neutron-server.
    pub fn reported(&mut self) -> HashMap<String, String> {
        let answer = self.call(&json!({ "do": "reported" }));
        states(&answer)
    }

    fn call(&mut self, call: &Value) -> Value {
        writeln!(self.commands, "{call}").expect("send to the agent");
        let answer = self.read_answer();
        assert!(answer.get("error").is_none(), "{call}: {answer}");
        answer
    }

    fn read_answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("read from the agent");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the agent ended; see agent.log"))
    }
}

impl Drop for NeutronAgent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn states(answer: &Value) -> HashMap<String, String> {
    let pairs = answer.as_object().into_iter().flatten();
    pairs.filter_map(|(id, state)| Some((id.clone(), state.as_str()?.to_owned()))).collect()
}
