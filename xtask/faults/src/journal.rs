// SPDX-License-Identifier: Apache-2.0
//! The log of the injector: one JSON document in each line, with the time of the wall clock and of the monotonic clock.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::moment::{Micros, now};
use crate::{FaultsError, LabResult};

/// Writes the log.
pub struct InjectorLog {
    file: Mutex<File>,
    began: Instant,
}

impl InjectorLog {
    pub fn create(path: &Path) -> LabResult<Self> {
        Ok(Self { file: Mutex::new(File::create(path)?), began: Instant::now() })
    }

    /// Writes one entry at once. `act` is the word of the entry.
    pub fn write(&self, act: &str, details: &Value) -> LabResult {
        let monotonic = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        let mut line = json!({ "wall": now(), "monotonic": monotonic, "act": act });
        if let (Some(line), Some(details)) = (line.as_object_mut(), details.as_object()) {
            line.extend(details.clone());
        }
        let mut file = self.file.lock().map_err(|error| FaultsError(error.to_string()))?;
        Ok(writeln!(file, "{line}")?)
    }
}

/// One entry of the log. Texts and lists that an entry does not have are empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JournalEntry {
    #[serde(rename = "wall")]
    pub at: Micros,
    pub act: String,
    /// The number of the node; `None` for entries about the lab.
    pub node: Option<usize>,
    /// The word of the fault.
    pub fault: String,
    pub how: String,
    /// `begin` or `done`, if both are written.
    pub phase: String,
    /// The names of sent signals.
    pub signals: Vec<String>,
    /// The configured addresses of the first instance.
    pub addresses: Vec<String>,
    /// Whether the configuration differs from the first one.
    pub is_edited: bool,
    /// The etcd leader's host, and the reporter's host.
    pub leader: Option<usize>,
    pub reporter: Option<usize>,
}

/// Reads the log.
pub fn read(path: &Path) -> LabResult<Vec<JournalEntry>> {
    let text = std::fs::read_to_string(path)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
