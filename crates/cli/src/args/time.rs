// SPDX-License-Identifier: Apache-2.0
//! Times and positions in the history, as they are written on the command line.

use jiff::civil::{Date, DateTime, Time};
use jiff::{Timestamp, Zoned};
use vipwatch_api::EventId;
use vipwatch_node::config::span;

/// The value of `--after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum After {
    /// A sequence number of the present epoch.
    Seq(i64),
    /// The id of an event.
    Event(EventId),
}

/// Parses the value of `--after`: SEQ or EPOCH-SEQ.
pub(super) fn after(text: &str) -> Result<After, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(After::Seq).map_err(|error| format!("{error}"));
    }
    text.parse().map(After::Event).map_err(|error: vipwatch_api::InvalidEventId| error.to_string())
}

/// Parses a time.
pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    parse(text, &Zoned::now())
}

/// Parses a time: a period before `now`, `now`, `today`, `yesterday`, a date, a date with a time, or RFC 3339. A time without a
/// zone is in the zone of `now`.
fn parse(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let invalid = || {
        format!(
            "{text:?} is not a time: write 2h, today, '2026-11-16 15:00' or 2026-11-16T15:00:00Z"
        )
    };
    if let Ok(span) = span(text) {
        return now.timestamp().checked_sub(span).map_err(|error| error.to_string());
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let local = |time: DateTime| {
        let zoned = time.to_zoned(now.time_zone().clone());
        zoned.map(|zoned| zoned.timestamp()).map_err(|error| error.to_string())
    };
    let today = now.date();
    match text {
        "now" => Ok(now.timestamp()),
        "today" => local(today.into()),
        "yesterday" => local(today.yesterday().map_err(|error| error.to_string())?.into()),
        _ => match (text.parse::<DateTime>(), text.parse::<Date>(), text.parse::<Time>()) {
            (Ok(time), ..) => local(time),
            (_, Ok(date), _) => local(date.into()),
            (.., Ok(time)) => local(today.to_datetime(time)),
            _ => Err(invalid()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half past four in the afternoon, one hour east of Greenwich.
    fn now() -> Zoned {
        let time: Timestamp = "2026-11-16T15:30:00Z".parse().unwrap();
        time.to_zoned(jiff::tz::offset(1).to_time_zone())
    }

    #[test]
    fn a_time_is_a_period_a_day_or_a_time_with_or_without_a_zone() {
        for (text, expected) in [
            ("2h", "2026-11-16T13:30:00Z"),
            ("1500ms", "2026-11-16T15:29:58.5Z"),
            ("now", "2026-11-16T15:30:00Z"),
            ("today", "2026-11-15T23:00:00Z"),
            ("yesterday", "2026-11-14T23:00:00Z"),
            ("2026-11-16", "2026-11-15T23:00:00Z"),
            ("2026-11-16 15:00", "2026-11-16T14:00:00Z"),
            ("2026-11-16 15:00:01.25", "2026-11-16T14:00:01.25Z"),
            ("2026-11-16T15:00", "2026-11-16T14:00:00Z"),
            ("2026-11-16T15:00:00Z", "2026-11-16T15:00:00Z"),
            ("2026-11-16 15:00:00-05:00", "2026-11-16T20:00:00Z"),
            ("15:00", "2026-11-16T14:00:00Z"),
        ] {
            assert_eq!(
                parse(text, &now()).map(|time| time.to_string()),
                Ok(expected.to_owned()),
                "{text}"
            );
        }
        for text in ["", "2", "2w", "tomorrow", "2026-13-01", "2026-11-16 25:00", "99999999d"] {
            assert!(parse(text, &now()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_position_is_a_number_or_an_event_id() {
        assert_eq!(after("42"), Ok(After::Seq(42)));
        let event = EventId { epoch: "5f3a9c21".to_owned(), seq: 42 };
        assert_eq!(after("5f3a9c21-42"), Ok(After::Event(event)));
        for text in ["", "-1", "x", "99999999999999999999"] {
            assert!(after(text).is_err(), "{text}");
        }
    }
}
