// SPDX-License-Identifier: Apache-2.0
//! Questions about the adverts of one virtual router: which sources advertise, for how long there is silence, and where
//! the settings differ.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::{AdvertOrigin, LinkWitness, RouterKey, RouterWitness, SourceRecord};
use crate::audit::SETTLE;
use crate::keepalived::{AuthHmac, AuthHmacMode};
use crate::vrrp::{VrrpAuthentication, VrrpVersion};
use crate::{Moment, Role, first_of};

/// How long no source has sent an advert for a virtual router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// A source advertises.
    Advertised,
    /// No source has advertised.
    Silent {
        /// For how long.
        time: Duration,
        /// Whether this is probable only: adverts that cannot be decoded came before.
        is_probable: bool,
    },
    /// It cannot be said: the capture began too late, packets were lost, or adverts came that cannot be decoded.
    Unknown,
}

impl RouterWitness {
    /// The sources that advertise at `now`: not handed over, and with an advert within their own master-down interval. For
    /// this moment, the caller passes [`LinkWitness::judged_at`].
    pub fn advertising(&self, now: Moment) -> impl Iterator<Item = &SourceRecord> {
        self.sources().iter().filter(move |record| !record.is_ended(now))
    }
}

/// Why the role of an instance without addresses is not known.
pub const UNHEARD: &str = "no advert of this node or another one shows it";

impl LinkWitness {
    /// The role of an instance without addresses: who sends its adverts. `expected` is its master-down interval. `None`: that
    /// is not known yet, as during an election.
    pub fn role(
        &self,
        key: RouterKey,
        own: &OwnSettings,
        expected: Duration,
        now: Moment,
    ) -> Option<Role> {
        let router = self.router(key)?;
        let judged_at = self.judged_at(now);
        let newest = |origin| {
            let records = router.advertising(judged_at).filter(|one| own.concerns(one));
            records.filter(|one| one.origin == origin).max_by_key(|one| one.at)
        };
        let lost = self.overrun().map(|overrun| overrun.to);
        // The own adverts may be among the lost ones.
        let is_complete = lost.is_none_or(|lost| judged_at.since(lost) >= expected + SETTLE);
        match (newest(AdvertOrigin::Own), newest(AdvertOrigin::Foreign)) {
            // A primary that steps back sends nothing about it.
            (Some(own), Some(foreign))
                if is_complete
                    && own.at < foreign.at
                    && judged_at.since(own.at) > own.interval * 3 / 2 =>
            {
                Some(Role::Backup)
            }
            (Some(_), _) => Some(Role::Primary),
            (None, Some(_)) => is_complete.then_some(Role::Backup),
            (None, None) => {
                let heard = router.sources().iter().map(|one| one.at).max();
                let from = heard.max(lost).unwrap_or(self.since()).max(self.since());
                let is_silent = judged_at.since(from) >= expected + SETTLE;
                is_silent.then(|| Role::Unknown(UNHEARD.to_owned()))
            }
        }
    }

    /// How long no source has advertised a followed virtual router to the instance with the settings `own`. `expected` is
    /// the master-down interval of the instance; with another interval in the last advert, the longer time
    /// counts.
    pub fn silence(
        &self,
        key: RouterKey,
        own: &OwnSettings,
        expected: Duration,
        now: Moment,
    ) -> Silence {
        let Some(router) = self.router(key) else { return Silence::Unknown };
        let judged_at = self.judged_at(now);
        if router.sources().iter().any(|record| own.waits_for(record, expected, judged_at)) {
            return Silence::Advertised;
        }
        // Up to the last time at which the queue was read, everything is known.
        let known_until = self.drained_at().min(now);
        let is_answered =
            |record: &&SourceRecord| own.concerns(record) && !own.lacks_addresses(record);
        let last = router.sources().iter().filter(is_answered).max_by_key(|record| record.at);
        let undecoded = router.undecoded().last;
        let is_probable = undecoded > last.map(|record| record.at);
        let overrun = self.overrun().map(|overrun| overrun.to);
        // Before its adverts lost their addresses, a source was answered.
        let lacking = |record: &&SourceRecord| own.concerns(record) && own.lacks_addresses(record);
        let lacking = router.sources().iter().filter(lacking).map(|record| record.settings_since);
        let heard = undecoded.max(last.map(|record| record.at)).max(overrun).max(lacking.max());
        let from = heard.unwrap_or(self.since()).max(self.since());
        let down = last.map_or(expected, |record| own.down_interval_after(record, expected));
        let time = known_until.since(from);
        if time < down { Silence::Unknown } else { Silence::Silent { time, is_probable } }
    }
}

