// SPDX-License-Identifier: Apache-2.0
//! Addresses that another station has claimed, and when each is checked again.
//!
//! ```text
//!            claim              due                       no claim until the end
//!   (none) ───────▶ waiting ─────────▶ probed, listening ────────────────────────▶ (none)
//!                      ▲                       │ claim, or listening was interrupted
//!                      └───────────────────────┘ the next wait is twice as long
//! ```
//!
//! A doubt is confirmed by a claim at least [`CONFIRM_AFTER`] after the first one. During a failover, the former holder
//! may still claim the address for a moment: such a doubt ends without being confirmed.
//!
//! The caller sends the probes and passes in the time.

use std::net::IpAddr;
use std::time::Duration;

use crate::snapshot::Mac;
use crate::{LinkAddress, LinkName, Moment};

/// How long a claim must last until it confirms a doubt: an election takes less.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Wait between the first claim and the first repeated check. Not shorter than [`CONFIRM_AFTER`], so that an answer to
/// this check confirms the doubt.
const FIRST_WAIT: Duration = CONFIRM_AFTER;

/// The longest wait between two checks of one address.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Another station that claims an address of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateHolder {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link on which the claim was received.
    pub link: LinkName,
    /// The MAC of the other station.
    pub mac: Mac,
}

/// An address that no other station claims any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedDoubt {
    /// The address.
    pub target: LinkAddress,
    /// Whether the doubt was confirmed: another station has held the address for longer than an election.
    pub was_confirmed: bool,
}

/// The addresses of one instance that other stations have claimed.
#[derive(Debug)]
pub struct HolderDoubts {
    /// How long the caller listens after a probe.
    window: Duration,
    /// In no particular order.
    ///
    /// BOUND: one for each address of the instance.
    doubts: Vec<Doubt>,
}

#[derive(Debug)]
struct Doubt {
    target: LinkAddress,
    /// The stations that have claimed the address since the last probe, or before it if none has since.
    holders: Vec<DuplicateHolder>,
    /// The next claim replaces the holders, because they are from before the last probe.
    are_holders_old: bool,
    first_claim: Moment,
    is_confirmed: bool,
    /// The current wait, or the last one.
    wait: Duration,
    last_probe: Option<Moment>,
    state: CheckState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckState {
    /// The next check is due at this time.
    Waiting(Moment),
    /// The address was probed, and a claim counts until this time.
    Listening(Moment),
}

impl Doubt {
    fn due(&self) -> Moment {
        match self.state {
            CheckState::Waiting(at) | CheckState::Listening(at) => at,
        }
    }

    fn wait_longer(&mut self, now: Moment) {
        self.wait = (self.wait * 2).min(MAX_WAIT);
        self.state = CheckState::Waiting(now + self.wait);
    }
}

impl HolderDoubts {
    /// Without doubts. After each probe, the caller listens for `window`.
    pub fn new(window: Duration) -> Self {
        Self { window, doubts: Vec::new() }
    }

    /// Whether no address is in doubt.
    pub fn is_empty(&self) -> bool {
        self.doubts.is_empty()
    }

    /// When [`Self::take_due`] or [`Self::take_ended`] has a result; `None` if no address is in doubt.
    pub fn due(&self) -> Option<Moment> {
        self.doubts.iter().map(Doubt::due).min()
    }

    /// Records that another station claims `target`.
    pub fn record(&mut self, target: LinkAddress, holder: DuplicateHolder, now: Moment) {
        let Some(doubt) = self.find(target) else {
            self.doubts.push(Doubt {
                target,
                holders: vec![holder],
                are_holders_old: false,
                first_claim: now,
                is_confirmed: false,
                wait: FIRST_WAIT,
                last_probe: None,
                state: CheckState::Waiting(now + FIRST_WAIT),
            });
            return;
        };
        if std::mem::replace(&mut doubt.are_holders_old, false) {
            doubt.holders.clear();
        }
        if !doubt.holders.contains(&holder) {
            doubt.holders.push(holder);
        }
        doubt.is_confirmed |= now.since(doubt.first_claim) >= CONFIRM_AFTER;
        if matches!(doubt.state, CheckState::Listening(_)) {
            doubt.wait_longer(now);
        }
    }

    /// The addresses that must be probed now; those with the oldest probe first. For each, the caller calls
    /// [`Self::probed`], [`Self::put_off`] or [`Self::remove`].
    pub fn take_due(&self, now: Moment) -> Vec<LinkAddress> {
        let is_due = |doubt: &&Doubt| matches!(doubt.state, CheckState::Waiting(at) if at <= now);
        let mut due: Vec<&Doubt> = self.doubts.iter().filter(is_due).collect();
        due.sort_by_key(|doubt| doubt.last_probe);
        due.into_iter().map(|doubt| doubt.target).collect()
    }

    /// A probe for `target` was sent.
    pub fn probed(&mut self, target: LinkAddress, now: Moment) {
        let window = self.window;
        if let Some(doubt) = self.find(target) {
            doubt.last_probe = Some(now);
            doubt.are_holders_old = true;
            doubt.state = CheckState::Listening(now + window);
        }
    }

    /// A probe for `target` could not be sent now.
    pub fn put_off(&mut self, target: LinkAddress, now: Moment) {
        if let Some(doubt) = self.find(target) {
            doubt.state = CheckState::Waiting(now + FIRST_WAIT);
        }
    }

    /// This node does not hold `target` any more.
    pub fn remove(&mut self, target: LinkAddress) {
        self.doubts.retain(|doubt| doubt.target != target);
    }

