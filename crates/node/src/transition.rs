//! A change of role, with everything that is known of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::discovery::InstanceConfig;
use crate::watch::instance_table::Cause;
use serde_json::{Map, Value, json};
use vipwatch_core::{InstanceId, Moment, Role};
use vipwatch_history::{Latencies, Record, Stage};
pub use vipwatch_linux::clock::unix_millis as millis;
use vipwatch_linux::clock::{LocalTime, local_time_of};

use crate::notify::outlet::Notification;

/// A change of role.
#[derive(Debug, Clone)]
pub struct Transition {
    /// Its number: in order, and never used again on this node.
    pub seq: i64,
    /// When the kernel's word was read.
    pub at: SystemTime,
    /// The same, on the clock that only goes forward.
    pub heard: Moment,
    /// Whose.
    pub found: Arc<InstanceConfig>,
    /// What it was, by our own word or that of the node before us; `None` if nobody knows, or if
    /// it is as it was.
    pub from: Option<String>,
    /// What it is.
    pub to: Role,
    /// What told.
    pub cause: Cause,
    /// Whether programs and addresses are to be told: not if it is as the node before us knew it, and
    /// had told them.
    pub is_news: bool,
}

impl Transition {
    /// As it is kept.
    pub fn record(&self) -> Record {
        let reason = self.to.reason();
        Record {
            seq: self.seq,
            at: millis(self.at),
            instance: self.found.id.to_string(),
            netns: self.found.netns.as_ref().map(ToString::to_string),
            from: self.from.clone(),
            to: self.to.as_str().to_owned(),
            cause: self.cause.word().to_owned(),
            reason: (!reason.is_empty()).then_some(reason),
            is_news: self.is_news,
        }
    }

    /// As it is told to programs: `vipwatch.change/1`.
    pub fn json(&self, node: &str, latencies: &Latencies) -> Value {
        let (record, found) = (self.record(), &self.found);
        let addresses = found.watched();
        let addresses = addresses
            .iter()
            .map(|(link, cidr)| json!({ "cidr": cidr.to_string(), "link": link.to_string() }));
        json!({
            "schema": "vipwatch.change/1", "node": node, "seq": record.seq,
            "at": record.at, "time": time_text(record.at),
            "id": record.instance, "netns": record.netns, "origin": found.origin.word(),
            "from": record.from, "to": record.to, "cause": record.cause, "reason": record.reason,
            "addresses": addresses.collect::<Value>(), "latencies": latencies_json(latencies),
        })
    }
}

impl Notification for Transition {
    fn instance(&self) -> &InstanceId {
        &self.found.id
    }

    fn seq(&self) -> i64 {
        self.seq
    }

    fn heard(&self) -> Moment {
        self.heard
    }

    fn json(&self, node: &str) -> Value {
        self.json(node, &Latencies::default())
    }
}

/// Who knew how soon, in microseconds.
pub fn latencies_json(latencies: &Latencies) -> Value {
    let known = Stage::ALL
        .iter()
        .filter_map(|stage| Some((stage.word().to_owned(), Value::from(latencies.of(*stage)?))));
    Value::Object(known.collect::<Map<String, Value>>())
}

/// A time for people, in the machine's own zone.
pub fn time_text(millis: i64) -> String {
    let since = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    let LocalTime { year, month, day, hour, minute, second, millisecond } = local_time_of(since);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}")
}

/// Microseconds between two moments.
pub fn micros(since: Moment, until: Moment) -> i64 {
    i64::try_from(until.since(since).as_micros()).unwrap_or(i64::MAX)
}