/// The settings of an instance on this host, as far as adverts show them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnSettings {
    /// The version; `None` if it is not known.
    pub version: Option<VrrpVersion>,
    /// The advert interval; `None` if it is not known.
    pub interval: Option<Duration>,
    /// The type of authentication; `None` if it is not known.
    pub authentication: Option<VrrpAuthentication>,
    /// The addresses in adverts; `None` if they are not known.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// `unicast_peer`; empty if adverts are multicast.
    pub unicast_peers: Box<[IpAddr]>,
    /// `auth_hmac`; `None` if the instance has no such block, or if its configuration is not known.
    pub auth_hmac: Option<Box<AuthHmac>>,
    /// Whether keepalived ignores the adverts of others.
    pub ignores_adverts: bool,
}

impl OwnSettings {
    /// Whether adverts are for this instance and not for another one with the same virtual router id: each has its own
    /// unicast peers. keepalived also accepts other sources, where it is not told to check them.
    pub fn concerns(&self, record: &SourceRecord) -> bool {
        self.unicast_peers.is_empty()
            || self.unicast_peers.contains(&record.source)
            || !self.is_other_service(record)
    }

    /// Why keepalived of this instance drops the newest advert of a source; `None` if it accepts the signature, as far as
    /// that can be known without a key.
    pub fn rejection(&self, record: &SourceRecord) -> Option<Rejection> {
        self.version?;
        Rejection::of(self.auth_hmac.as_deref(), record)
    }

    /// Whether keepalived of this instance waits for the next advert of a source. `expected` is its own master-down interval.
    pub fn waits_for(&self, record: &SourceRecord, expected: Duration, now: Moment) -> bool {
        let down_interval = self.down_interval_after(record, expected);
        let is_current = !record.is_ended(now) && now.since(record.at) <= down_interval;
        is_current && self.concerns(record) && !self.lacks_addresses(record)
    }

    /// Whether adverts have no address at all, although the instance has. Their sender holds none, for example because it
    /// could not read its configuration, and keepalived of this instance drops them.
    pub fn lacks_addresses(&self, record: &SourceRecord) -> bool {
        self.addresses.as_ref().is_some_and(|own| !own.is_empty())
            && record.addresses().next().is_none()
    }

    /// How long keepalived of this instance waits after an advert of a source.
    fn down_interval_after(&self, record: &SourceRecord, expected: Duration) -> Duration {
        // `down_timer_adverts` is 1 or 2.
        let is_short = expected < record.interval * 3 && self.interval == Some(record.interval);
        if is_short || self.drops(record) {
            return expected;
        }
        // The instance may wait for more adverts than the source announces.
        record.down_interval().max(expected)
    }

    /// Whether keepalived of this instance drops the adverts of a source, so that their interval means nothing to it.
    fn drops(&self, record: &SourceRecord) -> bool {
        let differs = |is_other: Option<bool>| is_other == Some(true);
        differs(self.version.map(|version| version != record.version))
            || record.version == VrrpVersion::V2
                && differs(self.interval.map(|interval| interval != record.interval))
            || differs(self.authentication.map(|own| own != record.authentication))
            || differs(self.addresses.as_ref().map(|own| *own != record.addresses().collect()))
            || self.rejection(record).is_some()
    }

