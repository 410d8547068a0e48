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

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_core::announce::Survey;
use vipwatch_core::standing::standing;
use vipwatch_core::{Fault, InstanceId, LinkName, NetnsName, Standing};
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
    /// Its configuration has changed.
    Config,
    /// Somebody looked, and we had been wrong: a defect, of ours or of the kernel's.
    Audit,
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
            Self::Config => "config",
            Self::Audit => "audit",
        }
    }
}

/// An instance stands elsewhere than before.
#[derive(Debug, Clone)]
pub struct Change {
    /// The instance.
    pub found: Arc<Found>,
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
    found: Arc<Found>,
    watched: Vec<(LinkName, IpNet)>,
    standing: Option<Standing>,
}

/// A namespace, and who lives there.
#[derive(Debug)]
struct Home {
    /// Where it is, or why it cannot be had.
    place: Result<Where, Standing>,
    members: Vec<Member>,
}

/// What a namespace is called; `None` is the node's own.
type Name = Option<NetnsName>;

/// Which namespaces to look for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those that are not known yet: no name has come or gone.
    Unknown,
    /// All: a name may stand for another namespace than before.
    All,
}

/// All that is followed.
#[derive(Debug)]
pub struct Roster {
    fleet: Fleet,
    homes: BTreeMap<Name, Home>,
    /// Which homes are where; a namespace may have several names.
    by_place: BTreeMap<Where, Vec<Name>>,
    /// Where the audit goes on.
    audited: Option<Name>,
    /// How often events were lost.
    overruns: u64,
    /// Those who changed all the time while they were asked: they are asked again.
    restless: BTreeSet<Name>,
}

