// SPDX-License-Identifier: Apache-2.0
//! Findings that follow from the adverts on the link of an instance.
//!
//! The overlap of a normal election raises nothing: a finding needs evidence over an advert interval and [`SETTLE`].
//! Where the evidence is incomplete, there is no finding.

use std::net::IpAddr;
use std::time::Duration;

use super::Finding;
use super::fault::LoweredPriority;
use crate::witness::{
    AdvertOrigin, LOSS_SPAN, LinkWitness, LossCounts, MAX_SOURCES, OwnSettings, Rejection,
    RouterKey, RouterWitness, Silence, SourceRecord, differences,
};
use crate::{FindingKind, Moment, Role};

/// How long evidence must last, beyond the time that the protocol allows.
pub const SETTLE: Duration = Duration::from_secs(1);

/// What is asked about one instance.
#[derive(Debug, Clone, Copy)]
pub struct AdvertQuestion<'a> {
    /// The adverts of its link, which are captured now.
    pub witness: &'a LinkWitness,
    /// Its virtual router.
    pub key: RouterKey,
    /// Its settings.
    pub own: &'a OwnSettings,
    /// Its priority in the configuration; `None` if it is not known.
    pub priority: Option<u8>,
    /// The master-down interval of its settings.
    pub down_interval: Duration,
    /// Its role.
    pub role: &'a Role,
    /// Since when it has this role.
    pub role_since: Moment,
    /// The time of the question.
    pub now: Moment,
}

/// Another host that advertises the virtual router of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHost {
    /// The source address of its adverts.
    pub source: IpAddr,
    /// The priority in its newest advert.
    pub priority: u8,
    /// The time since its newest advert.
    pub age: Duration,
}

/// Facts about one instance that its adverts show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdvertFacts {
    /// This node holds the addresses, and another host advertises them for longer than an election.
    pub second_primary: Option<OtherHost>,
    /// Another host advertises the same virtual router id with entirely other addresses.
    pub stranger: Option<OtherHost>,
    /// No host has advertised for longer than the master-down interval of the instance; `None` if the instance is no
    /// backup.
    pub silence: Option<AdvertSilence>,
    /// The settings of another host that differ.
    pub differing: Option<(OtherHost, Vec<String>)>,
    /// Keepalived of this node drops the adverts of another host because of their signature.
    pub rejected: Option<(OtherHost, Rejection)>,
    /// Adverts of the primary are missing, or come irregularly.
    pub disturbance: Option<AdvertDisturbance>,
    /// The own adverts have less than the configured priority.
    pub lowered: Option<LoweredPriority>,
    /// More sources advertise than are followed.
    pub is_crowded: bool,
    /// Adverts arrive faster than they are read.
    pub is_flooded: bool,
}

/// No host has advertised for longer than the master-down interval of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdvertSilence {
    /// The master-down interval.
    pub down_interval: Duration,
    /// The number of adverts that cannot be decoded, if the last one came after all others; else zero.
    pub undecoded: u32,
}

/// Adverts of one source that are missing, or come irregularly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertDisturbance {
    /// The source of the adverts.
    pub host: OtherHost,
    /// Whether it is this host.
    pub is_own: bool,
    /// The numbers of the last minute if too many are missing; else `None`.
    pub loss: Option<LossCounts>,
    /// The smoothed difference between the announced interval and the measured one, and the announced interval.
    pub jitter: (Duration, Duration),
}

impl AdvertFacts {
    /// Derives the facts from the evidence.
    pub fn of(question: &AdvertQuestion<'_>) -> Self {
        let mut facts = Self::default();
        let Some(router) = question.witness.router(question.key) else { return facts };
        let is_lasting = |record: &&SourceRecord| {
            record.origin == AdvertOrigin::Foreign
                && record.at.since(record.since) >= record.interval + SETTLE
        };
        let judged_at = question.judged_at();
        for record in question.both_kinds(judged_at).filter(is_lasting) {
            if question.may_hold(record) && question.is_second_primary(record) {
                facts.second_primary.get_or_insert_with(|| question.host(record));
            }
        }
        for record in question.concerning(router, judged_at).filter(is_lasting) {
            let host = question.host(record);
            if question.own.is_other_service(record) {
                facts.stranger.get_or_insert(host);
                continue;
            }
            if question.own.ignores_adverts {
                continue;
            }
            // During a rotation of keys, one or two adverts may have another key than the own block.
            let is_settled = record.at.since(record.settings_since) >= record.interval + SETTLE;
            let rejection = question
                .own
                .rejection(record)
                .filter(|_| is_settled && !question.has_yielded(record));
            if let Some(rejection) = rejection {
                facts.rejected.get_or_insert_with(|| (host.clone(), rejection));
            }
            let differing = differences(question.own, record);
            if !differing.is_empty() && !question.has_yielded(record) {
                facts.differing.get_or_insert((host, differing));
            }
        }
        facts.silence = question.silence();
        facts.disturbance = question.disturbance(router);
        facts.lowered = question.lowered(router);
        facts.is_flooded = question.witness.is_flooded(judged_at);
        // A second primary may advertise by the other kind.
        let mut both = question.witness.both_kinds(question.key);
        facts.is_crowded = both.any(|router| router.is_crowded(judged_at));
        facts
    }

