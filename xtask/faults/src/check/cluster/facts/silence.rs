// SPDX-License-Identifier: Apache-2.0
//! When a host received no adverts, from the packets that the switch delivered to it.

use crate::check::wire::{PortDirection, WireAdvert};
use crate::moment::{Micros, SECOND};

/// A node has read and published the beginning or the end of the silence within this time: it reads its capture once a
/// second, waits for one second more, and publishes a changed record within a second.
pub const SILENCE_PUBLISHED: Micros = 3 * SECOND;

/// A period without adverts at a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentPeriod {
    /// The node may know from here on that it receives none.
    pub possible: Micros,
    /// The node has published it from here on; later than `end` if it need not.
    pub certain: Micros,
    /// The next advert.
    pub end: Micros,
    /// The node has published that it receives adverts again.
    pub gone: Micros,
}

/// An advert that was delivered to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredAdvert {
    pub at: Micros,
    /// It has the priority 0: its sender gives up its role.
    pub is_last: bool,
}

/// The adverts that the switch delivered through a port.
pub fn delivered(adverts: &[WireAdvert], port: u32, vrid: u8) -> Vec<DeliveredAdvert> {
    let delivered = adverts.iter().filter(|advert| {
        advert.port == port && advert.direction == PortDirection::ToHost && advert.vrid == vrid
    });
    delivered
        .map(|advert| DeliveredAdvert { at: advert.at, is_last: advert.priority == 0 })
        .collect()
}

/// The silent periods of a run. A master-down interval is longer than three intervals and shorter than four. After each of
/// the times in `disturbed`, the capture is incomplete for one master-down interval.
pub fn silences(
    adverts: &[DeliveredAdvert],
    disturbed: &[Micros],
    interval: Micros,
    (start, end): (Micros, Micros),
) -> Vec<SilentPeriod> {
    let mut periods = Vec::new();
    let mut last = DeliveredAdvert { at: start, is_last: true };
    let ends = adverts.iter().copied().chain([DeliveredAdvert { at: end, is_last: true }]);
    for next in ends.filter(|advert| advert.at > start) {
        let possible = if last.is_last { last.at } else { last.at + 3 * interval };
        let between = disturbed.iter().copied().filter(|at| last.at < *at && *at < next.at);
        let complete = between.max().unwrap_or(last.at);
        if next.at > possible {
            periods.push(SilentPeriod {
                possible,
                certain: complete + 4 * interval + SILENCE_PUBLISHED,
                end: next.at,
                gone: next.at + SILENCE_PUBLISHED,
            });
        }
        last = next;
    }
    periods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advert(second: Micros, is_last: bool) -> DeliveredAdvert {
        DeliveredAdvert { at: second * SECOND, is_last }
    }

    #[test]
    fn a_silence_is_certain_after_the_master_down_interval() {
        let adverts = [advert(1, false), advert(2, false), advert(20, false), advert(22, false)];
        let range = (0, 23 * SECOND);
        let found = silences(&adverts[..3], &[], SECOND, range);
        let (possible, certain) = (5 * SECOND, 9 * SECOND);
        let long = SilentPeriod { possible, certain, end: 20 * SECOND, gone: 23 * SECOND };
        assert_eq!(found[1..], [long], "the first one is that before the first advert");
        let disturbed = silences(&adverts, &[10 * SECOND], SECOND, range);
        assert_eq!(disturbed[1].certain, 17 * SECOND);
        assert_eq!(disturbed.len(), 2, "one missing advert is no silence");
    }

    #[test]
    fn the_priority_0_ends_the_adverts_of_a_host() {
        let adverts = [advert(1, false), advert(2, true)];
        let found = silences(&adverts, &[], SECOND, (0, 23 * SECOND));
        assert_eq!(found[1].possible, 2 * SECOND);
    }
}