impl Roster {
    /// Follows nobody yet. Takes root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`; without the
    /// former it listens in each namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self::over(Fleet::open()?))
    }

    /// Follows nobody yet, over this fleet.
    pub fn over(fleet: Fleet) -> Self {
        let (homes, by_place) = (BTreeMap::new(), BTreeMap::new());
        Self { fleet, homes, by_place, audited: None, overruns: 0, restless: BTreeSet::new() }
    }

    /// What listens.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// How often events were lost, and everything was asked for again.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// How many namespaces are listened to.
    pub fn namespaces(&self) -> usize {
        self.homes.values().filter(|home| home.place.is_ok()).count()
    }

    /// Follows `instances` from now on, and no others. Those that were followed before and have
    /// not changed are not touched.
    pub fn follow(&mut self, instances: Vec<Arc<Found>>, reach: Reach) -> Vec<Change> {
        let before = std::mem::take(&mut self.homes);
        let mut places = BTreeMap::new();
        let mut known: BTreeMap<InstanceId, Member> = BTreeMap::new();
        for (name, home) in before {
            places.insert(name, home.place);
            known.extend(home.members.into_iter().map(|member| (member.found.id.clone(), member)));
        }
        let mut asked: BTreeMap<Name, Cause> = BTreeMap::new();
        for found in instances {
            let name = found.netns.clone();
            let home = self.homes.entry(name.clone()).or_insert_with(|| {
                let nowhere = Err(Standing::Fault(Fault::NoNetns));
                // Most are home to one.
                let members = Vec::with_capacity(1);
                Home { place: places.remove(&name).unwrap_or(nowhere), members }
            });
            let known = known.remove(&found.id);
            let member = match known {
                Some(known) if Arc::ptr_eq(&known.found, &found) => known,
                known => {
                    let watched = found.watched();
                    let is_same = |known: &Member| {
                        known.found.netns == found.netns && known.watched == watched
                    };
                    if !known.as_ref().is_some_and(is_same) {
                        asked.insert(name, Cause::Config);
                    }
                    Member { found, watched, standing: known.and_then(|known| known.standing) }
                }
            };
            home.members.push(member);
        }
        for name in self.find_homes(reach) {
            asked.entry(name).or_insert(Cause::Namespace);
        }
        let mut changes = Vec::new();
        for (name, cause) in asked {
            self.survey(&name, cause, &mut changes);
        }
        self.blame_homeless(&mut changes);
        changes
    }

    /// Looks which namespaces there are now; tells which are new.
    ///
    /// Neither name nor identity prove that a namespace is the one we knew: both are used
    /// again. That the kernel speaks of it by the same id does.
    fn find_homes(&mut self, reach: Reach) -> Vec<Name> {
        let mut new = Vec::new();
        for (name, home) in &mut self.homes {
            if reach == Reach::Unknown && home.place.is_ok() {
                continue;
            }
            let known = home.place.as_ref().ok().copied();
            home.place = find_home(&mut self.fleet, name.as_ref(), known);
            if home.place.as_ref().is_ok_and(|place| known != Some(*place)) {
                new.push(name.clone());
            }
        }
        self.by_place.clear();
        for (name, home) in &self.homes {
            if let Ok(place) = home.place {
                let names = self.by_place.entry(place).or_insert_with(|| Vec::with_capacity(1));
                names.push(name.clone());
            }
        }
        let places = &self.by_place;
        self.fleet.keep_only(|place| places.contains_key(&place));
        new
    }

    /// Whether somebody is to be asked again, although nothing may be heard of him.
    pub fn is_restless(&self) -> bool {
        !self.restless.is_empty()
    }

    /// Whether a namespace has a name and is not there yet: it is worth looking again soon.
    pub fn is_waiting(&self) -> bool {
        let has_name = |name: &NetnsName| NetnsId::of_name(name).is_ok_and(|id| id.is_some());
        let mut homeless = self.homes.iter().filter(|(_, home)| home.place.is_err());
        homeless.any(|(name, _)| name.as_ref().is_some_and(has_name))
    }

    /// Takes what was heard, and tells what has changed.
    pub fn read(&mut self) -> io::Result<Vec<Change>> {
        let mut heard = Vec::new();
        self.fleet.read(&mut heard)?;
        let restless = std::mem::take(&mut self.restless);
        let mut asked: BTreeMap<Name, Cause> =
            restless.into_iter().map(|name| (name, Cause::Address)).collect();
        let mut is_lost = false;
        let mut is_gone = false;
        for heard in heard {
            let (place, cause) = match heard {
                Heard::Address(place) => (place, Cause::Address),
                Heard::Link(place) => (place, Cause::Link),
                // Ids are used again: this may be the end of another namespace, which had the
                // id before. So it is looked for.
                Heard::Gone(place) => {
                    is_gone |= self.by_place.contains_key(&place);
                    continue;
                }
                Heard::Lost => {
                    is_lost = true;
                    continue;
                }
            };
            for name in self.by_place.get(&place).into_iter().flatten() {
                // An address says more than the link that came with it.
                let known = asked.entry(name.clone()).or_insert(cause);
                *known = (*known).min(cause);
            }
        }
        if is_gone || is_lost {
            for name in self.find_homes(Reach::All) {
                asked.insert(name, Cause::Namespace);
            }
        }
        if is_lost {
            self.overruns += 1;
            asked = self.homes.keys().map(|name| (name.clone(), Cause::Resync)).collect();
        }
        let mut changes = Vec::new();
        for (name, cause) in asked {
            self.survey(&name, cause, &mut changes);
        }
        if is_gone || is_lost {
            self.blame_homeless(&mut changes);
        }
        Ok(changes)
    }

    /// Looks into the next `count` namespaces, shows what is there to `examine`, and tells of
    /// whom we had been wrong.
    pub fn audit(&mut self, count: usize, mut examine: impl FnMut(&Found, &Survey)) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in self.next_audited(count) {
            let Some(place) = self.homes.get(&name).and_then(|home| home.place.clone().ok()) else {
                continue;
            };
            let Ok(mut survey) = self.fleet.survey(place) else { continue };
            let Some(home) = self.homes.get_mut(&name) else { continue };
            let is_wrong = |member: &Member, survey: &Survey| {
                member.standing.as_ref() != Some(&standing(&member.watched, survey))
            };
            // One disagreement is repeated: a dump can be ahead of an event that is not queued yet.
            if home.members.iter().any(|member| is_wrong(member, &survey)) {
                match self.fleet.survey(place) {
                    Ok(again) => survey = again,
                    Err(_) => continue,
                }
            }
            // ORDER: asked after the survey. What is queued by now explains a difference, and
            // will be read; then there is nothing to say about us.
            let is_behind = self.fleet.is_ready();
            for member in &mut home.members {
                examine(&member.found, &survey);
                if !is_behind {
                    member.stand(standing(&member.watched, &survey), Cause::Audit, &mut changes);
                }
            }
        }
        changes
    }

    /// The `count` namespaces behind the one that was last looked into, round and round.
    fn next_audited(&mut self, count: usize) -> Vec<Name> {
        let behind = self.audited.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.homes.range((behind, Bound::Unbounded)).map(|(name, _)| name.clone());
        let names: Vec<Name> = names.take(count).collect();
        let is_end = names.len() < count;
        self.audited = names.last().filter(|_| !is_end).cloned();
        names
    }

    /// Asks one namespace, and tells whose standing is another than before.
    fn survey(&mut self, name: &Name, cause: Cause, changes: &mut Vec<Change>) {
        let Some(home) = self.homes.get_mut(name) else { return };
        let Ok(place) = home.place else { return };
        let survey = match self.fleet.survey(place) {
            Ok(survey) => Ok(survey),
            // It has gone while we were about to ask, and the kernel will say so.
            Err(WatchError::Dump(error)) if error.raw_os_error() == Some(EINVAL) => return,
            // What was known of it stands until it can be asked in peace.
            Err(WatchError::Endless) => {
                self.restless.insert(name.clone());
                return;
            }
            Err(error) => Err(Standing::Unknown(error.to_string())),
        };
        for member in &mut home.members {
            let to = match &survey {
                Ok(survey) => standing(&member.watched, survey),
                Err(why) => why.clone(),
            };
            member.stand(to, cause, changes);
        }
    }

    /// Says of everybody without a namespace that there is none.
    fn blame_homeless(&mut self, changes: &mut Vec<Change>) {
        for home in self.homes.values_mut() {
            let Err(why) = &home.place else { continue };
            for member in &mut home.members {
                member.stand(why.clone(), Cause::Namespace, changes);
            }
        }
    }
}

fn find_home(
    fleet: &mut Fleet,
    name: Option<&NetnsName>,
    known: Option<Where>,
) -> Result<Where, Standing> {
    let Some(name) = name else { return Ok(Where::Here) };
    let netns = Netns::open(name).map_err(|error| match error {
        // A name that stands for nothing is about to go, or to come.
        NetnsError::Missing(_) | NetnsError::NotANamespace(_) => Standing::Fault(Fault::NoNetns),
        error => Standing::Unknown(error.to_string()),
    })?;
    match known {
        Some(place) if fleet.is_still(&netns, place) => Ok(place),
        _ => fleet.adopt(&netns).map_err(|error| Standing::Unknown(error.to_string())),
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
        changes.push(Change { found: Arc::clone(&self.found), from, to, cause });
    }
}

impl AsFd for Roster {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fleet.as_fd()
    }
}
