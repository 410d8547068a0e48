//! Follows many instances, in many namespaces, through one socket.
//!
//! ```text
//!   Heard (where) ──▶ places that changed ──▶ survey of each, once ──▶ standing of each instance
//!                                                                            │ another than before
//!                                                                            ▼
//!                                                                         Change
//! ```
//!
//! Level-triggered: an event is a reason to ask, and what is answered is the truth, whatever
//! was missed. An overrun is a reason to ask everywhere.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use vipwatch_core::standing::standing;
use vipwatch_core::{Fault, LinkName, NetnsName, Standing};
use vipwatch_linux::fleet::{Fleet, Heard, Where};
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns::{Netns, NetnsError, NetnsId};

use crate::discovery::Found;

/// What made somebody ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It was not known before.
    Start,
    /// An address came, went, or changed.
    Address,
    /// A link came, went, or changed.
    Link,
    /// A namespace came or went.
    Namespace,
    /// Events were lost.
    Resync,
}

impl Cause {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Address => "address",
            Self::Link => "link",
            Self::Namespace => "namespace",
            Self::Resync => "resync",
        }
    }
}

/// An instance stands elsewhere than before.
#[derive(Debug, Clone)]
pub struct Change {
    /// The instance.
    pub found: Found,
    /// Where it stood; `None` if that was not known.
    pub from: Option<Standing>,
    /// Where it stands.
    pub to: Standing,
    /// What told.
    pub cause: Cause,
}

/// One followed instance.
#[derive(Debug)]
struct Member {
    found: Found,
    watched: Vec<(LinkName, IpNet)>,
    standing: Option<Standing>,
}

/// A namespace that members are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Home {
    id: NetnsId,
    place: Where,
}

/// All that is followed.
#[derive(Debug)]
pub struct Roster {
    fleet: Fleet,
    members: Vec<Member>,
    /// Where the namespaces are that exist; `None` is the node's own.
    homes: BTreeMap<Option<NetnsName>, Home>,
}

