// SPDX-License-Identifier: Apache-2.0
//! The record of one source of adverts.

use std::net::IpAddr;
use std::time::Duration;

use super::Overrun;
use super::loss::LossWindow;
use crate::Moment;
use crate::vrrp::{
    Advert, ChecksumCoverage, Signature, VrrpAuthentication, VrrpFamily, VrrpVersion, addresses,
};

/// The weight of one deviation in [`SourceRecord::jitter`] is 1 to this number (RFC 3550, section 6.4.1).
const JITTER_WEIGHT: u32 = 16;

/// An advert that is late by more than this is missing. Timers of a busy host may be late by some milliseconds.
const LATE_MARGIN: Duration = Duration::from_millis(50);

/// Which host sent an advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdvertOrigin {
    /// This host.
    Own,
    /// Another host.
    Foreign,
}

/// The signature of the newest advert of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedSignature {
    /// The key that signs, as the sender numbers it.
    pub key_id: u8,
    /// The clock of this host when it received the advert, compared with the sender's.
    pub difference: ClockDifference,
}

/// The difference between two clocks. It is positive if the sender's clock is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// The difference of the whole seconds, which keepalived compares with `time_window`.
    pub seconds: i32,
    /// The difference of the fractions.
    millis: i16,
}

impl ClockDifference {
    fn new(own: Duration, other: Duration) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the trailer has 32 bits")]
        let wire = |time: Duration| time.as_secs() as u32;
        let millis = |time: Duration| i16::try_from(time.subsec_millis()).unwrap_or(0);
        Self {
            seconds: wire(own).wrapping_sub(wire(other)).cast_signed(),
            millis: millis(own) - millis(other),
        }
    }

    /// A number for the whole seconds. It stays the same while clocks that agree are read.
    pub(super) fn step(self) -> u64 {
        let is_usual = self.seconds.unsigned_abs() <= 1;
        u64::from(if is_usual { 0 } else { self.seconds.cast_unsigned() })
    }

    /// The difference in milliseconds.
    pub fn as_millis(self) -> i64 {
        i64::from(self.seconds) * 1_000 + i64::from(self.millis)
    }
}

impl RecordedSignature {
    fn of(advert: &Advert<'_>, clock: Duration) -> Option<Self> {
        let Signature { key_id, sent } = advert.signature?;
        Some(Self { key_id, difference: ClockDifference::new(clock, sent) })
    }
}

/// The newest advert of one source, and figures about the earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRecord {
    /// The source address.
    pub source: IpAddr,
    /// Whether this host sent the adverts.
    pub origin: AdvertOrigin,
    /// The priority; 0 if the source has handed over.
    pub priority: u8,
    /// The interval that the advert announces.
    pub interval: Duration,
    /// The version of the protocol.
    pub version: VrrpVersion,
    /// How the advert is authenticated.
    pub authentication: VrrpAuthentication,
    /// What the checksum covers.
    pub checksum: ChecksumCoverage,
    /// The signature; `None` if the newest advert has none.
    pub signature: Option<RecordedSignature>,
    /// The time of the newest advert.
    pub at: Moment,
    /// The time of the first advert of the current series. A series ends with the priority 0, or with a silence of the
    /// master-down interval.
    pub since: Moment,
    /// The time since which adverts follow each other without a pause of more than two intervals.
    pub steady_since: Moment,
    /// The time since which the adverts have the same settings: interval, version, authentication, signing key and addresses.
    pub settings_since: Moment,
    /// The priority before it last changed within the series, and when it changed; `None` if it has not changed.
    pub previous_priority: Option<(u8, Moment)>,
    /// Number of adverts, since the source is known.
    pub adverts: u64,
    /// Number of adverts that are missing within series, judged by the announced interval. Gaps with an overrun of the
    /// capture do not count.
    pub lost: u64,
    /// The smoothed difference between the announced interval and the measured one.
    pub jitter: Duration,
    pub(super) window: LossWindow,
    address_bytes: Box<[u8]>,
}

impl SourceRecord {
    pub(super) fn new(
        advert: &Advert<'_>,
        origin: AdvertOrigin,
        at: Moment,
        clock: Duration,
    ) -> Self {
        Self {
            source: advert.source,
            origin,
            priority: advert.priority,
            interval: advert.interval,
            version: advert.version,
            authentication: advert.authentication,
            checksum: advert.checksum,
            signature: RecordedSignature::of(advert, clock),
            at,
            since: at,
            steady_since: at,
            settings_since: at,
            previous_priority: None,
            adverts: 1,
            lost: 0,
            jitter: Duration::ZERO,
            window: LossWindow::default(),
            address_bytes: advert.address_bytes.into(),
        }
    }

