// SPDX-License-Identifier: Apache-2.0
//! Conditions that follow from the adverts that the switch delivered to a node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::super::NodeInstance;
use super::{COMPARISON, Condition, DELAY, DRAIN, GRACE, MARGIN, is_holding};
use crate::check::periods::{Span, push};
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

/// Evidence must last so long, beyond the time that the protocol allows.
const SETTLE: Micros = SECOND;
/// The time from settled evidence to the finding.
const READ: Micros = SETTLE + DRAIN + COMPARISON + MARGIN;
/// Time from the evidence's end to the finding's end.
const CLOSE: Micros = DRAIN + DELAY;

/// Adverts of one host, without a longer pause, as the switch delivered them to a node.
struct DeliveredSeries<'a> {
    /// Not empty.
    adverts: Vec<&'a WireAdvert>,
    start: Micros,
    /// The time of the last advert.
    last: Micros,
    /// The host advertises until this time: its last advert and its master-down interval, or its priority 0.
    end: Micros,
}

fn addresses(cidrs: &[String]) -> BTreeSet<IpAddr> {
    cidrs.iter().filter_map(|cidr| cidr.split('/').next()?.parse().ok()).collect()
}

impl<'a> NodeInstance<'a> {
    pub(super) fn advert_conditions(self) -> Vec<Condition> {
        let own = addresses(&self.facts().addresses);
        let (all, mut conditions) = (self.series(), Vec::new());
        for series in &all {
            let theirs = series.adverts.iter().flat_map(|advert| &advert.addresses);
            if theirs.copied().collect::<BTreeSet<IpAddr>>().is_disjoint(&own) {
                // A unicast instance shares its VRID with others: adverts without its addresses, of a host that is no peer
                // of its, are for another instance.
                if !self.facts().is_unicast {
                    conditions.extend(self.clash(series));
                }
            } else {
                conditions.extend(self.second_primary(series));
            }
        }
        conditions.extend(self.no_primary());
        if self.instance == 0 {
            conditions.extend(all.iter().flat_map(|series| self.differing(series)));
        }
        conditions
    }

    /// The time from the first evidence to the finding: the evidence lasts until the next advert after the settle time,
    /// which the next reading of the sockets finds.
    fn delay(self) -> Micros {
        2 * self.run.interval() + READ
    }

