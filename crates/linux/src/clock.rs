// SPDX-License-Identifier: Apache-2.0
//! Clocks: monotonic time for deadlines, local time for log lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use vipwatch_core::Moment;

/// The current time of the monotonic clock.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Moment::new(Duration::new(seconds, nanos))
}

/// The moment of a wall-clock time, as of now; the current moment for a time in the future.
pub fn moment_of(at: SystemTime) -> Moment {
    now().before(at.elapsed().unwrap_or_default())
}

/// A point in time on both clocks: decisions use the monotonic one, because the other one may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// For display.
    pub wall: SystemTime,
    /// For decisions.
    pub moment: Moment,
}

impl Stamp {
    /// The current time.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), moment: now() }
    }
}

/// The current wall-clock time in milliseconds since the Unix epoch.
pub fn unix_millis_now() -> i64 {
    unix_millis(SystemTime::now())
}

/// `time` in milliseconds since the Unix epoch; 0 for a time before it.
pub fn unix_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time that is `millis` milliseconds after the Unix epoch; a negative number means the epoch.
pub fn from_unix_millis(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// A date and time in the time zone of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// The year, for example 2025.
    pub year: i32,
    /// 1 to 12.
    pub month: i32,
    /// 1 to 31.
    pub day: i32,
    /// 0 to 23.
    pub hour: i32,
    /// 0 to 59.
    pub minute: i32,
    /// 0 to 60.
    pub second: i32,
    /// 0 to 999.
    pub millisecond: u32,
}

/// The current local time.
pub fn local_time() -> LocalTime {
    local_time_of(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The local time at this duration after the Unix epoch.
pub fn local_time_of(since_epoch: Duration) -> LocalTime {
    // This is `time_t`, a name that libc deprecates for musl.
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    // SAFETY: `tm` is plain data for which all zeroes is a valid value; both pointers are to locals that outlive the
    // call, and `localtime_r` keeps neither.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut tm);
        tm
    };
    LocalTime {
        year: tm.tm_year + 1900,
        month: tm.tm_mon + 1,
        day: tm.tm_mday,
        hour: tm.tm_hour,
        minute: tm.tm_min,
        second: tm.tm_sec,
        millisecond: since_epoch.subsec_millis(),
    }
}
