//! `vipwatch watch`: every change as it happens, one line each, with who was told how soon.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use vipwatch_history::Latencies;
use vipwatch_linux::clock;
use vipwatch_node::config::Listen;
use vipwatch_node::query_client::{QueryError, QueryLine};
use vipwatch_node::selection::Selection;
use vipwatch_node::transition::Transition;
use vipwatch_node::watch::follower::Follower;

use super::show::latencies;
use super::{each, node_name, text, troubles_text};
use crate::args::{Format, WatchArgs};
use crate::ask::failure;
use crate::failure::{CommandError, ExitStatus};
use crate::show;

/// How long a line waits for those who are still to be told.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &WatchArgs) -> Result<(), CommandError> {
    let screen = Screen::of(options);
    if options.place.is_direct() {
        return follow(options, screen);
    }
    let asking = options.place.settings_for_asking()?;
    let question = json!({ "ask": "watch", "ids": options.ids });
    match QueryLine::ask(&asking.config.socket, &question) {
        Ok(line) => listen(line, screen),
        Err(QueryError::Nobody(_)) => match asking.unread() {
            Some(failure) => Err(failure),
            None => follow(options, screen),
        },
        Err(error) => Err(failure(&error)),
    }
}

/// What is shown, and how much of it.
struct Screen {
    format: Format,
    /// Changes that are still to be shown.
    left: Option<u64>,
    /// Changes whose line waits, with those who are still to be told, and until when.
    waiting: VecDeque<(Value, Vec<String>, Instant)>,
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum Go {
    On,
    NetnsEntry,
}

impl Screen {
    fn of(options: &WatchArgs) -> Self {
        Self { format: options.place.format, left: options.changes, waiting: VecDeque::new() }
    }

    /// Takes what the node says.
    fn take(&mut self, line: Value) -> Go {
        let schema = text(&line["schema"]);
        match (self.format, schema.as_str()) {
            (_, "vipwatch.pulse/1" | "vipwatch.live/1") => Go::On,
            (Format::Json, "vipwatch.change/1") => self.print_change(&line),
            (Format::Json, _) => print(&show::json_line(&line)),
            (Format::Table, "vipwatch.standing/1") => print(&role_of(&line)),
            (Format::Table, "vipwatch.gap/1") => {
                print(&format!("({} lines were missed)", line["missed"]))
            }
            (Format::Table, "vipwatch.stage/1") => {
                self.told(&line);
                self.flush(Instant::now())
            }
            (Format::Table, "vipwatch.change/1") => {
                let known = line["latencies"].as_object();
                let stages = each(&line["stages"]).map(text);
                let is_open = |stage: &String| known.is_none_or(|known| !known.contains_key(stage));
                // Whoever is not primary announces nothing.
                let is_due = |stage: &String| stage != "announce" || line["to"] == "primary";
                let open = stages.filter(is_open).filter(is_due).collect();
                self.waiting.push_back((line, open, Instant::now() + PATIENCE));
                self.flush(Instant::now())
            }
            (Format::Table, _) => Go::On,
        }
    }

    /// Somebody was told of a change whose line waits.
    fn told(&mut self, stage: &Value) {
        let found = self.waiting.iter_mut().find(|(change, _, _)| change["seq"] == stage["seq"]);
        let Some((change, open, _)) = found else { return };
        let name = text(&stage["stage"]);
        if stage["error"].is_null() {
            change["latencies"][&name] = stage["micros"].clone();
        }
        if stage["final"] == true {
            open.retain(|open| *open != name);
        }
    }

    /// Prints the lines that need not wait any more, in order.
    fn flush(&mut self, now: Instant) -> Go {
        let is_ready =
            |(_, open, until): &(Value, Vec<String>, Instant)| open.is_empty() || *until <= now;
        while self.waiting.front().is_some_and(is_ready) {
            let Some((change, open, _)) = self.waiting.pop_front() else { break };
            let mut change = change;
            if !open.is_empty() {
                change["open"] = open.into();
            }
            if self.print_change(&change) == Go::NetnsEntry {
                return Go::NetnsEntry;
            }
        }
        Go::On
    }

