// SPDX-License-Identifier: Apache-2.0
//! The log of the injector: one JSON document in each line, with the time of the wall clock and of the monotonic clock.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use crate::FaultsError;
use crate::moment::{Micros, now};

/// Writes the log.
pub struct InjectorLog {
    file: Mutex<File>,
    began: Instant,
}

impl InjectorLog {
    pub fn create(path: &Path) -> Result<Self, FaultsError> {
        Ok(Self { file: Mutex::new(File::create(path)?), began: Instant::now() })
    }

    /// Writes one entry at once. `act` is the word of the entry.
    pub fn write(&self, act: &str, details: &Value) -> Result<(), FaultsError> {
        let monotonic = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        let mut line = json!({ "wall": now(), "monotonic": monotonic, "act": act });
        if let (Some(line), Some(details)) = (line.as_object_mut(), details.as_object()) {
            line.extend(details.clone());
        }
        let mut file = self.file.lock().map_err(|error| FaultsError(error.to_string()))?;
        Ok(writeln!(file, "{line}")?)
    }
}

/// One entry of the log.
#[derive(Debug, Clone)]
pub struct JournalEntry {
    pub at: Micros,
    pub act: String,
    /// The number of the node; `None` for entries about the lab.
    pub node: Option<usize>,
    /// The word of the fault; empty if the entry belongs to none.
    pub fault: String,
    pub details: Value,
}

/// Reads the log.
pub fn read(path: &Path) -> Result<Vec<JournalEntry>, FaultsError> {
    let mut entries = Vec::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let details: Value = serde_json::from_str(line)?;
        let text = |key: &str| details[key].as_str().unwrap_or_default().to_owned();
        entries.push(JournalEntry {
            at: details["wall"].as_i64().unwrap_or_default(),
            act: text("act"),
            node: details["node"].as_u64().and_then(|node| usize::try_from(node).ok()),
            fault: text("fault"),
            details,
        });
    }
    Ok(entries)
}
