// SPDX-License-Identifier: Apache-2.0
//! The results of a bench: printed as a Markdown table, written as JSON.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::measure::machine;

/// One metric: the value of vipwatch and those of its peers.
pub struct Row {
    pub metric: String,
    pub unit: &'static str,
    /// The value of vipwatch; `None` if it was not measured or not reached.
    pub ours: Option<f64>,
    /// In the order of [`BenchReport::peers`]. A target compares with the first one.
    pub peers: Vec<Option<f64>>,
    pub target: Option<BenchTarget>,
}

/// The condition that vipwatch's value must meet.
#[derive(Clone, Copy)]
pub enum BenchTarget {
    /// The value is at most this.
    AtMost(f64),
    /// The value is at least this many times smaller than that of the first peer.
    TimesLess(f64),
    /// The value is at most `times` the value `measured` in the same run, which `of` names; or at most
    /// `at_least`, if that is more.
    Multiple { times: f64, of: &'static str, measured: f64, at_least: f64 },
    /// The value is at most this much more than that of the first peer.
    MoreThanPeer(f64),
    /// The value is at most this many times that of the first peer.
    AtMostTimesPeer(f64),
    /// The value is at least this many times that of the first peer.
    AtLeastTimesPeer(f64),
}

impl Row {
    pub fn new(metric: impl Into<String>, unit: &'static str) -> Self {
        Self { metric: metric.into(), unit, ours: None, peers: Vec::new(), target: None }
    }

    pub fn ours(mut self, value: impl Into<Option<f64>>) -> Self {
        self.ours = value.into();
        self
    }

    /// Sets the value of the first peer.
    pub fn peer(mut self, value: impl Into<Option<f64>>) -> Self {
        self.set_peer(0, value.into());
        self
    }

    pub fn target(mut self, target: impl Into<Option<BenchTarget>>) -> Self {
        self.target = target.into();
        self
    }

    /// Sets the value of the peer at position `index`.
    pub fn set_peer(&mut self, index: usize, value: Option<f64>) {
        self.peers.resize(self.peers.len().max(index + 1), None);
        self.peers[index] = value;
    }

    fn first_peer(&self) -> Option<f64> {
        self.peers.first().copied().flatten()
    }

    /// The first peer's value divided by vipwatch's.
    fn ratio(&self) -> Option<f64> {
        let (ours, peer) = (self.ours?, self.first_peer()?);
        (ours > 0.0).then(|| peer / ours)
    }

    fn is_met(&self) -> Option<bool> {
        let target = self.target?;
        let Some(ours) = self.ours else { return Some(false) };
        let limit = match (target, self.first_peer()) {
            (BenchTarget::AtMost(limit), _) => limit,
            (BenchTarget::Multiple { times, measured, at_least, .. }, _) => {
                (times * measured).max(at_least)
            }
            (BenchTarget::TimesLess(times), Some(peer)) => peer / times,
            // The peer did not reach the end.
            (BenchTarget::TimesLess(_), None) => f64::MAX,
            (BenchTarget::MoreThanPeer(more), Some(peer)) => peer + more,
            (BenchTarget::AtMostTimesPeer(times), Some(peer)) => peer * times,
            (BenchTarget::AtLeastTimesPeer(times), Some(peer)) => {
                return Some(ours >= peer * times);
            }
            (_, None) => return Some(false),
        };
        Some(ours <= limit)
    }

    fn target_text(&self) -> String {
        match self.target {
            Some(BenchTarget::AtMost(limit)) => format!("≤ {}", number(limit)),
            Some(BenchTarget::TimesLess(times)) => format!("≥ {times:.0}×"),
            Some(BenchTarget::Multiple { times, of, measured, at_least }) => {
                let limit = number((times * measured).max(at_least));
                format!("≤ {limit} ({times:.0}× {of}, or {})", number(at_least))
            }
            Some(BenchTarget::MoreThanPeer(more)) => format!("≤ + {}", number(more)),
            Some(BenchTarget::AtMostTimesPeer(times)) => format!("≤ {times}× of the peer"),
            Some(BenchTarget::AtLeastTimesPeer(times)) => format!("≥ {times}× of the peer"),
            None => String::new(),
        }
    }
}

/// The results of one run.
pub struct BenchReport {
    pub title: String,
    /// The names of the programs that are compared with vipwatch.
    pub peers: &'static [&'static str],
    pub machine: String,
    pub rows: Vec<Row>,
    /// Remarks on the results: what could not be measured, and why.
    pub notes: Vec<String>,
}

impl BenchReport {
    pub fn new(
        name: &str,
        args: &BenchArgs,
        peers: &'static [&'static str],
        rows: Vec<Row>,
    ) -> Self {
        let title = format!("bench {name}{}", args.pick(" (quick: no figures to quote)", ""));
        Self { title, machine: machine(), peers, rows, notes: Vec::new() }
    }

    pub fn print(&self) {
        println!("\n{}\n{}\n", self.title, self.machine);
        let first = self.peers.first().and_then(|name| name.split(' ').next()).unwrap_or("peer");
        let peers = self.peers.join(" | ");
        println!("| metric | unit | vipwatch | {peers} | {first} ÷ ours | target | met |");
        println!("|---|---|---:|{}---:|---|---|", "---:|".repeat(self.peers.len()));
        for row in &self.rows {
            let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
            let met = row.is_met().map_or("", |is_met| if is_met { "yes" } else { "**no**" });
            let peer = |index: usize| show(row.peers.get(index).copied().flatten());
            let peers: Vec<String> = (0..self.peers.len()).map(peer).collect();
            println!(
                "| {} | {} | {} | {} | {} | {} | {met} |",
                row.metric,
                row.unit,
                show(row.ours),
                peers.join(" | "),
                row.ratio().map_or_else(String::new, |ratio| format!("{}×", number(ratio))),
                row.target_text(),
            );
        }
        for note in &self.notes {
            println!("\n{note}");
        }
    }

    pub fn write_json(&self, path: &Path) -> std::io::Result<()> {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let peer = |(index, name): (usize, &&str)| {
                    let value = row.peers.get(index).copied().flatten();
                    (name.replace([' ', '.'], "_"), json!(value))
                };
                let peers: serde_json::Map<String, Value> =
                    self.peers.iter().enumerate().map(peer).collect();
                json!({
                    "metric": row.metric, "unit": row.unit, "ours": row.ours,
                    "peer": row.first_peer(), "peers": peers,
                    "ratio": row.ratio(), "target": row.target.map(|_| row.target_text()),
                    "met": row.is_met(),
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(
            &json!({ "bench": self.title, "machine": self.machine, "metrics": rows, "notes": self.notes }),
        )?;
        std::fs::File::create(path)?.write_all(text.as_bytes())
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}
