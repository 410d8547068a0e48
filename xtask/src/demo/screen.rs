//! One screen on a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use vipwatch_linux::clock::local_time;

use super::{Change, Node};

/// How many lines of the past are kept in view.
const LINES: usize = 16;

/// What is shown.
pub struct Screen {
    is_terminal: bool,
    lines: VecDeque<String>,
    /// What the kernel of each node holds.
    held: [bool; 2],
    files: Vec<Duration>,
    agents: Vec<Duration>,
}

impl Screen {
    pub fn new(is_terminal: bool) -> Self {
        if is_terminal {
            // The alternate screen, so that nothing is left behind there either.
            print!("\x1b[?1049h\x1b[?25l");
        } else {
            println!("{HEAD}");
        }
        Self {
            is_terminal,
            lines: VecDeque::new(),
            held: [false; 2],
            files: Vec::new(),
            agents: Vec::new(),
        }
    }

    /// A change that was witnessed.
    pub fn add(&mut self, change: &Change, nodes: &[Node; 2]) {
        let Change { node, clock, is_held, file, agent } = change;
        let word = if *is_held { "primary" } else { "backup" };
        let kernel = if *is_held { "address added" } else { "address removed" };
        let after = |span: Option<Duration>| {
            span.map_or_else(|| "not yet".to_owned(), |span| format!("{word} +{:.2} ms", ms(span)))
        };
        let name = nodes[*node].name;
        self.line(format!("{clock}  {name}  {kernel:<16}{:<20}{}", after(*file), after(*agent)));
        self.held[*node] = *is_held;
        self.files.extend(*file);
        self.agents.extend(*agent);
    }

    /// Something that was done to a node.
    pub fn say(&mut self, what: &str) {
        self.line(format!("{}  {what}", clock()));
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
    pub fn draw(&self, nodes: &[Node; 2]) {
        if !self.is_terminal {
            return;
        }
        let mut text = String::from("\x1b[H");
        let mut row = |line: &str| {
            // Erase what the row held before, to its end.
            let _ = write!(text, "{line}\x1b[K\r\n");
        };
        row("vipwatch: two nodes, real keepalived, one virtual address        Ctrl-C ends it");
        row("");
        row("node    keepalived  kernel        state file  the agent was told");
        for (node, is_held) in nodes.iter().zip(self.held) {
            let kernel = if is_held { "address held" } else { "–" };
            let keepalived = if node.keepalived.is_some() { "running" } else { "stopped" };
            let file = node.router.state().unwrap_or_default();
            let told = node.agent.last().map(|letter| letter.word().to_owned()).unwrap_or_default();
            row(&format!("{:<8}{keepalived:<12}{kernel:<14}{file:<12}{told}", node.name));
        }
        row("");
        row(HEAD);
        for line in &self.lines {
            row(line);
        }
        row("");
        row(&self.summary());
        text.push_str("\x1b[J");
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Gives the terminal back, with the sum of it all.
    pub fn end(&self) {
        if self.is_terminal {
            print!("\x1b[?25h\x1b[?1049l");
        }
        println!("{}; nothing is left behind", self.summary());
    }

    fn summary(&self) -> String {
        let half = |spans: &[Duration]| {
            let mut spans = spans.to_vec();
            spans.sort();
            spans.get(spans.len() / 2).map_or(0.0, |span| ms(*span))
        };
        let count = self.files.len();
        let (file, agent) = (half(&self.files), half(&self.agents));
        format!(
            "{count} changes; after the kernel's news, half of the files within {file:.2} ms, half of the agents within {agent:.2} ms"
        )
    }
}

const HEAD: &str = "time          node    kernel          state file          agent";

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The time of day.
pub fn clock() -> String {
    let now = local_time();
    format!("{:02}:{:02}:{:02}.{:03}", now.hour, now.minute, now.second, now.millisecond)
}
