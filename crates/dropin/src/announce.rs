//! Whether addresses are announced to their networks, when, and how often.
//!
//! Neutron's own program did so in releases 10 to 17, and left it to keepalived since.

use std::time::Duration;

use vipwatch_core::AnnouncePlan;
use vipwatch_outlets::announce::AnnounceTrigger;

use crate::words::Word;

/// `--announce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnnounceMode {
    /// keepalived does it.
    Off,
    /// Every new address, as Neutron's own program did.
    Legacy,
    /// Every address, on becoming primary.
    Primary,
}

impl AnnounceMode {
    /// What the option may be, for messages.
    pub(crate) const WORDS: &str = "`off`, `legacy` or `primary`";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "legacy" => Some(Self::Legacy),
            "primary" => Some(Self::Primary),
            _ => None,
        }
    }

    /// What the agent expects, who does not say: those that say `master` are of the releases
    /// that announced.
    pub(crate) fn expected_by(word: Word) -> Self {
        match word {
            Word::Master => Self::Legacy,
            Word::Primary => Self::Off,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Legacy => "legacy",
            Self::Primary => "primary",
        }
    }

    /// When to announce, and by which plan; `None` for never.
    pub(crate) fn plan(self, changes: &PlanOverrides) -> Option<(AnnounceTrigger, AnnouncePlan)> {
        let (when, mut plan) = match self {
            Self::Off => return None,
            Self::Legacy => (AnnounceTrigger::New, AnnouncePlan::LEGACY),
            Self::Primary => (AnnounceTrigger::Primary, AnnouncePlan::PRIMARY),
        };
        plan.count = changes.count.unwrap_or(plan.count);
        plan.gap = changes.gap.unwrap_or(plan.gap);
        let never_if_zero = |span: Duration| Some(span).filter(|span| !span.is_zero());
        plan.second_burst = changes.second_burst.map_or(plan.second_burst, never_if_zero);
        plan.refresh = changes.refresh.map_or(plan.refresh, never_if_zero);
        plan.check = changes.check.map_or(plan.check, never_if_zero);
        if let Some(rate) = changes.rate {
            plan.rate.per_second = rate;
            plan.rate.burst = rate;
        }
        Some((when, plan))
    }
}

/// What the configuration file changes about a plan. Zero stands for "never".
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanOverrides {
    count: Option<u16>,
    gap: Option<Duration>,
    second_burst: Option<Duration>,
    refresh: Option<Duration>,
    check: Option<Duration>,
    rate: Option<u32>,
}

impl PlanOverrides {
    /// Takes a key of the configuration file, without its `announce_`. Says what the value
    /// should be if it is wrong; `Ok(false)` if there is no such key.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, &'static str> {
        const SPAN: &str = "seconds, 0 for never, up to 86400";
        match key {
            "count" => {
                let count = value.parse().ok().filter(|count| (1..=100).contains(count));
                self.count = Some(count.ok_or("1 to 100")?);
            }
            "gap" => {
                let gap = span(value).filter(|gap| !gap.is_zero());
                self.gap = Some(gap.ok_or("seconds above 0, up to 86400")?);
            }
            "second_burst" => self.second_burst = Some(span(value).ok_or(SPAN)?),
            "refresh" => self.refresh = Some(span(value).ok_or(SPAN)?),
            "check" => {
                let patience = span(value).filter(|patience| *patience <= Duration::from_mins(1));
                self.check = Some(patience.ok_or("seconds, 0 for never, up to 60")?);
            }
            "rate" => {
                let rate = value.parse().ok().filter(|rate| (1..=100_000).contains(rate));
                self.rate = Some(rate.ok_or("addresses per second, 1 to 100000")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Seconds, with a fraction if need be.
fn span(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|span| *span <= Duration::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_releases_that_announced_go_on_doing_so() {
        let none = PlanOverrides::default();
        let plan = AnnounceMode::expected_by(Word::Master).plan(&none);
        assert_eq!(plan, Some((AnnounceTrigger::New, AnnouncePlan::LEGACY)));
        assert_eq!(AnnounceMode::expected_by(Word::Primary).plan(&none), None);
    }

    #[test]
    fn a_plan_is_changed_where_the_file_says_so() {
        let mut changes = PlanOverrides::default();
        for (key, value) in [
            ("count", "5"),
            ("gap", "1.5"),
            ("second_burst", "0"),
            ("refresh", "60"),
            ("rate", "7"),
        ] {
            assert_eq!(changes.set(key, value), Ok(true), "{key}");
        }
        let (when, plan) = AnnounceMode::Primary.plan(&changes).unwrap();
        assert_eq!(
            (when, plan.count, plan.gap),
            (AnnounceTrigger::Primary, 5, Duration::from_millis(1500))
        );
        assert_eq!((plan.second_burst, plan.check), (None, None));
        assert_eq!(plan.refresh, Some(Duration::from_mins(1)));
        assert_eq!((plan.rate.per_second, plan.rate.burst), (7, 7));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (key, value) in [
            ("count", "0"),
            ("gap", "0"),
            ("gap", "-1"),
            ("gap", "inf"),
            ("gap", "NaN"),
            ("refresh", "soon"),
            ("check", "1e9"),
            ("rate", "0"),
        ] {
            assert!(PlanOverrides::default().set(key, value).is_err(), "{key} = {value}");
        }
        assert_eq!(PlanOverrides::default().set("colour", "red"), Ok(false));
    }
}
