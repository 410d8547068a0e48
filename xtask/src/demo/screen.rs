// SPDX-License-Identifier: Apache-2.0
//! The output of the demo: a full screen on a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

use vipwatch_linux::clock::local_time;

use super::{DemoNode, INSTANCES};

/// Maximum number of lines below the table.
const MAX_LINES: usize = 18;

/// The state of the output.
pub struct Screen {
    is_terminal: bool,
    /// The dashboard and the command for `top` of each node.
    links: Vec<String>,
    /// Whether failures are over and the nodes are kept.
    is_kept: bool,
    /// The last lines, the newest at the end.
    lines: VecDeque<String>,
    /// Number of transitions that were printed.
    transitions: usize,
}

impl Screen {
    pub fn new(is_terminal: bool, links: Vec<String>) -> Self {
        if is_terminal {
            // The alternate screen: the terminal shows its earlier content again at the end.
            print!("\x1b[?1049h\x1b[?25l");
        } else {
            for link in &links {
                println!("{link}");
            }
        }
        Self { is_terminal, links, is_kept: false, lines: VecDeque::new(), transitions: 0 }
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Shows that the nodes stay without failures.
    pub fn keep(&mut self) {
        self.is_kept = true;
        if !self.is_terminal {
            println!("no more failures; Ctrl-C stops the demo");
        }
    }

    /// Adds a line of `vipwatch watch` on node `name`.
    pub fn add(&mut self, name: &str, line: &str) {
        self.transitions += usize::from(line.contains('→'));
        let (time, rest) = line.split_once("  ").unwrap_or_default();
        // `DATE TIME+ZONE`; the first lines have the present roles and `now`.
        let time = time.split(' ').nth(1).and_then(|time| time.get(..12)).unwrap_or_default();
        self.line(format!("{time:<12}  {name}  {}", rest.trim_start()));
    }

    /// Adds a line about an action of the demo on node `name`.
    pub fn add_action(&mut self, name: &str, action: &str) {
        let now = local_time();
        let (hour, minute, second) = (now.hour, now.minute, now.second);
        let millisecond = now.millisecond;
        let time = format!("{hour:02}:{minute:02}:{second:02}.{millisecond:03}");
        self.line(format!("{time}  {name}  ── {action}"));
    }

    fn line(&mut self, line: String) {
        if !self.is_terminal {
            println!("{line}");
        }
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.lines.pop_front();
        }
    }

    /// Draws the screen, if the output is a terminal.
    pub fn draw(&self, nodes: &[DemoNode]) {
        if !self.is_terminal {
            return;
        }
        let mut text = String::from("\x1b[H");
        let mut row = |line: &str| {
            // `ESC [K` erases the rest of the row.
            let _ = write!(text, "{line}\x1b[K\r\n");
        };
        let stop = if self.is_kept { "no more failures; Enter to stop" } else { "Ctrl-C to stop" };
        row(&format!(
            "vipwatch demo: three nodes, real keepalived, three virtual addresses   {stop}"
        ));
        row("");
        for link in &self.links {
            row(link);
        }
        row("");
        for line in table(nodes) {
            row(&line);
        }
        row("");
        for line in &self.lines {
            row(line);
        }
        text.push_str("\x1b[J");
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Restores the terminal and prints the table and the number of transitions.
    pub fn end(&self, nodes: &[DemoNode]) {
        if self.is_terminal {
            print!("\x1b[?25h\x1b[?1049l");
        }
        println!();
        for line in table(nodes) {
            println!("{line}");
        }
        println!(
            "\n{} transitions; all namespaces and processes of the demo are removed",
            self.transitions
        );
    }
}

/// The roles of all instances on all nodes, with a line about failures.
fn table(nodes: &[DemoNode]) -> Vec<String> {
    let mut head = format!("{:<8}", "");
    let mut failures = format!("{:<8}", "");
    for node in nodes {
        let failure = match (node.is_keepalived_running(), node.is_cut) {
            (true, false) => "",
            (false, _) => "keepalived stopped",
            (true, true) => "cable cut",
        };
        let _ = write!(head, "{:<20}", node.name);
        let _ = write!(failures, "{failure:<20}");
    }
    let mut lines = vec![head, failures];
    for (at, instance) in INSTANCES.iter().enumerate() {
        let mut line = format!("{:<8}", instance.name);
        for node in nodes {
            let _ = write!(line, "{:<20}", node.roles[at]);
        }
        lines.push(line);
    }
    lines
}
