//! `vipwatch watch`: prints every transition as it happens, one line for each, with the latencies of its
//! deliveries.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use vipwatch_history::Latencies;
use vipwatch_linux::clock;
use vipwatch_node::config::Listen;
use vipwatch_node::query_client::{QueryError, QueryStream};
use vipwatch_node::selection::Selection;
use vipwatch_node::transition::Transition;
use vipwatch_node::watch::follower::Follower;

use super::show::latencies;
use super::{each, node_name, problems_text, text};
use crate::args::{Format, WatchArgs};
use crate::ask::failure;
use crate::failure::{CommandError, ExitStatus};
use crate::output;

/// Maximum time that a line waits for the latencies of its deliveries.
const DELIVERY_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &WatchArgs) -> Result<(), CommandError> {
    let printer = Printer::new(options);
    if options.query.is_direct() {
        return follow(options, printer);
    }
    let node = options.query.node_settings()?;
    let question = json!({ "ask": "watch", "ids": options.ids });
    match QueryStream::ask(&node.config.socket, &question) {
        Ok(line) => print_answers(line, printer),
        Err(QueryError::NotListening(_)) => match node.unread() {
            Some(failure) => Err(failure),
            None => follow(options, printer),
        },
        Err(error) => Err(failure(&error)),
    }
}

/// Prints transitions in order.
struct Printer {
    format: Format,
    /// The number of transitions until the command ends; `None` for no limit.
    left: Option<u64>,
    /// Transitions that are not printed yet, oldest first.
    waiting: VecDeque<WaitingLine>,
}

/// A transition that is printed when its deliveries have ended.
struct WaitingLine {
    transition: Value,
    /// Stages with deliveries that have not ended.
    pending: Vec<String>,
    /// When the line is printed anyway.
    deadline: Instant,
}

/// Whether the command continues.
#[derive(PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

impl Printer {
    fn new(options: &WatchArgs) -> Self {
        Self { format: options.query.format, left: options.transitions, waiting: VecDeque::new() }
    }

    /// Prints or stores one line of the node's answer.
    fn take(&mut self, line: Value) -> Flow {
        let schema = text(&line["schema"]);
        match (self.format, schema.as_str()) {
            (_, "vipwatch.pulse/1" | "vipwatch.live/1") => Flow::Continue,
            (Format::Json, "vipwatch.transition/1") => self.print_transition(&line),
            (Format::Json, _) => print(&output::json_line(&line)),
            (Format::Table, "vipwatch.instance/1") => print(&role_line(&line)),
            (Format::Table, "vipwatch.gap/1") => {
                print(&format!("({} lines were missed)", line["missed"]))
            }
            (Format::Table, "vipwatch.stage/1") => {
                self.set_latency(&line);
                self.flush(Instant::now())
            }
            (Format::Table, "vipwatch.transition/1") => {
                let known = line["latencies"].as_object();
                let stages = each(&line["stages"]).map(text);
                let is_pending =
                    |stage: &String| known.is_none_or(|known| !known.contains_key(stage));
                // Only a primary announces its addresses.
                let is_due = |stage: &String| stage != "announce" || line["to"] == "primary";
                let pending = stages.filter(is_pending).filter(is_due).collect();
                let deadline = Instant::now() + DELIVERY_WAIT;
                self.waiting.push_back(WaitingLine { transition: line, pending, deadline });
                self.flush(Instant::now())
            }
            (Format::Table, _) => Flow::Continue,
        }
    }

    /// Adds the latency of a delivery to the line that waits for it.
    fn set_latency(&mut self, stage: &Value) {
        let is_same = |line: &&mut WaitingLine| line.transition["seq"] == stage["seq"];
        let Some(line) = self.waiting.iter_mut().find(is_same) else { return };
        let name = text(&stage["stage"]);
        if stage["error"].is_null() {
            line.transition["latencies"][&name] = stage["micros"].clone();
        }
        if stage["final"] == true {
            line.pending.retain(|pending| *pending != name);
        }
    }

    /// Prints, in order, the lines with no pending delivery or with a deadline that has passed.
    fn flush(&mut self, now: Instant) -> Flow {
        let is_ready = |line: &mut WaitingLine| line.pending.is_empty() || line.deadline <= now;
        while let Some(line) = self.waiting.pop_front_if(is_ready) {
            let WaitingLine { mut transition, pending, .. } = line;
            if !pending.is_empty() {
                transition["open"] = pending.into();
            }
            if self.print_transition(&transition) == Flow::Stop {
                return Flow::Stop;
            }
        }
        Flow::Continue
    }

