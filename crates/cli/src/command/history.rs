// SPDX-License-Identifier: Apache-2.0
//! `vipwatch history`: prints recorded transitions, and the gaps between them.

mod flaps;

use std::collections::VecDeque;

use vipwatch_api::{
    CauseItem, EventId, GapItem, GapReason, HistoryDocument, HistoryFilter, RoleKind, TimelineItem,
    TransitionItem,
};

use self::flaps::FlapCounter;
use crate::args::{After, HistoryArgs};
use crate::failure::CommandError;
use crate::kernel::KernelSource;
use crate::output::{self, Page, Style, TextTable, latencies, push_line};
use crate::source::query_history;

pub(crate) fn run(options: &HistoryArgs) -> Result<(), CommandError> {
    let output = options.query.output();
    if options.flaps {
        let mut flaps = FlapCounter::default();
        let head = read(options, &mut |item| flaps.add(&item))?;
        output::show(output, &flaps.list(head.node));
        return Ok(());
    }
    let mut items = LimitedItems::new(options);
    let head = read(options, &mut |item| items.add(item))?;
    output::show(output, &HistoryDocument { items: items.items.into(), ..head });
    Ok(())
}

/// The entries that are printed: the newest transitions, or with `--after` the oldest, and the gaps between them.
struct LimitedItems {
    items: VecDeque<TimelineItem>,
    /// The number of transitions in `items`.
    transitions: u64,
    limit: u64,
    keeps_oldest: bool,
}

impl LimitedItems {
    fn new(options: &HistoryArgs) -> Self {
        let keeps_oldest = options.after.is_some();
        Self { items: VecDeque::new(), transitions: 0, limit: options.limit, keeps_oldest }
    }

    fn add(&mut self, item: TimelineItem) {
        let is_transition = matches!(item, TimelineItem::Transition(_));
        if self.keeps_oldest && self.transitions == self.limit {
            return;
        }
        self.items.push_back(item);
        self.transitions += u64::from(is_transition);
        while self.transitions > self.limit {
            let first = self.items.pop_front();
            self.transitions -= u64::from(matches!(first, Some(TimelineItem::Transition(_))));
        }
    }
}

/// Passes the selected entries to `take`, oldest first, and returns the document without entries.
fn read(
    options: &HistoryArgs,
    take: &mut dyn FnMut(TimelineItem),
) -> Result<HistoryDocument, CommandError> {
    let mut take = |item: TimelineItem| {
        if is_wanted(&item, options) {
            take(item);
        }
    };
    if let Some(directory) = &options.state_dir {
        let mut config = options.query.settings()?;
        config.state_dir.clone_from(directory);
        let kernel = KernelSource::new(config);
        let filter = filter(options, || Ok(kernel.epoch()));
        let head = filter.and_then(|filter| kernel.history(&filter, &mut take));
        return head.map_err(|problem| CommandError::from(&problem));
    }
    let take = std::cell::RefCell::new(take);
    query_history(
        &options.query,
        |node| {
            let mut stream = node.history(&filter(options, || Ok(node.status()?.epoch))?)?;
            for item in &mut stream {
                take.borrow_mut()(item?);
            }
            Ok(stream.head)
        },
        |kernel| kernel.history(&filter(options, || Ok(kernel.epoch()))?, &mut *take.borrow_mut()),
    )
}

/// The filter of the query. A sequence number needs the epoch of the history.
fn filter<E>(
    options: &HistoryArgs,
    epoch: impl FnOnce() -> Result<String, E>,
) -> Result<HistoryFilter, E> {
    let after = match &options.after {
        Some(After::Event(id)) => Some(id.clone()),
        Some(After::Seq(seq)) => Some(EventId { epoch: epoch()?, seq: *seq }),
        None => None,
    };
    // A limit before the other filters would leave out transitions that they select.
    let is_filtered = options.flaps || !options.role.is_empty() || options.netns.is_some();
    Ok(HistoryFilter {
        since: options.since,
        until: options.until,
        after,
        id: options.id.clone(),
        limit: (!is_filtered).then_some(options.limit),
    })
}

/// Whether the options that the node does not know select an entry. Gaps are always shown.
fn is_wanted(item: &TimelineItem, options: &HistoryArgs) -> bool {
    let TimelineItem::Transition(item) = item else { return true };
    let is_role = options.role.is_empty() || options.role.iter().any(|role| role.word() == item.to);
    let netns = item.netns.as_deref().unwrap_or_default();
    is_role && options.netns.as_ref().is_none_or(|wanted| wanted == netns)
}

