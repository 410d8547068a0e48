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

/// All that is followed.
#[derive(Debug)]
pub struct Roster {
    fleet: Fleet,
    members: Vec<Member>,
    /// Where the namespaces are that exist; `None` is the node's own.
    homes: BTreeMap<Option<NetnsName>, Where>,
    /// Those that cannot be had, and why.
    homeless: BTreeMap<Option<NetnsName>, Standing>,
}

impl Roster {
    /// Follows nobody yet. Takes root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            fleet: Fleet::open()?,
            members: Vec::new(),
            homes: BTreeMap::new(),
            homeless: BTreeMap::new(),
        })
    }

    /// Follows `instances` from now on, and no others. Those that were followed before and have
    /// not changed are not touched. Namespaces are found again by their names.
    pub fn follow(&mut self, instances: Vec<Found>) -> Vec<Change> {
        let before = std::mem::take(&mut self.members);
        let mut before: BTreeMap<String, Member> =
            before.into_iter().map(|member| (member.found.id.to_string(), member)).collect();
        let mut places = Vec::new();
        for found in instances {
            let watched = found.watched();
            let known = before.remove(found.id.as_str());
            let known =
                known.filter(|known| known.found.netns == found.netns && known.watched == watched);
            if known.is_none() {
                places.push(found.netns.clone());
            }
            let standing = known.and_then(|known| known.standing);
            self.members.push(Member { found, watched, standing });
        }
        places.extend(self.find_homes());
        places.sort_unstable();
        places.dedup();
        let mut changes = Vec::new();
        for name in places {
            self.survey(name.as_ref(), Cause::Namespace, &mut changes);
        }
        self.blame_homeless(&mut changes);
        changes
    }

    /// Looks which namespaces there are now; tells which are new.
    ///
    /// Neither name nor identity prove that a namespace is the one we knew: both are used
    /// again. That the kernel speaks of it by the same id does.
    fn find_homes(&mut self) -> Vec<Option<NetnsName>> {
        let mut wanted: Vec<Option<NetnsName>> =
            self.members.iter().map(|member| member.found.netns.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let before = std::mem::take(&mut self.homes);
        self.homeless.clear();
        let mut new = Vec::new();
        for name in wanted {
            let known = before.get(&name).copied();
            match self.find_home(name.as_ref(), known) {
                Ok(place) => {
                    if known != Some(place) {
                        new.push(name.clone());
                    }
                    self.homes.insert(name, place);
                }
                Err(why) => {
                    self.homeless.insert(name, why);
                }
            }
        }
        new
    }

    fn find_home(
        &mut self,
        name: Option<&NetnsName>,
        known: Option<Where>,
    ) -> Result<Where, Standing> {
        let Some(name) = name else { return Ok(Where::Here) };
        let netns = Netns::open(name).map_err(|error| match error {
            // A name that stands for nothing is about to go, or to come.
            NetnsError::Missing(_) | NetnsError::NotANamespace(_) => {
                Standing::Fault(Fault::NoNetns)
            }
            error => Standing::Unknown(error.to_string()),
        })?;
        match known {
            Some(place) if self.fleet.is_still(&netns, place) => Ok(place),
            _ => self.fleet.adopt(&netns).map_err(|error| Standing::Unknown(error.to_string())),
        }
    }

    /// Whether a namespace has a name and is not there yet: it is worth looking again soon.
    pub fn is_waiting(&self) -> bool {
        let has_name = |name: &Option<NetnsName>| {
            name.as_ref().is_some_and(|name| NetnsId::of_name(name).is_ok_and(|id| id.is_some()))
        };
        self.homeless.keys().any(has_name)
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
                // Ids are used again: this may be the end of another namespace, which had the
                // id before. So it is looked for.
                Heard::Gone(place) => {
                    is_gone |= self.homes.values().any(|home| *home == place);
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
        let mut changes = Vec::new();
        if is_gone || is_lost {
            for name in self.find_homes() {
                let place = self.homes.get(&name).copied();
                asked.extend(place.map(|place| (place, Cause::Namespace)));
            }
        }
        let is_asked = |place: &Where| match asked.get(place) {
            Some(cause) => Some(*cause),
            None => is_lost.then_some(Cause::Resync),
        };
        let cause_of = |cause| if is_lost { Cause::Resync } else { cause };
        let places: Vec<(Option<NetnsName>, Cause)> = self
            .homes
            .iter()
            .filter_map(|(name, place)| Some((name.clone(), cause_of(is_asked(place)?))))
            .collect();
        for (name, cause) in places {
            self.survey(name.as_ref(), cause, &mut changes);
        }
        if is_gone || is_lost {
            self.blame_homeless(&mut changes);
        }
        Ok(changes)
    }

    /// Asks one namespace, and tells whose standing is another than before.
    fn survey(&mut self, name: Option<&NetnsName>, cause: Cause, changes: &mut Vec<Change>) {
        let Some(place) = self.homes.get(&name.cloned()).copied() else { return };
        let survey = match self.fleet.survey(place) {
            Ok(survey) => Ok(survey),
            // It has gone while we were about to ask, and the kernel will say so.
            Err(WatchError::Dump(error)) if error.raw_os_error() == Some(EINVAL) => return,
            Err(error) => Err(Standing::Unknown(error.to_string())),
        };
        for member in self.members.iter_mut().filter(|member| member.found.netns.as_ref() == name) {
            let to = match &survey {
                Ok(survey) => standing(&member.watched, survey),
                Err(why) => why.clone(),
            };
            member.stand(to, cause, changes);
        }
    }

    /// Says of everybody without a namespace that there is none.
    fn blame_homeless(&mut self, changes: &mut Vec<Change>) {
        for member in &mut self.members {
            if let Some(why) = self.homeless.get(&member.found.netns) {
                member.stand(why.clone(), Cause::Namespace, changes);
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