    fn print_change(&mut self, change: &Value) -> Go {
        let line = match self.format {
            Format::Json => show::json_line(change),
            Format::Table => change_line(change),
        };
        if print(&line) == Go::NetnsEntry {
            return Go::NetnsEntry;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return Go::NetnsEntry;
            }
        }
        Go::On
    }
}

/// Prints a line, as long as somebody reads.
fn print(line: &str) -> Go {
    if show::is_read(&format!("{line}\n")) { Go::On } else { Go::NetnsEntry }
}

/// Shows what the node says.
fn listen(mut line: QueryLine, mut screen: Screen) -> Result<(), CommandError> {
    loop {
        let heard = match screen.waiting.front() {
            None => line.next_within(None),
            Some((_, _, until)) => {
                let left = until.saturating_duration_since(Instant::now());
                line.next_within(Some(left.max(Duration::from_millis(1))))
            }
        };
        let go = match heard.map_err(|error| failure(&error))? {
            Some(Some(value)) => screen.take(value),
            Some(None) => {
                let message = "the node has stopped";
                return Err(CommandError::new(ExitStatus::Missing, message));
            }
            None => screen.flush(Instant::now()),
        };
        if go == Go::NetnsEntry {
            return Ok(());
        }
    }
}

/// Follows by himself, where no node runs.
fn follow(options: &WatchArgs, mut screen: Screen) -> Result<(), CommandError> {
    let config = options.place.settings()?;
    let refused = |error: std::io::Error| {
        let message = format!("cannot listen to all namespaces: {error}");
        CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
    };
    let mut follower =
        Follower::open(config.places, config.instances, Listen::Auto).map_err(refused)?;
    let mut news = follower.rediscover();
    let ids = follower.instances().iter().map(|found| found.id.as_str());
    let mut selection = Selection::new(&options.ids, ids);
    let mut seq = 0;
    loop {
        if let Some(problems) = news.problems.filter(|_| screen.format == Format::Table) {
            show::print(&troubles_text(&problems));
        }
        for change in news.heard.into_iter().chain(news.changes) {
            selection.notice(change.found.id.as_str());
            if !selection.covers(change.found.id.as_str()) {
                continue;
            }
            let is_picture = change.from.is_none();
            seq += i64::from(!is_picture);
            let transition = Transition {
                seq,
                at: SystemTime::now(),
                heard: clock::now(),
                found: change.found,
                from: change.from.map(|from| from.as_str().to_owned()),
                to: change.to,
                cause: change.cause,
                is_news: !is_picture,
            };
            let line = transition.json(&node_name(), &Latencies::default());
            // What was so before is a picture, not a change.
            let go = match (is_picture, screen.format) {
                (true, Format::Json) => print(&show::json_line(&line)),
                (true, Format::Table) => print(&change_line(&line)),
                (false, _) => screen.print_change(&line),
            };
            if go == Go::NetnsEntry {
                return Ok(());
            }
        }
        news = follower.wait().map_err(|error| {
            CommandError::new(ExitStatus::Missing, format!("cannot wait for events: {error}"))
        })?;
    }
}

/// A change in one line, for people.
fn change_line(change: &Value) -> String {
    let time = text(&change["time"]);
    let time = time.split('T').nth(1).unwrap_or_default();
    let from = Some(text(&change["from"])).filter(|from| !from.is_empty());
    let from = from.map(|from| format!("{from} → ")).unwrap_or_default();
    let reason = Some(text(&change["reason"])).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let (id, to, cause) = (text(&change["id"]), text(&change["to"]), text(&change["cause"]));
    let told = Some(latencies(&change["latencies"])).filter(|told| !told.is_empty());
    let open = each(&change["open"]).map(|open| format!("{} …", text(open)));
    let told = told.into_iter().chain(open).collect::<Vec<_>>().join(", ");
    let told = if told.is_empty() { String::new() } else { format!("  [{told}]") };
    show::escape_untrusted(&format!("{time}  {id}  {from}{to}  ({cause}{reason}){told}"))
}

/// Where an instance stands, in one line.
fn role_of(instance: &Value) -> String {
    let since = text(&instance["since_time"]).replace('T', " ");
    let reason = Some(text(&instance["reason"])).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let (id, role) = (text(&instance["id"]), text(&instance["role"]));
    show::escape_untrusted(&format!("{:<12}  {id}  {role}{reason}  (since {since})", ""))
}