impl Page for HistoryDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        let mut table = timeline_table(style);
        let is_transition = |item: &TimelineItem| matches!(item, TimelineItem::Transition(_));
        if !self.items.iter().any(is_transition) {
            push_line(&mut page, "no transition is recorded");
            for item in &self.items {
                if let TimelineItem::Gap(gap) = item {
                    push_line(&mut page, &gap_text(gap, style));
                }
            }
            return page;
        }
        for item in &self.items {
            match item {
                TimelineItem::Transition(item) => table.transition(item, style),
                TimelineItem::Gap(gap) => table.line(&gap_text(gap, style)),
            }
        }
        table.text(style)
    }

    fn names(&self) -> Vec<String> {
        let transitions = self.items.iter().filter_map(|item| match item {
            TimelineItem::Transition(item) => {
                Some(EventId { epoch: self.epoch.clone(), seq: item.seq })
            }
            TimelineItem::Gap(_) => None,
        });
        transitions.map(|id| id.to_string()).collect()
    }
}

/// An empty table for transitions.
pub(super) fn timeline_table(style: &Style) -> TextTable {
    if style.is_wide {
        let head = ["SEQ", "TIME", "ID", "NETNS", "FROM", "TO", "CAUSE", "REASON", "DELIVERED IN"];
        return TextTable::new(&head);
    }
    TextTable::new(&["TIME", "ID", "CHANGE", "CAUSE"]).shrink(&[("CAUSE", 12)])
}

impl TextTable {
    /// Adds a transition to a table of [`timeline_table`].
    pub(super) fn transition(&mut self, item: &TransitionItem, style: &Style) {
        let some = |text: &Option<String>| text.clone().unwrap_or_default();
        if style.is_wide {
            self.row(vec![
                item.seq.to_string(),
                style.precise_time(item.at),
                item.id.clone(),
                some(&item.netns),
                item.from.map_or("", RoleKind::word).to_owned(),
                item.to.clone(),
                item.cause.text_or(&item.trigger).to_owned(),
                some(&item.reason),
                latencies(&item.latencies),
            ]);
            return;
        }
        self.row(vec![
            style.time(item.at),
            item.id.clone(),
            change_text(item.from.map(RoleKind::word), &item.to),
            // The sentence would not fit: `-o wide` and `show` have it.
            match &item.reason {
                Some(reason) => format!("{}: {reason}", item.cause.word_or(&item.trigger)),
                None => item.cause.word_or(&item.trigger).to_owned(),
            },
        ]);
    }
}

/// The cause as a sentence; before the reason of a role, its word is enough: `link-lost: eth0 has no carrier`. `show` says
/// why a cause is not known.
pub(super) fn cause_and_reason(cause: &CauseItem, trigger: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{}: {reason}", cause.word_or(trigger)),
        None if cause.cause.as_deref() == Some("unknown") => format!("{trigger}, cause not known"),
        None => cause.text_or(trigger).to_owned(),
    }
}

/// `FROM → TO`, or `TO` if the role before is not known.
pub(super) fn change_text(from: Option<&str>, to: &str) -> String {
    from.map_or_else(|| to.to_owned(), |from| format!("{from} → {to}"))
}

/// A gap in one line.
pub(super) fn gap_text(gap: &GapItem, style: &Style) -> String {
    let reason = match gap.reason {
        GapReason::Stopped => "no node ran",
        GapReason::Killed => "the node was killed",
        GapReason::NotWritten => "not written",
        GapReason::Retention => "deleted by retention",
    };
    let missing = gap.count.map(|count| format!(", {count} missing")).unwrap_or_default();
    let (from, until) = (style.time(gap.from), style.time(gap.until));
    format!("-- gap {from} to {until}: {reason}{missing}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_table_shows_gaps_where_they_happened_and_fits_100_columns() {
        let text = samples::history().text(&Style::of_tests());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_wide_table_has_sequence_numbers_and_latencies() {
        insta::assert_snapshot!(
            samples::history().text(&Style { is_wide: true, ..Style::of_tests() })
        );
    }

    #[test]
    fn gaps_without_transitions_are_shown_below_a_message() {
        let mut history = samples::history();
        history.items.retain(|item| matches!(item, TimelineItem::Gap(_)));
        let text = history.text(&Style::of_tests());
        assert!(text.starts_with("no transition is recorded\n-- gap 2026"), "{text}");
        history.items.clear();
        assert_eq!(history.text(&Style::of_tests()), "no transition is recorded\n");
    }

    #[test]
    fn names_are_event_ids() {
        assert_eq!(samples::history().names(), ["5f3a9c21-41", "5f3a9c21-42", "5f3a9c21-44"]);
    }
}
