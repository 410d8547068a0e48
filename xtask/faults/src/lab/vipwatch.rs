// SPDX-License-Identifier: Apache-2.0
//! `vipwatch node` on one host: its configuration, its start, and the recordings of its answers.

use std::process::Stdio;

use serde_json::Value;

use super::host::LabHost;
use super::{output, recorders, wait_for, write_file};
use crate::setup::{LabSetup, NodeFiles, group_conf, node_conf, node_name};
use crate::{FaultsError, LabResult};

/// The documents about the cluster that are recorded again and again.
const DOCUMENTS: &[&str] = &["/v1/cluster/groups", "/v1/cluster/nodes", "/v1/cluster/findings"];

/// Each architecture's library directories.
const LIBRARIES: &str = "/usr/lib";
/// The version for processes with several threads.
const FAKETIME: &str = "faketime/libfaketimeMT.so.1";

impl LabHost {
    fn files(&self) -> NodeFiles {
        NodeFiles::of(node_name(self.index), &self.directory, "vipwatch")
    }

    /// Starts a node with these files as a service.
    fn start_node(&self, setup: &LabSetup, service: &str, files: &NodeFiles) -> LabResult {
        write_file(&files.config, &node_conf(setup, self.index, &self.directory, files))?;
        let has_clock = setup.cluster.as_ref().is_some_and(|cluster| cluster.has_own_clocks);
        let prefix = match service {
            "vipwatch" if has_clock => self.clock_prefix()?,
            _ => String::new(),
        };
        let (program, config) = (self.vipwatch.display(), files.config.display());
        self.start_service(service, &format!("{prefix}{program} node --config {config}"))
    }

    pub fn start_vipwatch(&self, setup: &LabSetup) -> LabResult {
        std::fs::create_dir_all(self.file("neutron/ha_confs"))?;
        self.start_node(setup, "vipwatch", &self.files())
    }

    /// Starts a second node on this host, with the name of another host's node.
    pub fn start_twin(&self, setup: &LabSetup, name: String) -> LabResult {
        let files = NodeFiles::of(name, &self.directory, "twin");
        self.start_node(setup, "twin", &files)?;
        wait_for("the second node of a host", || {
            Ok(recorders::get(&files.socket, "/v1/instances").ok())
        })?;
        recorders::record_documents(&files.socket, &self.file("twin.jsonl"), &["/v1/findings"])
    }

    /// Puts the first instance into a configured group, or takes it out, and lets the node read its configuration.
    pub fn set_group(&self, setup: &LabSetup, has_group: bool) -> LabResult {
        let files = self.files();
        let mut text = node_conf(setup, self.index, &self.directory, &files);
        text.push_str(&if has_group { group_conf() } else { String::new() });
        write_file(&files.config, &text)?;
        self.signal_service("vipwatch", "HUP")
    }

    /// The command prefix for a process with its own wall clock. The kernel has no namespace for it, so
    /// `libfaketime` adds the seconds in the file `clock` to each time that the process reads. The monotonic clock and the
    /// times of files stay as they are.
    fn clock_prefix(&self) -> LabResult<String> {
        let file = self.file("clock");
        if !file.exists() {
            self.set_clock(0)?;
        }
        let directories =
            std::fs::read_dir(LIBRARIES)?.filter_map(|entry| Some(entry.ok()?.path()));
        let library = directories.map(|path| path.join(FAKETIME)).find(|path| path.exists());
        let hint = "hint: install the package libfaketime";
        let none = || FaultsError(format!("{LIBRARIES} has no {FAKETIME}\n  {hint}"));
        // A process reads the file again after one second.
        Ok(format!(
            "env LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_CACHE_DURATION=1 \
             FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 FAKETIME_DISABLE_SHM=1 ",
            library.ok_or_else(none)?.display(),
            file.display()
        ))
    }

    /// Sets the wall clock of the node: seconds after that of the machine.
    pub fn set_clock(&self, seconds: i64) -> LabResult {
        write_file(&self.file("clock"), &format!("{seconds:+}\n"))
    }

    /// Waits until the node answers; an error if it ends.
    pub fn wait_for_vipwatch(&self) -> LabResult {
        wait_for(&format!("the node on host {}", self.index), || {
            if !self.is_service_alive("vipwatch") {
                let log = std::fs::read_to_string(self.file("vipwatch.log"))?;
                let text = format!("the node of host {} has ended: {log}", self.index);
                return Err(FaultsError(text));
            }
            let answer = recorders::get(&self.files().socket, "/v1/instances");
            Ok(answer.ok().filter(|text| text.contains("VI_1")))
        })
        .map(drop)
    }

    /// Records the events of the node, and its documents about the cluster.
    pub fn record_answers(&mut self, has_cluster: bool) -> LabResult {
        let files = self.files();
        if has_cluster {
            let file = self.file("documents.jsonl");
            recorders::record_documents(&files.socket, &file, DOCUMENTS)?;
        }
        let mut watch = self.command(&self.vipwatch.display().to_string());
        watch.args(["watch", "-o", "json", "--after", "0", "--config"]).arg(&files.config);
        self.record(&mut watch, "events.jsonl")
    }

    /// Whether the recorded events have opened a finding.
    pub fn has_opened(&self, name: &str) -> bool {
        let text = std::fs::read_to_string(self.file("events.jsonl")).unwrap_or_default();
        let (open, name) = ("\"state\":\"open\"", format!("\"name\":\"{name}\""));
        text.lines().any(|line| line.contains(open) && line.contains(&name))
    }

    /// Begins or ends a silence of all instances.
    pub fn silence(&self, is_silent: bool) -> LabResult {
        let program = self.vipwatch.display().to_string();
        let mut command = self.command(&program);
        if is_silent {
            command.args(["silence", "--all", "--for", "10m", "--reason", "lab"]);
        } else {
            let list: Value =
                serde_json::from_str(&recorders::get(&self.files().socket, "/v1/silences")?)?;
            command.args(["silence", "remove", &list["items"][0]["number"].to_string()]);
        }
        output(command.arg("--config").arg(self.files().config)).map(drop)
    }

    /// Writes the history of the node to a file.
    pub fn collect_history(&self) -> LabResult {
        let mut command = self.command(&self.vipwatch.display().to_string());
        command.args(["history", "-n", "10000", "-o", "json", "--config"]);
        let output = command.arg(self.files().config).stdin(Stdio::null()).output()?;
        write_file(&self.file("history.json"), &String::from_utf8_lossy(&output.stdout))
    }
}
