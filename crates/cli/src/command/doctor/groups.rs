// SPDX-License-Identifier: Apache-2.0
//! Groups findings for people: one entry for all instances with the same finding.

use vipwatch_api::{FindingItem, Timestamp};

use crate::output::{Style, count, push_line};

/// Maximum number of ids beside one text, and of texts in one group. `-o wide` has no limit.
const MAX_SHOWN: usize = 3;

/// Findings with the same severity, name, hint and end of silence.
struct FindingGroup<'a> {
    /// The first finding, which has all that is common.
    first: &'a FindingItem,
    /// The texts, each with its findings.
    texts: Vec<TextGroup<'a>>,
}

/// Findings of one group with the same text.
struct TextGroup<'a> {
    text: &'a str,
    /// One for each finding; empty for findings about the node.
    ids: Vec<&'a str>,
    /// When each of the findings began, if that is known.
    since: Vec<Timestamp>,
}

/// Adds the findings to a page, in the order of their groups' first members.
pub(super) fn push_groups(page: &mut String, findings: &[&FindingItem], style: &Style) {
    for group in group(findings) {
        group.push(page, style);
    }
}

fn group<'a>(findings: &[&'a FindingItem]) -> Vec<FindingGroup<'a>> {
    let mut groups: Vec<FindingGroup> = Vec::new();
    for finding in findings {
        let group = match groups.iter_mut().find(|group| group.takes(finding)) {
            Some(group) => group,
            None => groups.push_mut(FindingGroup { first: finding, texts: Vec::new() }),
        };
        group.add(finding);
    }
    groups
}

impl<'a> FindingGroup<'a> {
    fn takes(&self, finding: &FindingItem) -> bool {
        let key = |finding: &'_ FindingItem| {
            (finding.severity, finding.id.is_some(), finding.silenced_until)
        };
        let first = self.first;
        key(first) == key(finding) && first.name == finding.name && first.hint == finding.hint
    }

    fn add(&mut self, finding: &'a FindingItem) {
        let text = match self.texts.iter_mut().find(|text| text.text == finding.text) {
            Some(text) => text,
            None => self.texts.push_mut(TextGroup::new(&finding.text)),
        };
        text.ids.extend(finding.id.as_deref());
        text.since.extend(finding.since);
    }

    /// Adds the head, the texts and the hint.
    fn push(&self, page: &mut String, style: &Style) {
        let ids = self.ids();
        let subject = match ids.as_slice() {
            [] => "node".to_owned(),
            [id] => (*id).to_owned(),
            several => count(several.len(), "instance"),
        };
        let FindingItem { name, hint, silenced_until, .. } = self.first;
        let until = silenced_until.map(|until| format!(", silenced until {}", style.time(until)));
        let (age, silenced) = (self.age(style), until.unwrap_or_default());
        push_line(page, &format!("  {subject}: {name}{age}{silenced}"));
        let max = if style.is_wide { usize::MAX } else { MAX_SHOWN };
        for text in self.texts.iter().take(max) {
            // A head with the id of the only instance says it all.
            let ids = if ids.len() > 1 { text.id_list(max) } else { String::new() };
            push_line(page, &format!("    {ids}{}", text.text));
        }
        if let Some(more @ 1..) = self.texts.len().checked_sub(max) {
            let more = count(more, "other text");
            push_line(page, &format!("    and {more}; `-o wide` has all"));
        }
        push_line(page, &format!("    hint: {hint}"));
    }

    /// The ids without repetition: an instance may have a finding twice, with two texts.
    fn ids(&self) -> Vec<&'a str> {
        let mut ids: Vec<&str> =
            self.texts.iter().flat_map(|text| text.ids.iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The age of the oldest finding, and that of the youngest if it is another one.
    fn age(&self, style: &Style) -> String {
        let since = || self.texts.iter().flat_map(|text| text.since.iter().copied());
        let (Some(oldest), Some(youngest)) = (since().min(), since().max()) else {
            return String::new();
        };
        match (style.age(youngest), style.age(oldest)) {
            (young, old) if young == old => format!(", for {old}"),
            (young, old) => format!(", for {young} to {old}"),
        }
    }
}

impl<'a> TextGroup<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, ids: Vec::new(), since: Vec::new() }
    }

    /// The beginning of the line with the text: at most `max` ids, and the number of the others.
    fn id_list(&self, max: usize) -> String {
        let shown = self.ids.iter().take(max).copied().collect::<Vec<_>>().join(", ");
        match self.ids.len().checked_sub(max) {
            Some(more @ 1..) => format!("{shown} and {more} more: "),
            Some(0) | None => format!("{shown}: "),
        }
    }
}