    /// Divides the delivered adverts into series, by their source.
    fn series(self) -> Vec<DeliveredSeries<'a>> {
        let mut all: Vec<DeliveredSeries<'_>> = Vec::new();
        for advert in self.delivered() {
            let is_same = |series: &&mut DeliveredSeries<'_>| {
                series.adverts[0].source == advert.source && advert.at < series.end
            };
            let (at, end) = (advert.at, advert.at + self.run.down_interval(advert.priority.max(1)));
            match all.iter_mut().rev().find(is_same) {
                Some(series) if advert.priority == 0 => series.end = at,
                Some(series) => {
                    series.adverts.push(advert);
                    series.last = at;
                    series.end = end;
                }
                None if advert.priority == 0 => {}
                None => {
                    all.push(DeliveredSeries { adverts: vec![advert], start: at, last: at, end });
                }
            }
        }
        all
    }

    fn clash(self, series: &DeliveredSeries<'_>) -> Option<Condition> {
        let DeliveredSeries { start, last, end, .. } = *series;
        let condition = self.condition("vrid-clash-on-link", start..end, CLOSE);
        (last - start >= SETTLE).then(|| condition.due(start + self.delay() + GRACE, last))
    }

    /// The node holds an address while another host advertises it.
    fn second_primary(self, series: &DeliveredSeries<'_>) -> Vec<Condition> {
        let mut held: Vec<Span<bool>> = Vec::new();
        for role in self.roles() {
            push(&mut held, role.start, role.end, is_holding(role.value));
            held.iter_mut().last().into_iter().for_each(|last| last.end = role.end);
        }
        let condition = |held: &Span<bool>| {
            let (start, last) = (held.start.max(series.start), held.end.min(series.last));
            let deadline = (start + self.delay()).max(held.start + DELAY);
            let end = held.end.min(series.end);
            let condition = self.condition("two-primaries", start..end, CLOSE);
            (held.value && last - start >= SETTLE).then(|| condition.due(deadline, last))
        };
        held.iter().filter_map(condition).collect()
    }

    /// The node is backup, and no advert reaches it.
    fn no_primary(self) -> Vec<Condition> {
        let down = self.run.down_interval(self.run.setup.priorities[self.node]);
        let instance = &self.run.setup.instances[self.instance];
        // A switch may pass IPv6 multicast only to hosts that report their groups: the node does not.
        let is_ipv6 = instance.addresses.iter().any(|address| address.contains(':'));
        let is_snooped = is_ipv6 && !instance.is_unicast;
        let unreported = if is_snooped {
            [self.gone(), self.run.fault_periods(self.node, &["lose-child"])].concat()
        } else {
            Vec::new()
        };
        // A primary that receives weaker adverts is silent. For a unicast instance, those of another one end no silence.
        let own = addresses(&instance.addresses);
        let is_own = |advert: &&WireAdvert| {
            !instance.is_unicast || advert.addresses.iter().any(|ip| own.contains(ip))
        };
        let mut conditions = Vec::new();
        for role in self.roles().iter().filter(|role| role.value == "backup") {
            let times = self.delivered().filter(is_own).map(|advert| advert.at);
            let times = times.filter(|at| (role.start..role.end).contains(at)).chain([role.end]);
            let mut silent_since = role.start.max(self.run.start);
            for end in times {
                let start = silent_since + down;
                // After a change of the link, the absence of adverts is unknown for a while.
                let mut links = self.record().timeline.link.iter().map(|link| link.start);
                let is_reported =
                    !unreported.iter().any(|gone| gone.from < end && gone.to > silent_since);
                let is_certain = is_reported
                    && !links
                        .any(|at| (silent_since - down..end).contains(&at) && at > self.run.start);
                silent_since = end;
                if start > end {
                    continue;
                }
                let deadline = (start + READ).max(role.start + DELAY);
                let condition = |name| self.condition(name, start..end, CLOSE);
                let no_primary = condition("no-primary");
                let due = no_primary.clone().due(deadline, end);
                conditions.push(if is_certain { due } else { no_primary });
                // Where keepalived runs and does not take over, it is in fault.
                conditions.push(condition("keepalived-fault"));
            }
        }
        conditions
    }

    /// A node advertises other addresses for the first instance than this node has in its file.
    fn differing(self, series: &DeliveredSeries<'_>) -> Vec<Condition> {
        let differs = |advert: &WireAdvert| {
            let own = self.configured(advert.at).map(|own| addresses(self.advertised(own)));
            let own = own.unwrap_or_default();
            let theirs: BTreeSet<IpAddr> = advert.addresses.iter().copied().collect();
            theirs != own && !theirs.is_disjoint(&own)
        };
        let mut spans: Vec<Span<bool>> = Vec::new();
        for advert in &series.adverts {
            push(&mut spans, advert.at, series.end, differs(advert));
        }
        let condition = |span: &Span<bool>| {
            // The node reads its file before it receives the next advert.
            let start = span.start - self.run.interval() - SECOND;
            let lasting = span.start.max(series.start + self.run.interval() + SETTLE);
            let mut adverts = series.adverts.iter().rev().map(|advert| advert.at);
            let last = adverts.find(|at| *at < span.end).unwrap_or(span.start);
            let condition = self.condition("peer-configuration-differs", start..span.end, CLOSE);
            condition.due(lasting + self.delay() + GRACE, last)
        };
        spans.iter().filter(|span| span.value).map(condition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::RecordedRun;
    use crate::check::recording::examples::{delivered, run};

    fn found(run: &RecordedRun, node: usize) -> Vec<(&'static str, bool)> {
        let all = NodeInstance { run, node, instance: 0 }.advert_conditions();
        all.iter().map(|condition| (condition.name, condition.deadline.is_some())).collect()
    }

    /// Adverts of a node to another one, once a second from second `first` to `last`.
    fn adverts(first: i64, last: i64, from: u8, to: u32) -> Vec<WireAdvert> {
        (first..=last).map(|second| delivered(second * SECOND, from, to, 100)).collect()
    }

    #[test]
    fn a_backup_with_adverts_has_no_condition() {
        let mut run = run();
        run.adverts = adverts(0, 200, 0, 1);
        assert_eq!(found(&run, 1), []);
    }

    #[test]
    fn a_backup_without_adverts_has_no_primary() {
        let mut run = run();
        run.adverts = [adverts(0, 100, 0, 1), adverts(130, 200, 0, 1)].concat();
        let fault = ("keepalived-fault", false);
        assert_eq!(found(&run, 1), [("no-primary", true), fault]);
        run.adverts = [adverts(0, 100, 0, 1), adverts(104, 200, 0, 1)].concat();
        assert_eq!(found(&run, 1), [("no-primary", false), fault], "shorter than the deadline");
    }

    #[test]
    fn a_primary_that_receives_adverts_is_not_alone() {
        let mut run = run();
        run.adverts = adverts(100, 120, 1, 0);
        assert_eq!(found(&run, 0), [("two-primaries", true)]);
        run.adverts = adverts(100, 102, 1, 0);
        assert_eq!(found(&run, 0), [("two-primaries", false)], "shorter than the deadline");
        run.adverts = adverts(100, 100, 1, 0);
        assert_eq!(found(&run, 0), [], "an election");
    }

    #[test]
    fn adverts_without_a_common_address_are_a_clash() {
        let mut run = run();
        run.adverts = adverts(100, 120, 2, 0);
        for advert in &mut run.adverts {
            advert.addresses = vec![std::net::Ipv4Addr::new(10, 9, 0, 177).into()];
        }
        assert_eq!(found(&run, 0), [("vrid-clash-on-link", true)]);
        run.setup.instances[0].is_unicast = true;
        assert_eq!(found(&run, 0), [], "an instance with other peers");
    }
}