impl Roster {
    /// Follows nobody yet. Takes root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fleet: Fleet::open()?, members: Vec::new(), homes: BTreeMap::new() })
    }

    /// Follows `instances` from now on, and no others. Those that were followed before and have
    /// not changed are not touched. Namespaces are found again by their names.
    pub fn follow(&mut self, instances: Vec<Found>) -> Vec<Change> {
        let mut before: Vec<Member> = std::mem::take(&mut self.members);
        for found in instances {
            let watched = found.watched();
            let known = before.iter().position(|member| {
                member.found.id == found.id
                    && member.found.netns == found.netns
                    && member.watched == watched
            });
            let standing = known.and_then(|at| before.swap_remove(at).standing);
            self.members.push(Member { found, watched, standing });
        }
        self.find_homes();
        self.survey_all(Cause::Namespace)
    }

    /// Looks which namespaces there are now.
    fn find_homes(&mut self) {
        let mut wanted: Vec<Option<NetnsName>> =
            self.members.iter().map(|member| member.found.netns.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let before = std::mem::take(&mut self.homes);
        for name in wanted {
            let id = match &name {
                Some(name) => NetnsId::of_name(name).ok().flatten(),
                None => NetnsId::current().ok(),
            };
            let Some(id) = id else { continue };
            // The same name may stand for another namespace than before.
            let home = match before.get(&name).filter(|home| home.id == id) {
                Some(home) => Some(*home),
                None => self.adopt(name.as_ref(), id),
            };
            if let Some(home) = home {
                self.homes.insert(name, home);
            }
        }
    }

    fn adopt(&mut self, name: Option<&NetnsName>, id: NetnsId) -> Option<Home> {
        let Some(name) = name else {
            return Some(Home { id, place: Where::Here });
        };
        // One that cannot be entered has no standing that could be known; it is tried again
        // whenever somebody looks for namespaces.
        let netns = Netns::open(name).ok()?;
        let place = self.fleet.adopt(&netns).ok()?;
        Some(Home { id: netns.id(), place })
    }

    /// Takes what was heard, and tells what has changed.
    pub fn read(&mut self) -> io::Result<Vec<Change>> {
        let mut heard = Vec::new();
        self.fleet.read(&mut heard)?;
        let mut asked: BTreeMap<Where, Cause> = BTreeMap::new();
        let mut is_lost = false;
        let mut is_gone = false;
        for heard in heard {
            let (place, cause) = match heard {
                Heard::Address(place) => (place, Cause::Address),
                Heard::Link(place) => (place, Cause::Link),
                Heard::Gone(place) => {
                    // Ids are used again: this may be the end of another namespace, which had
                    // the id before. The name decides.
                    let count = self.homes.len();
                    self.homes.retain(|_, home| home.place != place);
                    is_gone |= self.homes.len() < count;
                    continue;
                }
                Heard::Lost => {
                    is_lost = true;
                    continue;
                }
            };
            // An address says more than the link that came with it.
            let known = asked.entry(place).or_insert(cause);
            *known = (*known).min(cause);
        }
        if is_lost {
            self.find_homes();
            return Ok(self.survey_all(Cause::Resync));
        }
        if is_gone {
            let before: Vec<_> = self.homes.keys().cloned().collect();
            self.find_homes();
            for (_, home) in self.homes.iter().filter(|(name, _)| !before.contains(name)) {
                asked.entry(home.place).or_insert(Cause::Namespace);
            }
        }
        let mut changes = Vec::new();
        let places: Vec<(Option<NetnsName>, Cause)> = self
            .homes
            .iter()
            .filter_map(|(name, home)| Some((name.clone(), *asked.get(&home.place)?)))
            .collect();
        for (name, cause) in places {
            self.survey(name.as_ref(), cause, &mut changes);
        }
        self.find_lost(&mut changes);
        Ok(changes)
    }

    fn survey_all(&mut self, cause: Cause) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in self.homes.keys().cloned().collect::<Vec<_>>() {
            self.survey(name.as_ref(), cause, &mut changes);
        }
        self.find_lost(&mut changes);
        changes
    }

    /// Asks one namespace, and tells whose standing is another than before.
    fn survey(&mut self, name: Option<&NetnsName>, cause: Cause, changes: &mut Vec<Change>) {
        let key = name.cloned();
        let Some(home) = self.homes.get(&key) else { return };
        let survey = match self.fleet.survey(home.place) {
            Ok(survey) => Ok(survey),
            // It has gone while we were about to ask.
            Err(WatchError::Dump(error)) if error.raw_os_error() == Some(EINVAL) => {
                self.homes.remove(&key);
                return;
            }
            Err(error) => Err(Standing::Unknown(error.to_string())),
        };
        for member in self.members.iter_mut().filter(|member| member.found.netns == key) {
            let to = match &survey {
                Ok(survey) => standing(&member.watched, survey),
                Err(why) => why.clone(),
            };
            member.stand(to, cause, changes);
        }
    }

    /// Whoever has no home is at fault.
    fn find_lost(&mut self, changes: &mut Vec<Change>) {
        for member in &mut self.members {
            if !self.homes.contains_key(&member.found.netns) {
                let why = member.found.netns.as_ref().map(Netns::open);
                let to = match why {
                    // A name that stands for nothing is about to go, or to come.
                    None
                    | Some(Ok(_) | Err(NetnsError::Missing(_) | NetnsError::NotANamespace(_))) => {
                        Standing::Fault(Fault::NoNetns)
                    }
                    Some(Err(error)) => Standing::Unknown(error.to_string()),
                };
                member.stand(to, Cause::Namespace, changes);
            }
        }
    }

    /// Every instance, and where it stands.
    pub fn standings(&self) -> impl Iterator<Item = (&Found, Option<&Standing>)> {
        self.members.iter().map(|member| (&member.found, member.standing.as_ref()))
    }
}

/// What a dump of a namespace that has gone ends with.
const EINVAL: i32 = 22;

impl Member {
    fn stand(&mut self, to: Standing, cause: Cause, changes: &mut Vec<Change>) {
        if self.standing.as_ref() == Some(&to) {
            return;
        }
        let from = self.standing.replace(to.clone());
        let cause = match (&from, &to, cause) {
            (None, ..) => Cause::Start,
            // A link takes its addresses with it, and they are the first to be heard of.
            (_, Standing::Fault(fault), Cause::Address) if *fault != Fault::NoNetns => Cause::Link,
            _ => cause,
        };
        changes.push(Change { found: self.found.clone(), from, to, cause });
    }
}

impl AsFd for Roster {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fleet.as_fd()
    }
}
