// SPDX-License-Identifier: Apache-2.0
//! Conditions that follow from the adverts that the switch delivered to a node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{COMPARISON, Condition, DRAIN, GRACE, MARGIN, is_holding, required};
use crate::check::roles::Span;
use crate::check::run_record::RunRecord;
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

/// Evidence must last so long, beyond the time that the protocol allows.
const SETTLE: Micros = SECOND;

/// The time from the end of the evidence to the end of the finding.
const CLOSE: Micros = DRAIN + GRACE + COMPARISON + MARGIN;

/// The time from a change of the role to findings that depend on it.
const ROLE_DELAY: Micros = GRACE + COMPARISON + MARGIN;

/// Adverts of one host, without a longer pause, as the switch delivered them to a node.
struct DeliveredSeries<'a> {
    adverts: Vec<&'a WireAdvert>,
    /// The host advertises until this time: its last advert and its master-down interval, or its priority 0.
    end: Micros,
}

impl DeliveredSeries<'_> {
    fn start(&self) -> Micros {
        self.adverts.first().map_or(0, |advert| advert.at)
    }

    fn last(&self) -> Micros {
        self.adverts.last().map_or(0, |advert| advert.at)
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.adverts.iter().flat_map(|advert| advert.addresses.iter().copied()).collect()
    }
}

/// The time from the first evidence to the finding, for a host that advertises with `interval`: the evidence lasts
/// until the next advert after the settle time, which the next reading of the sockets finds.
fn delay(interval: Micros) -> Micros {
    2 * interval + SETTLE + DRAIN + COMPARISON + MARGIN
}

/// Adds the conditions of one instance on one node.
pub fn conditions(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    let own = addresses(&record.run.setup.instances[instance].addresses);
    let all = series(record, node, instance);
    for series in &all {
        if series.addresses().is_disjoint(&own) {
            into.extend(clash(record, series, instance));
        } else {
            second_primary(record, node, instance, series, into);
        }
    }
    no_primary(record, node, instance, into);
    if instance == 0 {
        differing(record, node, &all, into);
    }
}

fn addresses(cidrs: &[String]) -> BTreeSet<IpAddr> {
    cidrs.iter().filter_map(|cidr| cidr.split('/').next()?.parse().ok()).collect()
}

/// Divides the delivered adverts into series, by their source.
fn series(record: &RunRecord, node: usize, instance: usize) -> Vec<DeliveredSeries<'_>> {
    let vrid = record.run.setup.instances[instance].vrid;
    let mut all: Vec<DeliveredSeries<'_>> = Vec::new();
    for advert in record.delivered(node, vrid) {
        let same = all
            .iter_mut()
            .rev()
            .find(|series| series.adverts[0].source == advert.source && advert.at < series.end);
        let end = advert.at + record.down_interval(advert.priority.max(1));
        match same {
            Some(series) if advert.priority == 0 => series.end = advert.at,
            Some(series) => {
                series.adverts.push(advert);
                series.end = end;
            }
            None if advert.priority == 0 => {}
            None => all.push(DeliveredSeries { adverts: vec![advert], end }),
        }
    }
    all
}

fn clash(record: &RunRecord, series: &DeliveredSeries<'_>, instance: usize) -> Option<Condition> {
    let lasts = series.last() - series.start();
    (lasts >= SETTLE).then(|| Condition {
        name: "vrid-clash-on-link",
        instance,
        start: series.start(),
        end: series.end,
        deadline: required(series.start() + delay(record.interval), series.last()),
        close_by: Some(series.end + CLOSE),
    })
}

/// The node holds an address while another host advertises it.
fn second_primary(
    record: &RunRecord,
    node: usize,
    instance: usize,
    series: &DeliveredSeries<'_>,
    into: &mut Vec<Condition>,
) {
    let roles = &record.nodes[node].timeline.roles[instance];
    for (start, end) in joined(roles, is_holding) {
        let (first, last) = (start.max(series.start()), end.min(series.last()));
        if last - first < SETTLE {
            continue;
        }
        into.push(Condition {
            name: "two-primaries",
            instance,
            start: first,
            end: end.min(series.end),
            deadline: required((first + delay(record.interval)).max(start + ROLE_DELAY), last),
            close_by: Some(end.min(series.end) + CLOSE),
        });
    }
}

