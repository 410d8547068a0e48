// SPDX-License-Identifier: Apache-2.0
//! The resources that this process uses.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::file::read_text;
use crate::process_table;

/// Maximum size of `/proc/self/stat`, in bytes.
const MAX_STAT_BYTES: u64 = 4096;

/// When the process started. It is computed from two clocks, so each computation has another result.
static STARTED: OnceLock<SystemTime> = OnceLock::new();

/// The resources of this process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system CPU time of all threads.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Virtual memory in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors. Threads with a table of their own are not included.
    pub open_files: u64,
    /// Maximum number of open file descriptors; `None` without a limit.
    pub max_files: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// When the process started.
    pub started: SystemTime,
}

impl ProcessUsage {
    /// Reads `/proc/self`.
    pub fn read() -> io::Result<Self> {
        let text = read_text("/proc/self/stat".as_ref(), MAX_STAT_BYTES)?;
        let fields = StatFields::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown format"))?;
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let page = rustix::param::page_size() as u64;
        // The directory that is being read is open too.
        let open_files = std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64;
        let id = process_table::stat(std::process::id())?.id;
        Ok(Self {
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            resident_bytes: fields.resident_pages * page,
            virtual_bytes: fields.virtual_bytes,
            open_files,
            max_files: getrlimit(Resource::Nofile).current,
            threads: fields.threads,
            started: *STARTED.get_or_init(|| process_table::start_time(id)),
        })
    }
}

/// The used fields of `/proc/PID/stat` (`proc_pid_stat(5)`).
#[derive(Debug, PartialEq, Eq)]
struct StatFields {
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl StatFields {
    fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may contain any character. The field after it is the third one.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self { threads: number(20)?, virtual_bytes: number(23)?, resident_pages: number(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let text =
            "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 5 6 0 0 20 0 3 0 900 4096000 250 1 2";
        let fields = StatFields::parse(text);
        let expected = StatFields { threads: 3, virtual_bytes: 4_096_000, resident_pages: 250 };
        assert_eq!(fields, Some(expected));
        assert_eq!(StatFields::parse("7 (a) S 1"), None);
        assert_eq!(StatFields::parse(""), None);
    }

    #[test]
    fn the_start_time_is_always_the_same() {
        let first = ProcessUsage::read().unwrap().started;
        assert!((0..100).all(|_| ProcessUsage::read().unwrap().started == first));
    }

    #[test]
    fn the_usage_of_this_process_is_plausible() {
        let usage = ProcessUsage::read().unwrap();
        assert!(usage.resident_bytes > 100_000 && usage.virtual_bytes >= usage.resident_bytes);
        assert!(usage.threads >= 1 && usage.open_files >= 3, "{usage:?}");
        assert!(usage.max_files.is_none_or(|limit| limit > usage.open_files), "{usage:?}");
        assert!(usage.started < SystemTime::now() && usage.cpu > Duration::ZERO, "{usage:?}");
    }
}
