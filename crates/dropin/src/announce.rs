// SPDX-License-Identifier: Apache-2.0
//! The announcement settings: whether, when and how often the monitor announces addresses to their networks.
//!
//! Neutron's own monitor announced addresses in releases 10 to 17. Since then keepalived does.

use std::time::Duration;

use strum::{Display, EnumString};
use vipwatch_core::AnnouncePlan;
use vipwatch_outlets::announce::AnnounceTrigger;

use crate::primary_word::PrimaryWord;

/// The value of `--announce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum AnnounceMode {
    /// The monitor announces nothing; keepalived does.
    Off,
    /// The monitor announces every new address, as Neutron's own monitor did.
    Legacy,
    /// The monitor announces every address when the router becomes primary.
    Primary,
}

impl AnnounceMode {
    /// The valid values, for messages.
    pub(crate) const VALUES: &str = "`off`, `legacy` or `primary`";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// The mode for an agent with this word, if the operator sets none: the releases that use `master` expect the
    /// monitor to announce.
    pub(crate) fn default_for(word: PrimaryWord) -> Self {
        match word {
            PrimaryWord::Master => Self::Legacy,
            PrimaryWord::Primary => Self::Off,
        }
    }

    /// What starts an announcement, and its schedule; `None` if nothing is announced.
    pub(crate) fn plan(self, overrides: &PlanOverrides) -> Option<(AnnounceTrigger, AnnouncePlan)> {
        let (trigger, mut plan) = match self {
            Self::Off => return None,
            Self::Legacy => (AnnounceTrigger::New, AnnouncePlan::LEGACY),
            Self::Primary => (AnnounceTrigger::Primary, AnnouncePlan::PRIMARY),
        };
        plan.count = overrides.count.unwrap_or(plan.count);
        plan.gap = overrides.gap.unwrap_or(plan.gap);
        let none_if_zero = |span: Duration| Some(span).filter(|span| !span.is_zero());
        plan.second_burst = overrides.second_burst.map_or(plan.second_burst, none_if_zero);
        plan.refresh = overrides.refresh.map_or(plan.refresh, none_if_zero);
        plan.check = overrides.check.map_or(plan.check, none_if_zero);
        if let Some(rate) = overrides.rate {
            plan.rate.per_second = rate;
            plan.rate.burst = rate;
        }
        Some((trigger, plan))
    }
}

/// The `announce_*` keys of the configuration file, which override a plan. `None` keeps the plan's value; for
/// `second_burst`, `refresh` and `check` zero means never.
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
    /// Sets one key of the configuration file, given without its prefix `announce_`. Returns `Ok(false)` for an unknown
    /// key, and a description of the valid values for an invalid one.
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
                let check = span(value).filter(|check| *check <= Duration::from_mins(1));
                self.check = Some(check.ok_or("seconds, 0 for never, up to 60")?);
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

/// Parses seconds from 0 to 86400, which may have a fraction.
fn span(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|span| *span <= Duration::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_use_master_get_legacy_announcements_by_default() {
        let none = PlanOverrides::default();
        let plan = AnnounceMode::default_for(PrimaryWord::Master).plan(&none);
        assert_eq!(plan, Some((AnnounceTrigger::New, AnnouncePlan::LEGACY)));
        assert_eq!(AnnounceMode::default_for(PrimaryWord::Primary).plan(&none), None);
    }

    #[test]
    fn the_configuration_file_overrides_single_values_of_a_plan() {
        let mut overrides = PlanOverrides::default();
        for (key, value) in [
            ("count", "5"),
            ("gap", "1.5"),
            ("second_burst", "0"),
            ("refresh", "60"),
            ("rate", "7"),
        ] {
            assert_eq!(overrides.set(key, value), Ok(true), "{key}");
        }
        let (trigger, plan) = AnnounceMode::Primary.plan(&overrides).unwrap();
        assert_eq!(
            (trigger, plan.count, plan.gap),
            (AnnounceTrigger::Primary, 5, Duration::from_millis(1500))
        );
        assert_eq!((plan.second_burst, plan.check), (None, None));
        assert_eq!(plan.refresh, Some(Duration::from_mins(1)));
        assert_eq!((plan.rate.per_second, plan.rate.burst), (7, 7));
    }

    #[test]
    fn invalid_values_are_refused() {
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