    /// Whether adverts have no address of the instance, although both have addresses.
    pub fn is_other_service(&self, record: &SourceRecord) -> bool {
        let own = self.addresses.as_ref().filter(|own| !own.is_empty());
        own.is_some_and(|own| {
            record.addresses().next().is_some() && !record.addresses().any(|ip| own.contains(&ip))
        })
    }
}

/// Why keepalived drops an advert because of its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The advert is not signed, and `mode` is `enforce`.
    Unsigned,
    /// The advert is signed, and the instance has no `auth_hmac`: for keepalived the packet is too long.
    Unexpected,
    /// The block has no key with this id.
    UnknownKey(u8),
    /// The clocks differ by more than `time_window`.
    Clock {
        /// This host's clock minus the sender's, in whole seconds.
        seconds: i32,
        /// `time_window`.
        window: Duration,
    },
}

impl Rejection {
    /// As [`OwnSettings::rejection`], for an instance with this block. keepalived compares the clocks first.
    pub fn of(own: Option<&AuthHmac>, record: &SourceRecord) -> Option<Self> {
        let Some(own) = own else { return record.signature.map(|_| Self::Unexpected) };
        let Some(signature) = record.signature else {
            return (own.mode == AuthHmacMode::Enforce).then_some(Self::Unsigned);
        };
        let seconds = signature.difference.seconds;
        let is_outside = |window: &Duration| u64::from(seconds.unsigned_abs()) > window.as_secs();
        if let Some(window) = own.time_window.filter(is_outside) {
            return Some(Self::Clock { seconds, window });
        }
        let is_known = own.key_ids.contains(&signature.key_id);
        (!is_known).then_some(Self::UnknownKey(signature.key_id))
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned => {
                f.write_str("they are not signed, and `auth_hmac` has the mode enforce")
            }
            Self::Unexpected => {
                f.write_str("they are signed, and the instance has no `auth_hmac`, or its keepalived does not know it")
            }
            Self::UnknownKey(id) => {
                write!(f, "they are signed with key {id}, which `auth_hmac` does not have")
            }
            Self::Clock { seconds, window } => {
                let direction = if *seconds < 0 { "ahead of" } else { "behind" };
                // Another difference is no other finding.
                let window = window.as_secs();
                write!(f, "the sender's clock is {direction} this node's by more than the {window} s of `time_window`, and either may be wrong")
            }
        }
    }
}

/// Maximum number of addresses that a text names: an advert may contain 255.
const MAX_NAMED: usize = 3;

/// The settings that differ between `own` and the adverts of another host. A setting that is not known differs from
/// nothing.
pub fn differences(own: &OwnSettings, other: &SourceRecord) -> Vec<String> {
    let mut differences = Vec::new();
    if let Some(own) = own.version.filter(|own| *own != other.version) {
        let (own, other) = (own.number(), other.version.number());
        differences.push(format!("VRRP version {other} instead of {own}"));
    }
    if let Some(own) = own.interval.filter(|own| *own != other.interval) {
        let (own, other) = (own.as_secs_f64(), other.interval.as_secs_f64());
        differences.push(format!("advert interval {other} s instead of {own} s"));
    }
    if let Some(own) = own.authentication.filter(|own| *own != other.authentication) {
        let (own, other) = (own.word(), other.authentication.word());
        differences.push(format!("authentication {other} instead of {own}"));
    }
    if let Some(own) = &own.addresses {
        let theirs: BTreeSet<IpAddr> = other.addresses().collect();
        let only_own: Vec<IpAddr> = own.difference(&theirs).copied().collect();
        let only_other: Vec<IpAddr> = theirs.difference(own).copied().collect();
        let parts = [("without", only_own), ("with", only_other)];
        let parts = parts.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<_> = parts
            .map(|(word, list)| format!("{word} {}", first_of(list, MAX_NAMED, ", ")))
            .collect();
        if !parts.is_empty() {
            differences.push(format!("addresses {}", parts.join(" and ")));
        }
    }
    differences
}