/// Periods in which the value has a property; neighbours are joined.
fn joined(spans: &[Span<&'static str>], has: impl Fn(&str) -> bool) -> Vec<(Micros, Micros)> {
    let mut periods: Vec<(Micros, Micros)> = Vec::new();
    for span in spans.iter().filter(|span| has(span.value)) {
        match periods.last_mut() {
            Some(last) if last.1 == span.start => last.1 = span.end,
            _ => periods.push((span.start, span.end)),
        }
    }
    periods
}

/// The node is backup, and no advert reaches it.
fn no_primary(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    let vrid = record.run.setup.instances[instance].vrid;
    let down = record.down_interval(record.priorities[node]);
    let facts = &record.nodes[node];
    for role in facts.timeline.roles[instance].iter().filter(|role| role.value == "backup") {
        let times = record.delivered(node, vrid).map(|advert| advert.at);
        let times = times.filter(|at| (role.start..role.end).contains(at)).chain([role.end]);
        let mut silent_since = role.start.max(record.run.start);
        for end in times {
            let start = silent_since + down;
            if start <= end {
                // After a change of the link, the absence of adverts is unknown for a while.
                let is_certain = !facts.timeline.link.iter().any(|link| {
                    (silent_since - down..end).contains(&link.start)
                        && link.start > record.run.start
                });
                let settled = start + SETTLE + DRAIN + COMPARISON + MARGIN;
                let deadline = required(settled.max(role.start + ROLE_DELAY), end);
                let deadline = deadline.filter(|_| is_certain);
                let close_by = Some(end + CLOSE);
                // Where keepalived runs and does not take over, it is in fault.
                let fault = Condition {
                    name: "keepalived-fault",
                    instance,
                    start,
                    end,
                    deadline: None,
                    close_by,
                };
                into.extend([Condition { name: "no-primary", deadline, ..fault.clone() }, fault]);
            }
            silent_since = end;
        }
    }
}

/// A node advertises other addresses for the first instance than this node has in its file.
fn differing(
    record: &RunRecord,
    node: usize,
    all: &[DeliveredSeries<'_>],
    into: &mut Vec<Condition>,
) {
    let configured = &record.nodes[node].configured;
    for series in all {
        let mut since: Option<Micros> = None;
        let mut last = series.start();
        for advert in &series.adverts {
            let own = configured.iter().rev().find(|(at, _)| *at <= advert.at);
            let own = own.map(|(_, cidrs)| addresses(cidrs)).unwrap_or_default();
            let theirs: BTreeSet<IpAddr> = advert.addresses.iter().copied().collect();
            let differs = theirs != own && !theirs.is_disjoint(&own);
            match (differs, since) {
                (true, None) => since = Some(advert.at),
                (false, Some(start)) => {
                    into.push(difference(record, series, start, last, advert.at));
                    since = None;
                }
                _ => {}
            }
            last = advert.at;
        }
        if let Some(start) = since {
            into.push(difference(record, series, start, last, series.end));
        }
    }
}

fn difference(
    record: &RunRecord,
    series: &DeliveredSeries<'_>,
    start: Micros,
    last: Micros,
    end: Micros,
) -> Condition {
    let lasting = start.max(series.start() + record.interval + SETTLE);
    Condition {
        name: "peer-configuration-differs",
        instance: 0,
        // The node reads its file before it receives the next advert.
        start: start - record.interval - SECOND,
        end,
        deadline: required(lasting + delay(record.interval), last),
        close_by: Some(end + CLOSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::run_record::examples::{delivered, record};

    fn found(record: &RunRecord, node: usize) -> Vec<(&'static str, bool)> {
        let mut all = Vec::new();
        conditions(record, node, 0, &mut all);
        all.iter().map(|condition| (condition.name, condition.deadline.is_some())).collect()
    }

    /// Adverts of a node to another one, once a second from second `first` to `last`.
    fn adverts(first: i64, last: i64, from: u8, to: u32) -> Vec<WireAdvert> {
        (first..=last).map(|second| delivered(second * SECOND, from, to, 100)).collect()
    }

    #[test]
    fn a_backup_with_adverts_has_no_condition() {
        let mut record = record();
        record.adverts = adverts(0, 200, 0, 1);
        assert_eq!(found(&record, 1), []);
    }

    #[test]
    fn a_backup_without_adverts_has_no_primary() {
        let mut record = record();
        record.adverts = [adverts(0, 100, 0, 1), adverts(130, 200, 0, 1)].concat();
        let fault = ("keepalived-fault", false);
        assert_eq!(found(&record, 1), [("no-primary", true), fault]);
        record.adverts = [adverts(0, 100, 0, 1), adverts(104, 200, 0, 1)].concat();
        assert_eq!(found(&record, 1), [("no-primary", false), fault], "shorter than the deadline");
    }

    #[test]
    fn a_primary_that_receives_adverts_is_not_alone() {
        let mut record = record();
        record.adverts = adverts(100, 120, 1, 0);
        assert_eq!(found(&record, 0), [("two-primaries", true)]);
        record.adverts = adverts(100, 102, 1, 0);
        assert_eq!(found(&record, 0), [("two-primaries", false)], "shorter than the deadline");
        record.adverts = adverts(100, 100, 1, 0);
        assert_eq!(found(&record, 0), [], "an election");
    }

    #[test]
    fn adverts_without_a_common_address_are_a_clash() {
        let mut record = record();
        record.adverts = adverts(100, 120, 2, 0);
        for advert in &mut record.adverts {
            advert.addresses = vec![std::net::Ipv4Addr::new(10, 9, 0, 177).into()];
        }
        assert_eq!(found(&record, 0), [("vrid-clash-on-link", true)]);
    }
}