    /// Whether the facts give no finding.
    pub fn is_quiet(&self) -> bool {
        *self == Self::default()
    }

    /// A number that is different if other findings follow; ages do not count.
    pub fn kinds(&self) -> u8 {
        u8::from(self.second_primary.is_some())
            | u8::from(self.stranger.is_some()) << 1
            | u8::from(self.silence.is_some()) << 2
            | u8::from(self.differing.is_some()) << 3
            | u8::from(self.disturbance.is_some()) << 4
            | u8::from(self.lowered.is_some()) << 5
            | u8::from(self.is_crowded || self.is_flooded) << 6
            | u8::from(self.rejected.is_some()) << 7
    }

    /// The findings. `is_advert_role`: the instance has no address.
    pub(super) fn findings(&self, is_advert_role: bool) -> impl Iterator<Item = Finding> {
        let second = self.second_primary.as_ref().map(|host| {
            let text = if is_advert_role {
                format!("this node advertises, and {host} does too")
            } else {
                format!("this node holds the addresses, and {host} advertises them too")
            };
            Finding::new(FindingKind::TwoPrimaries, text)
        });
        let stranger = self.stranger.as_ref().map(|host| {
            Finding::new(
                FindingKind::VridClashOnLink,
                format!("{host} advertises the same virtual_router_id with other addresses"),
            )
        });
        let silence = self.silence.map(AdvertSilence::finding);
        let differing = self.differing.as_ref().map(|(host, differences)| {
            Finding::new(
                FindingKind::PeerConfigurationDiffers,
                format!("{host} advertises with {}", differences.join(", ")),
            )
        });
        let rejected = self.rejected.as_ref().map(|(host, rejection)| {
            let text =
                format!("keepalived here does not accept the adverts of {host}: {rejection}");
            Finding::new(FindingKind::AdvertRejected, text)
        });
        let disturbance = self.disturbance.as_ref().map(AdvertDisturbance::finding);
        let crowd = match (self.is_crowded, self.is_flooded) {
            (true, _) => {
                Some(format!("more than {MAX_SOURCES} hosts advertise this virtual_router_id"))
            }
            (false, true) => {
                Some("packets of VRRP arrive on the link faster than they are read".to_owned())
            }
            (false, false) => None,
        };
        let crowd = crowd.map(|text| {
            let text = format!("{text}: a further primary may stay unseen");
            let finding = Finding::new(FindingKind::TooManyAdvertSources, text);
            let hint = "a host may flood the network (tcpdump -ne proto 112), or vipwatch gets too little of the processors";
            if self.is_crowded { finding } else { Finding { hint, ..finding } }
        });
        [second, stranger, silence, differing, rejected, disturbance, crowd].into_iter().flatten()
    }
}

impl AdvertDisturbance {
    fn finding(&self) -> Finding {
        let sender = if self.is_own { "this node".to_owned() } else { self.host.to_string() };
        let found = |text| Finding::new(FindingKind::AdvertsLost, text);
        if let Some(counts) = self.loss {
            let (lost, expected, seconds) = (counts.lost, counts.expected(), LOSS_SPAN.as_secs());
            return found(format!(
                "{lost} of {expected} adverts of {sender} within the last {seconds} s are missing"
            ));
        }
        let (jitter, interval) = self.jitter;
        let text = format!(
            "the adverts of {sender} come irregularly: {:.2} s more or less than their interval of {} s",
            jitter.as_secs_f64(),
            interval.as_secs_f64()
        );
        found(text).milder()
    }
}

impl AdvertSilence {
    fn finding(self) -> Finding {
        let finding = Finding::new(FindingKind::NoPrimary, self.to_string());
        if self.undecoded == 0 {
            return finding;
        }
        let hint = "vipwatch could not read the last adverts: look on the other nodes which one holds the addresses \
                    (ip address) before you act";
        Finding { hint, ..finding }
    }
}

