// SPDX-License-Identifier: Apache-2.0
//! The roles of an instance over time as a bar of letters, and the stages of its last transition as a stopwatch.

use vipwatch_api::{InstanceItem, RoleKind, TransitionItem};
use vipwatch_history::Stage;

use super::paint::{StyledLine, Theme, role_letter};
use crate::output::{Style, escape_untrusted, latency};

/// Width of the names of the stages, and of their times.
const STAGE_WIDTH: usize = 10;
const TIME_WIDTH: usize = 10;

/// The roles from the first of these transitions until now, oldest first, in a bar of `width` columns. The length of a
/// part follows from its time; each part has at least one column.
pub(super) fn bar(
    transitions: &[TransitionItem],
    clock: &Style,
    theme: Theme,
    width: usize,
) -> Option<[StyledLine; 2]> {
    // With more parts than columns, the newest are shown.
    let transitions = &transitions[transitions.len().saturating_sub(width)..];
    let first = transitions.first()?;
    let ends = transitions.iter().skip(1).map(|next| next.at).chain([clock.now]);
    let parts: Vec<(RoleKind, u64)> = transitions
        .iter()
        .zip(ends)
        .map(|(item, end)| {
            let millis = end.duration_since(item.at).as_millis();
            let role = RoleKind::from_word(&item.to).unwrap_or(RoleKind::Unknown);
            (role, u64::try_from(millis).unwrap_or(0))
        })
        .collect();
    let total: u64 = parts.iter().map(|(_, millis)| millis).sum::<u64>().max(1);
    let spare = u64::try_from(width - parts.len()).unwrap_or(0);
    let mut line = StyledLine::default();
    let (mut passed, mut drawn) = (0, 0);
    for (role, millis) in parts {
        // Rounding the ends and not the lengths makes the bar exactly as wide as wanted.
        passed += millis;
        let end = u64::try_from(u128::from(spare) * u128::from(passed) / u128::from(total));
        let end = end.unwrap_or(spare);
        let columns = usize::try_from(end - drawn).unwrap_or(0) + 1;
        drawn = end;
        line.add(&role_letter(role).to_string().repeat(columns), theme.role(role));
    }
    let begin = clock.time(first.at);
    let gap = width.saturating_sub(begin.len());
    let scale = StyledLine::plain(&format!("{begin}{:>gap$}", "now")).styled(theme.quiet());
    Some([line, scale])
}

/// The stages of the last transition: when each delivery ended, counted from the kernel's event.
pub(super) fn stopwatch(instance: &InstanceItem, theme: Theme, width: usize) -> Vec<StyledLine> {
    let slowest = instance.latencies.values().copied().max().unwrap_or(0).max(1);
    let width = width.saturating_sub(STAGE_WIDTH + TIME_WIDTH + 4).min(60);
    let mut lines = vec![stage_line("kernel", &latency(0), "", theme)];
    for stage in Stage::ALL {
        let word = stage.word();
        let is_configured = instance.stages.iter().any(|configured| configured == word);
        match instance.latencies.get(word) {
            Some(micros) => {
                let micros = (*micros).max(0);
                let columns = i64::try_from(width).unwrap_or(0) * micros / slowest;
                let bar = "█".repeat(usize::try_from(columns).unwrap_or(0).max(1));
                lines.push(stage_line(word, &latency(micros), &bar, theme));
            }
            None if is_configured => {
                let failed = instance.failures.iter().find(|failure| failure.stage == word);
                let error = failed.map(|failure| format!("{}: {}", failure.target, failure.error));
                let state = if error.is_some() { "failed" } else { "pending" };
                let error = escape_untrusted(&error.unwrap_or_default());
                lines.push(stage_line(word, state, &error, theme));
            }
            None => {}
        }
    }
    lines
}

fn stage_line(name: &str, time: &str, rest: &str, theme: Theme) -> StyledLine {
    let mut line = StyledLine::plain(&format!("  {name:<STAGE_WIDTH$}"));
    line.add(&format!("{time:>TIME_WIDTH$}  "), theme.strong());
    line.add(rest, theme.good());
    line
}
