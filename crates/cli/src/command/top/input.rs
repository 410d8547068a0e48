// SPDX-License-Identifier: Apache-2.0
//! What each key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use vipwatch_api::TimelineItem;

use super::node_data::NodeData;
use super::screen::{ListPosition, ScreenState, View};

/// Maximum length of the filter in characters.
const MAX_FILTER: usize = 100;

/// What follows from a key, besides a change of the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    None,
    /// The rows must be selected and sorted again.
    Rearrange,
    /// The detail of the selected instance is wanted.
    OpenDetail,
    /// Everything is drawn again.
    Redraw,
    Suspend,
    Quit,
}

/// Takes a key.
pub(super) fn press(screen: &mut ScreenState, data: &NodeData, key: KeyEvent) -> KeyEffect {
    if key.kind == KeyEventKind::Release {
        return KeyEffect::None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => KeyEffect::Quit,
            KeyCode::Char('z') => KeyEffect::Suspend,
            KeyCode::Char('l') => KeyEffect::Redraw,
            _ => KeyEffect::None,
        };
    }
    if screen.is_typing {
        return type_filter(screen, key.code);
    }
    if let Some(rows) = movement(key.code, screen.page) {
        return step(screen, rows);
    }
    match key.code {
        KeyCode::Char('q') => return KeyEffect::Quit,
        KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return back(screen),
        KeyCode::Enter | KeyCode::Right => return open(screen, data),
        KeyCode::Char('?') => show(screen, View::Help),
        KeyCode::Char('h') => show(screen, View::History),
        KeyCode::Char('f') => show(screen, View::Findings),
        KeyCode::Char('c') => show(screen, View::Cluster),
        KeyCode::Char('o') => show(screen, View::Overview),
        KeyCode::Char('/') => {
            if screen.view != View::Cluster {
                show(screen, View::Overview);
            }
            screen.is_typing = true;
        }
        KeyCode::Char('r') => {
            screen.next_roles();
            return KeyEffect::Rearrange;
        }
        KeyCode::Char('s') => {
            screen.sort = screen.sort.next();
            return KeyEffect::Rearrange;
        }
        KeyCode::Char('S') => {
            screen.is_reversed = !screen.is_reversed;
            return KeyEffect::Rearrange;
        }
        _ => {}
    }
    KeyEffect::None
}

/// The number of rows by which a key moves; `None` for another key.
fn movement(code: KeyCode, page: usize) -> Option<isize> {
    let page = isize::try_from(page.saturating_sub(1).max(1)).unwrap_or(isize::MAX);
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -page,
        KeyCode::PageDown | KeyCode::Char(' ') => page,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

/// Moves in the list that is visible. The view keeps the position inside the list.
fn step(screen: &mut ScreenState, rows: isize) -> KeyEffect {
    match screen.view {
        View::Overview => {
            screen.position.step(rows);
            screen.choose();
        }
        View::History => screen.history.step(rows),
        View::Findings => screen.findings.step(rows),
        View::Cluster => screen.cluster.step(rows),
        View::Detail | View::Help => screen.scroll = screen.scroll.saturating_add_signed(rows),
    }
    KeyEffect::None
}

fn show(screen: &mut ScreenState, view: View) {
    if screen.view != view {
        screen.view = view;
        screen.scroll = 0;
        screen.history = ListPosition::default();
        screen.findings = ListPosition::default();
        screen.cluster = ListPosition::default();
    }
}

/// Goes back to the overview; there, removes the filter.
fn back(screen: &mut ScreenState) -> KeyEffect {
    if screen.view != View::Overview {
        show(screen, View::Overview);
        return KeyEffect::None;
    }
    screen.filter.clear();
    screen.roles.clear();
    KeyEffect::Rearrange
}

/// Opens the instance of the selected row.
fn open(screen: &mut ScreenState, data: &NodeData) -> KeyEffect {
    let id = match screen.view {
        View::Overview => screen.rows.get(screen.position.selected).cloned(),
        View::History => match data.history.get(screen.history.selected) {
            Some(TimelineItem::Transition(item)) => Some(item.id.clone()),
            Some(TimelineItem::Gap(_)) | None => None,
        },
        View::Findings => {
            data.findings.get(screen.findings.selected).and_then(|finding| finding.id.clone())
        }
        View::Cluster => own_instance(screen, data),
        View::Detail | View::Help => None,
    };
    match id {
        Some(id) => {
            screen.detail = Some(id);
            KeyEffect::OpenDetail
        }
        None => KeyEffect::None,
    }
}

/// The instance of the selected group on this node; `None` if it has none here.
fn own_instance(screen: &ScreenState, data: &NodeData) -> Option<String> {
    let cluster = data.cluster()?;
    let group = cluster.groups.get(*screen.groups.get(screen.cluster.selected)?)?;
    let node = cluster.basis.node.as_ref()?;
    let own = group.members.iter().find(|member| member.node == *node)?;
    Some(own.instance.clone())
}

fn type_filter(screen: &mut ScreenState, code: KeyCode) -> KeyEffect {
    match code {
        KeyCode::Enter => screen.is_typing = false,
        KeyCode::Esc => {
            screen.is_typing = false;
            screen.filter.clear();
        }
        KeyCode::Backspace => {
            screen.filter.pop();
        }
        KeyCode::Char(c) if screen.filter.chars().count() < MAX_FILTER => screen.filter.push(c),
        _ => return KeyEffect::None,
    }
    KeyEffect::Rearrange
}

#[cfg(test)]
mod tests;