impl std::fmt::Display for AdvertSilence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { down_interval, undecoded } = self;
        let seconds = down_interval.as_secs_f64();
        if *undecoded > 0 {
            f.write_str("probable: ")?;
        }
        write!(f, "no node has advertised for the master-down interval of {seconds:.1} s")?;
        match undecoded {
            0 => Ok(()),
            count => write!(f, ", after adverts that cannot be decoded ({count} in all)"),
        }
    }
}

impl std::fmt::Display for OtherHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (priority {})", self.source, self.priority)
    }
}

impl AdvertQuestion<'_> {
    /// The time as of which the sources are judged.
    pub(super) fn judged_at(&self) -> Moment {
        self.witness.judged_at(self.now)
    }

    fn host(&self, record: &SourceRecord) -> OtherHost {
        let age = self.now.since(record.at);
        OtherHost { source: record.source, priority: record.priority, age }
    }

    /// The sources that advertise to this instance.
    fn concerning<'r>(
        &self,
        router: &'r RouterWitness,
        now: Moment,
    ) -> impl Iterator<Item = &'r SourceRecord> {
        router.advertising(now).filter(|record| self.own.concerns(record))
    }

    /// The sources that advertise the virtual router id of the instance, by multicast or unicast: another host with the
    /// addresses is a second primary, whichever way it advertises.
    pub(super) fn both_kinds(&self, now: Moment) -> impl Iterator<Item = &SourceRecord> {
        self.witness.both_kinds(self.key).flat_map(move |router| router.advertising(now))
    }

    /// Whether the sender of adverts may hold the addresses of the instance.
    pub(super) fn may_hold(&self, record: &SourceRecord) -> bool {
        !self.own.is_other_service(record) && !self.own.lacks_addresses(record)
    }

    fn is_holding(&self) -> bool {
        matches!(self.role, Role::Primary | Role::Partial { .. })
    }

    /// Whether the source has stopped because this node took over: all its adverts are older than the role, and the next
    /// one is late. Its settings are those of an earlier time.
    fn has_yielded(&self, record: &SourceRecord) -> bool {
        self.is_holding() && record.at < self.role_since && record.is_late(self.judged_at())
    }

    fn is_second_primary(&self, record: &SourceRecord) -> bool {
        let overlap = record.at.since(record.since.max(self.role_since));
        self.is_holding() && overlap >= record.interval + SETTLE
    }

    /// The disturbance of the source with the highest priority, which is the primary.
    fn disturbance(&self, router: &RouterWitness) -> Option<AdvertDisturbance> {
        if self.witness.overrun().is_some_and(|overrun| overrun.to > self.now.before(LOSS_SPAN)) {
            return None;
        }
        let judged_at = self.judged_at();
        let sources = self.concerning(router, judged_at);
        let sources = sources.filter(|record| self.may_hold(record));
        let record = sources.max_by_key(|record| (record.priority, record.source))?;
        record.is_disturbed(judged_at).then(|| AdvertDisturbance {
            host: self.host(record),
            is_own: record.origin == AdvertOrigin::Own,
            loss: record.recent_loss(judged_at),
            jitter: (record.jitter, record.interval),
        })
    }

    fn lowered(&self, router: &RouterWitness) -> Option<LoweredPriority> {
        let own = router.last_own(self.now)?.record;
        if own.is_ended(self.judged_at()) {
            return None;
        }
        let since = own.previous_priority.map_or(own.since, |(_, at)| at);
        // One more advert must have the priority after an interval.
        let age = own.at.since(since).saturating_sub(own.interval);
        LoweredPriority::of(own.priority, self.priority?, age)
    }

    fn silence(&self) -> Option<AdvertSilence> {
        let has_addresses = self.own.addresses.as_ref().is_none_or(|own| !own.is_empty());
        let role_since = match self.role {
            Role::Backup => self.role_since,
            // The silence itself made the role unknown.
            Role::Unknown(_) if !has_addresses => Moment::new(Duration::ZERO),
            _ => return None,
        };
        let down_interval = self.down_interval;
        match self.witness.silence(self.key, self.own, down_interval, self.now) {
            // The instance itself may have held the addresses, and sent adverts that are not captured.
            Silence::Silent { time, is_probable } => {
                let time = time.min(self.now.since(role_since));
                let router = self.witness.router(self.key).filter(|_| is_probable);
                let undecoded = router.map_or(0, |router| router.undecoded().count);
                let silence = AdvertSilence { down_interval, undecoded };
                (time >= down_interval + SETTLE).then_some(silence)
            }
            Silence::Advertised | Silence::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests;