    fn print_transition(&mut self, transition: &Value) -> Flow {
        let line = match self.format {
            Format::Json => output::json_line(transition),
            Format::Table => transition_line(transition),
        };
        if print(&line) == Flow::Stop {
            return Flow::Stop;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return Flow::Stop;
            }
        }
        Flow::Continue
    }
}

/// Prints a line. The command stops when the reader has closed the pipe.
fn print(line: &str) -> Flow {
    if output::print_or_closed(&format!("{line}\n")) { Flow::Continue } else { Flow::Stop }
}

/// Prints the answers of the node until it stops or enough transitions are printed.
fn print_answers(mut line: QueryStream, mut printer: Printer) -> Result<(), CommandError> {
    loop {
        let answer = match printer.waiting.front() {
            None => line.next_within(None),
            Some(waiting) => {
                let left = waiting.deadline.saturating_duration_since(Instant::now());
                line.next_within(Some(left.max(Duration::from_millis(1))))
            }
        };
        let flow = match answer.map_err(|error| failure(&error))? {
            Some(Some(value)) => printer.take(value),
            Some(None) => {
                let message = "the node has stopped";
                return Err(CommandError::new(ExitStatus::Missing, message));
            }
            None => printer.flush(Instant::now()),
        };
        if flow == Flow::Stop {
            return Ok(());
        }
    }
}

/// Follows the instances without a node.
fn follow(options: &WatchArgs, mut printer: Printer) -> Result<(), CommandError> {
    let config = options.query.settings()?;
    let failed = |error: std::io::Error| {
        let message = format!("cannot listen to all namespaces: {error}");
        CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
    };
    let mut follower =
        Follower::open(config.locations, config.instances, Listen::Auto).map_err(failed)?;
    let mut update = follower.rediscover();
    let ids = follower.instances().iter().map(|instance| instance.id.as_str());
    let mut selection = Selection::new(&options.ids, ids);
    let mut seq = 0;
    loop {
        if let Some(problems) = update.problems.filter(|_| printer.format == Format::Table) {
            output::print(&problems_text(&problems));
        }
        for change in update.changes_before_scan.into_iter().chain(update.changes) {
            selection.notice(change.instance.id.as_str());
            if !selection.covers(change.instance.id.as_str()) {
                continue;
            }
            // The role at the start is not a transition.
            let is_initial = change.from.is_none();
            seq += i64::from(!is_initial);
            let transition = Transition {
                seq,
                at: SystemTime::now(),
                read_at: clock::now(),
                instance: change.instance,
                from: change.from.map(|from| from.kind()),
                to: change.to,
                cause: change.cause,
                must_notify: !is_initial,
            };
            let line = transition.json(&node_name(), &Latencies::default());
            let flow = match (is_initial, printer.format) {
                (true, Format::Json) => print(&output::json_line(&line)),
                (true, Format::Table) => print(&transition_line(&line)),
                (false, _) => printer.print_transition(&line),
            };
            if flow == Flow::Stop {
                return Ok(());
            }
        }
        update = follower.wait().map_err(|error| {
            CommandError::new(ExitStatus::Missing, format!("cannot wait for events: {error}"))
        })?;
    }
}

/// A transition in one line, for people.
fn transition_line(transition: &Value) -> String {
    let time = text(&transition["time"]);
    let time = time.split('T').nth(1).unwrap_or_default();
    let from = Some(text(&transition["from"])).filter(|from| !from.is_empty());
    let from = from.map(|from| format!("{from} → ")).unwrap_or_default();
    let reason = Some(text(&transition["reason"])).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let (id, to, cause) =
        (text(&transition["id"]), text(&transition["to"]), text(&transition["cause"]));
    let delivered = Some(latencies(&transition["latencies"])).filter(|text| !text.is_empty());
    let pending = each(&transition["open"]).map(|stage| format!("{} …", text(stage)));
    let deliveries = delivered.into_iter().chain(pending).collect::<Vec<_>>().join(", ");
    let deliveries =
        if deliveries.is_empty() { String::new() } else { format!("  [{deliveries}]") };
    output::escape_untrusted(&format!("{time}  {id}  {from}{to}  ({cause}{reason}){deliveries}"))
}

/// The role of an instance in one line, for people.
fn role_line(instance: &Value) -> String {
    let since = text(&instance["since_time"]).replace('T', " ");
    let reason = Some(text(&instance["reason"])).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let (id, role) = (text(&instance["id"]), text(&instance["role"]));
    output::escape_untrusted(&format!("{:<12}  {id}  {role}{reason}  (since {since})", ""))
}