    /// Removes and returns the addresses that no station has claimed in the whole time after a probe.
    pub fn take_ended(&mut self, now: Moment) -> Vec<EndedDoubt> {
        let is_over =
            |doubt: &Doubt| matches!(doubt.state, CheckState::Listening(end) if end <= now);
        let over = self.doubts.iter().filter(|doubt| is_over(doubt));
        let ended = over
            .map(|doubt| EndedDoubt { target: doubt.target, was_confirmed: doubt.is_confirmed })
            .collect();
        self.doubts.retain(|doubt| !is_over(doubt));
        ended
    }

    /// The caller does not listen any more: checks that have not ended are repeated, because a claim may be missing.
    pub fn interrupted(&mut self, now: Moment) {
        let listening =
            self.doubts.iter_mut().filter(|doubt| matches!(doubt.state, CheckState::Listening(_)));
        listening.for_each(|doubt| doubt.wait_longer(now));
    }

    /// The other holders of all addresses with a confirmed doubt, by address.
    pub fn confirmed(&self) -> Vec<DuplicateHolder> {
        let confirmed = self.doubts.iter().filter(|doubt| doubt.is_confirmed);
        let mut holders: Vec<DuplicateHolder> =
            confirmed.flat_map(|doubt| doubt.holders.iter().copied()).collect();
        holders.sort_by_key(|holder| (holder.ip, holder.mac.0));
        holders
    }

    fn find(&mut self, target: LinkAddress) -> Option<&mut Doubt> {
        self.doubts.iter_mut().find(|doubt| doubt.target == target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkIndex;

    const WINDOW: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    fn target(n: u8) -> LinkAddress {
        LinkAddress { link: LinkIndex(7), ip: [192, 0, 2, n].into() }
    }

    fn holder(n: u8, mac: u8) -> DuplicateHolder {
        let link = "eth0".parse().unwrap();
        DuplicateHolder { ip: target(n).ip, link, mac: Mac([2, 0, 0, 0, 0, mac]) }
    }

    /// Doubts about address 1, which station 5 claims in the first check and after its repetition.
    fn confirmed() -> HolderDoubts {
        let mut doubts = HolderDoubts::new(WINDOW);
        doubts.record(target(1), holder(1, 5), at(0));
        assert_eq!(doubts.take_due(at(999)), []);
        assert_eq!(doubts.take_due(at(1_000)), [target(1)]);
        doubts.probed(target(1), at(1_000));
        doubts.record(target(1), holder(1, 5), at(1_001));
        doubts
    }

    #[test]
    fn a_claim_during_an_election_is_not_confirmed_and_ends_with_a_check_without_an_answer() {
        let mut doubts = HolderDoubts::new(WINDOW);
        doubts.record(target(1), holder(1, 5), at(0));
        doubts.record(target(1), holder(1, 5), at(900));
        assert_eq!(doubts.confirmed(), []);
        doubts.probed(target(1), at(1_000));
        assert_eq!(doubts.take_ended(at(3_999)), []);
        assert_eq!(doubts.due(), Some(at(4_000)));
        let ended = EndedDoubt { target: target(1), was_confirmed: false };
        assert_eq!(doubts.take_ended(at(4_000)), [ended]);
        assert!(doubts.is_empty() && doubts.due().is_none());
    }

    #[test]
    fn a_holder_that_answers_again_confirms_the_doubt_until_it_is_silent() {
        let mut doubts = confirmed();
        assert_eq!(doubts.confirmed(), [holder(1, 5)]);
        assert_eq!(doubts.take_ended(at(60_000)), [], "the address was not probed again");
        doubts.probed(target(1), at(60_000));
        assert_eq!(doubts.confirmed(), [holder(1, 5)], "the check has not ended");
        let ended = EndedDoubt { target: target(1), was_confirmed: true };
        assert_eq!(doubts.take_ended(at(63_000)), [ended]);
        assert_eq!(doubts.confirmed(), []);
    }

    #[test]
    fn the_waits_between_checks_grow_up_to_a_limit() {
        let mut doubts = confirmed();
        let mut waits = Vec::new();
        let mut now = at(1_001);
        for _ in 0..5 {
            let due = doubts.due().unwrap();
            waits.push(due.since(now).as_secs());
            doubts.probed(target(1), due);
            doubts.record(target(1), holder(1, 5), due);
            now = due;
        }
        assert_eq!(waits, [2, 4, 8, 10, 10]);
    }

    #[test]
    fn the_newest_check_decides_which_stations_are_holders() {
        let mut doubts = confirmed();
        doubts.record(target(1), holder(1, 6), at(1_500));
        assert_eq!(doubts.confirmed(), [holder(1, 5), holder(1, 6)]);
        doubts.probed(target(1), at(5_000));
        doubts.record(target(1), holder(1, 6), at(5_001));
        assert_eq!(doubts.confirmed(), [holder(1, 6)]);
    }

    #[test]
    fn a_check_that_was_interrupted_is_repeated() {
        let mut doubts = confirmed();
        doubts.probed(target(1), at(10_000));
        doubts.interrupted(at(11_000));
        assert_eq!(doubts.take_ended(at(60_000)), []);
        assert_eq!(doubts.due(), Some(at(15_000)));
    }

    #[test]
    fn an_address_that_could_not_be_probed_comes_before_one_that_was() {
        let mut doubts = HolderDoubts::new(WINDOW);
        for n in [1, 2] {
            doubts.record(target(n), holder(n, 5), at(0));
        }
        doubts.probed(target(1), at(1_000));
        doubts.record(target(1), holder(1, 5), at(1_001));
        doubts.put_off(target(2), at(1_000));
        assert_eq!(doubts.take_due(at(60_000)), [target(2), target(1)]);
        doubts.remove(target(2));
        assert_eq!(doubts.take_due(at(60_000)), [target(1)]);
    }
}
