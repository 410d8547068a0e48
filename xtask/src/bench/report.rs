//! A table for people, JSON for scripts.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::Task;

/// One figure of ours beside the peers'.
pub struct Row {
    pub metric: String,
    pub unit: &'static str,
    pub ours: Option<f64>,
    /// The script of 29.0.0.
    pub script: Option<f64>,
    /// The Python daemon of 28.0.2.
    pub daemon: Option<f64>,
    pub target: Option<Target>,
}

/// What was promised.
#[derive(Clone, Copy)]
pub enum Target {
    /// Ours is at most this.
    AtMost(f64),
    /// Ours is at least so many times smaller than the script's.
    TimesLess(f64),
}

impl Row {
    pub fn new(metric: impl Into<String>, unit: &'static str) -> Self {
        Self { metric: metric.into(), unit, ours: None, script: None, daemon: None, target: None }
    }

    /// How many times smaller ours is than the script's.
    fn ratio(&self) -> Option<f64> {
        let (ours, script) = (self.ours?, self.script?);
        (ours > 0.0).then(|| script / ours)
    }

    fn is_met(&self) -> Option<bool> {
        Some(match self.target? {
            Target::AtMost(limit) => self.ours.is_some_and(|ours| ours <= limit),
            Target::TimesLess(times) => match (self.ours, self.script) {
                (Some(ours), Some(script)) => ours * times <= script,
                // The script never got there.
                (Some(_), None) => true,
                (None, _) => false,
            },
        })
    }

    fn target_text(&self) -> String {
        match self.target {
            Some(Target::AtMost(limit)) => format!("≤ {}", number(limit)),
            Some(Target::TimesLess(times)) => format!("≥ {times:.0}×"),
            None => String::new(),
        }
    }
}

/// All figures of one run.
pub struct Report {
    pub title: String,
    pub machine: String,
    pub rows: Vec<Row>,
}

impl Report {
    pub fn print(&self) {
        println!("\n{}\n{}\n", self.title, self.machine);
        println!(
            "| metric | unit | vipwatch | script 29.0.0 | daemon 28.0.2 | script ÷ ours | target | met |"
        );
        println!("|---|---|---:|---:|---:|---:|---|---|");
        for row in &self.rows {
            let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
            let met = row.is_met().map_or("", |is_met| if is_met { "yes" } else { "**no**" });
            println!(
                "| {} | {} | {} | {} | {} | {} | {} | {met} |",
                row.metric,
                row.unit,
                show(row.ours),
                show(row.script),
                show(row.daemon),
                row.ratio().map_or_else(String::new, |ratio| format!("{}×", number(ratio))),
                row.target_text(),
            );
        }
    }

    pub fn write_json(&self, path: &Path) -> Task {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "metric": row.metric, "unit": row.unit, "ours": row.ours,
                    "peers": { "script_29_0_0": row.script, "daemon_28_0_2": row.daemon },
                    "ratio": row.ratio(), "target": row.target.map(|_| row.target_text()),
                    "met": row.is_met(),
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(
            &json!({ "bench": self.title, "machine": self.machine, "metrics": rows }),
        )?;
        std::fs::File::create(path)?.write_all(text.as_bytes())?;
        Ok(())
    }
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}
