//! One screen on a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

use vipwatch_linux::clock::local_time;

use super::{DemoNode, SERVICES};

/// How many lines of the past are kept in view.
const LINES: usize = 18;

/// What is shown.
pub struct Screen {
    is_terminal: bool,
    lines: VecDeque<String>,
    changes: usize,
}

impl Screen {
    pub fn new(is_terminal: bool) -> Self {
        if is_terminal {
            // The alternate screen, so that nothing is left behind there either.
            print!("\x1b[?1049h\x1b[?25l");
        }
        Self { is_terminal, lines: VecDeque::new(), changes: 0 }
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// A line of `vipwatch watch` on one machine.
    pub fn add(&mut self, name: &str, line: &str) {
        self.changes += usize::from(line.contains('→'));
        // The first lines say where everybody stands, and have no time.
        let line = match line.split_once("  ") {
            Some((time, rest)) if !time.trim().is_empty() => format!("{time}  {name}  {rest}"),
            _ => format!("{:<12}  {name}  {}", "", line.trim_start()),
        };
        self.line(line);
    }

    /// Something that was done to a machine.
    pub fn say(&mut self, name: &str, what: &str) {
        let now = local_time();
        let (hour, minute, second) = (now.hour, now.minute, now.second);
        let millisecond = now.millisecond;
        let time = format!("{hour:02}:{minute:02}:{second:02}.{millisecond:03}");
        self.line(format!("{time}  {name}  ── {what}"));
    }

    fn line(&mut self, line: String) {
        if !self.is_terminal {
            println!("{line}");
        }
        self.lines.push_back(line);
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    /// Draws all of it, on a terminal.
    pub fn draw(&self, machines: &[DemoNode]) {
        if !self.is_terminal {
            return;
        }
        let mut text = String::from("\x1b[H");
        let mut row = |line: &str| {
            // Erase what the row held before, to its end.
            let _ = write!(text, "{line}\x1b[K\r\n");
        };
        row(
            "vipwatch: three nodes, real keepalived, three virtual addresses        Ctrl-C ends it",
        );
        row("");
        for line in table(machines) {
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

    /// Gives the terminal back, with the sum of it all.
    pub fn end(&self, machines: &[DemoNode]) {
        if self.is_terminal {
            print!("\x1b[?25h\x1b[?1049l");
        }
        println!();
        for line in table(machines) {
            println!("{line}");
        }
        println!("\n{} changes were seen; nothing is left behind", self.changes);
    }
}

/// Who is what, where.
fn table(machines: &[DemoNode]) -> Vec<String> {
    let mut head = format!("{:<8}", "");
    let mut below = format!("{:<8}", "");
    for machine in machines {
        let health = match (machine.is_working(), machine.is_cut) {
            (true, false) => "",
            (false, _) => "keepalived stopped",
            (true, true) => "cable cut",
        };
        let _ = write!(head, "{:<20}", machine.name);
        let _ = write!(below, "{health:<20}");
    }
    let mut lines = vec![head, below];
    for (at, (name, _, _)) in SERVICES.iter().enumerate() {
        let mut line = format!("{name:<8}");
        for machine in machines {
            let _ = write!(line, "{:<20}", machine.roles[at]);
        }
        lines.push(line);
    }
    lines
}