    /// Takes over a newer advert. Returns whether a new series has begun or a setting other than the priority has
    /// changed.
    pub(super) fn update(
        &mut self,
        advert: &Advert<'_>,
        at: Moment,
        clock: Duration,
        overrun: Option<Overrun>,
    ) -> bool {
        // A clock that was set, or a replayed packet: time does not go back.
        let at = at.max(self.at);
        let gap = at.since(self.at);
        let is_new_series = self.is_ended(at);
        if is_new_series || gap > self.interval * 2 {
            self.steady_since = at;
        }
        let lost_before = self.lost;
        if is_new_series {
            self.since = at;
            self.previous_priority = None;
        } else {
            if overrun.is_none_or(|overrun| overrun.to < self.at) {
                self.measure(gap);
            }
            if advert.priority != self.priority {
                self.previous_priority = Some((self.priority, at));
            }
        }
        self.window.add(at, self.lost - lost_before);
        let is_other = self.interval != advert.interval
            || self.version != advert.version
            || self.authentication != advert.authentication
            || self.signature.map(|one| one.key_id) != advert.signature.map(|one| one.key_id)
            || *self.address_bytes != *advert.address_bytes;
        if is_other {
            self.settings_since = at;
        }
        let is_changed = is_new_series || is_other;
        self.adverts = self.adverts.saturating_add(1);
        self.at = at;
        self.priority = advert.priority;
        self.interval = advert.interval;
        self.version = advert.version;
        self.authentication = advert.authentication;
        self.checksum = advert.checksum;
        self.signature = RecordedSignature::of(advert, clock);
        // The same addresses in almost every advert: nothing is allocated.
        if *self.address_bytes != *advert.address_bytes {
            self.address_bytes = advert.address_bytes.into();
        }
        is_changed
    }

    /// Takes over the time between two adverts of one series.
    fn measure(&mut self, gap: Duration) {
        let interval = self.interval.max(Duration::from_millis(1));
        // An advert may be late by half an interval before the next one counts as missing.
        let steps = (gap + interval / 2).as_nanos() / interval.as_nanos();
        let missing = u64::try_from(steps).unwrap_or(u64::MAX).saturating_sub(1);
        self.lost = self.lost.saturating_add(missing);
        if missing == 0 && steps > 0 {
            let deviation = gap.abs_diff(interval);
            let step = deviation.abs_diff(self.jitter) / JITTER_WEIGHT;
            self.jitter = if deviation > self.jitter {
                self.jitter + step
            } else {
                self.jitter.saturating_sub(step)
            };
        }
    }

    /// The addresses in the newest advert.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        addresses(VrrpFamily::of(self.source), &self.address_bytes)
    }

    /// The time without an advert after which other routers take over: the master-down interval for the priority of the
    /// source itself.
    pub fn down_interval(&self) -> Duration {
        master_down_interval(self.version, self.interval, self.priority, DOWN_ADVERTS)
    }

    /// Whether the next advert of the source is late by more than [`LATE_MARGIN`].
    pub fn is_late(&self, now: Moment) -> bool {
        now.since(self.at) > self.interval + LATE_MARGIN
    }

    /// Whether the source has handed over, or has sent no advert for [`Self::down_interval`].
    pub fn is_ended(&self, now: Moment) -> bool {
        self.priority == 0 || now.since(self.at) > self.down_interval()
    }
}

/// The number of adverts of the RFCs for [`master_down_interval`]. keepalived can be configured with another one, which
/// adverts do not show.
const DOWN_ADVERTS: u8 = 3;

/// The time without an advert after which a backup with this priority becomes primary: the intervals of so many adverts,
/// three in the RFCs, and the skew time (RFC 5798, section 6.1; RFC 3768, section 6.1).
pub fn master_down_interval(
    version: VrrpVersion,
    interval: Duration,
    priority: u8,
    adverts: u8,
) -> Duration {
    let skew_unit = match version {
        VrrpVersion::V2 => Duration::from_secs(1),
        VrrpVersion::V3 => interval,
    };
    interval * u32::from(adverts) + skew_unit * (256 - u32::from(priority)) / 256
}
