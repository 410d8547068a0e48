// SPDX-License-Identifier: Apache-2.0
//! The statements `use_vmac` and `use_ipvlan`.

use super::{Drafts, Family};
use crate::LinkName;
use crate::keepalived::blocks::Statement;
use crate::keepalived::keywords::{V2_2_8, V2_3_0};
use crate::keepalived::numbers::{cidr, mac};
use crate::keepalived::problem::{FilePosition, Message, Problem, Problems};
use crate::keepalived::version::Version;

/// An older `use_vmac` has a name and a MAC address at most.
const MAX_OLD_WORDS: usize = 2;

/// A word that may be a name, and whether `name` before it says that it is nothing else.
struct LinkWord<'a> {
    word: &'a str,
    is_name: bool,
}

impl Drafts {
    /// `use_vmac [[name] NAME] [MAC] [group GROUP] [netlink_notify_msg]`, in any order.
    pub(super) fn set_vmac(&mut self, statement: Statement<'_>) {
        let limit = if self.version < V2_3_0 { MAX_OLD_WORDS } else { usize::MAX };
        let Some(draft) = self.instances.last_mut() else { return };
        draft.uses_vmac = true;
        for LinkWord { word, is_name } in link_words(statement.words, self.version, limit) {
            if !is_name && word.contains(':') {
                draft.vmac_mac = draft.vmac_mac.take().or_else(|| mac(word));
            } else if draft.vmac_name.is_none() {
                let name = vmac_name(word, statement.position, &mut self.problems);
                draft.vmac_name = name.filter(|name| self.vmac_names.insert(*name));
            }
        }
    }

    /// `use_ipvlan [bridge|private|vepa] [ADDRESS] [[name] NAME] [group GROUP]`, in any order.
    pub(super) fn set_ipvlan(&mut self, statement: Statement<'_>) {
        let Some(draft) = self.instances.last_mut() else { return };
        if std::mem::replace(&mut draft.uses_ipvlan, true) {
            return;
        }
        for LinkWord { word, is_name } in link_words(statement.words, self.version, usize::MAX) {
            if !is_name && matches!(word, "bridge" | "private" | "vepa") {
                continue;
            }
            if let Some(address) = cidr(word).filter(|_| !is_name) {
                draft.family.get_or_insert(Family::of(address));
            } else if draft.vmac_name.is_none() {
                let name = vmac_name(word, statement.position, &mut self.problems);
                draft.vmac_name = name.filter(|name| self.vmac_names.insert(*name));
            }
        }
    }
}

/// The words after the keyword, without options that decide neither name nor address.
fn link_words(words: &[String], version: Version, limit: usize) -> Vec<LinkWord<'_>> {
    let mut words = words.iter().skip(1).take(limit).map(String::as_str);
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "netlink_notify_msg" if version >= V2_2_8 => {}
            "group" if version >= V2_3_0 => drop(words.next()),
            "name" if version >= V2_3_0 => {
                found.extend(words.next().map(|word| LinkWord { word, is_name: true }));
            }
            _ => found.push(LinkWord { word, is_name: false }),
        }
    }
    found
}

/// The configured name of a VMAC or ipvlan link; a name that keepalived ignores becomes a problem.
fn vmac_name(word: &str, position: FilePosition, problems: &mut Problems) -> Option<LinkName> {
    let ignored = |error| {
        let message = Message::quoting(
            "keepalived ignores the name of a VMAC: no link can have it",
            format!("keepalived ignores the name {word:?} of a VMAC: {error}"),
        );
        problems.push(Problem::note(position, message));
    };
    word.parse().map_err(ignored).ok()
}
