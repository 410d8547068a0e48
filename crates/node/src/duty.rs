//! What an agent does when something holds: its duties, each for a party that wants to know.
//!
//! ```text
//!   Settled ─┬─ IPv6 parameters   lanes, in order for each router
//!            ├─ hooks             a queue for each, in order for each router
//!            ├─ webhooks          a queue for each, in order for each router
//!            └─ upstream          a thread, all routers at once
//!                  └──▶ Notes ──▶ ledger (on the disk), and whoever asks
//! ```
//!
//! Who was told of what is kept in the receiver's journal, so a party that was not told when the
//! process was killed is told by the next one: at least once, and the last state in any case. A party
//! that is new is told where everybody stands.

mod ipv6;
mod notes;
mod upstream;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_core::claim::Claim;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_linux::clock;
use vipwatch_receiver::{Audience, Settled};

pub use self::notes::{Notes, PartyView};
use self::upstream::Messenger;
use crate::config::{AgentConfig, Deliver, Hook, Upstream, Webhook};
use crate::lane::Lanes;
use crate::outlet::post::known_as;
use crate::outlet::queue::{Queue, TargetSettings as _};
use crate::outlet::{Letter, hook, webhook};
use crate::transition::{millis, time_text};

/// How long those who are being told may take when the receiver is stopped.
const FAREWELL: Duration = Duration::from_secs(5);

/// Routers that are set up at a time.
const AT_ONCE: usize = 4;

/// What holds, as it is told: `vipwatch.claim/1`.
#[derive(Debug)]
pub(crate) struct Settlement {
    settled: Settled,
    heard: Moment,
}

impl Letter for Settlement {
    fn instance(&self) -> &InstanceId {
        &self.settled.instance
    }

    fn seq(&self) -> i64 {
        self.settled.seq
    }

    fn heard(&self) -> Moment {
        self.heard
    }

    fn json(&self, node: &str) -> Value {
        let Settled { instance, claim, from, seq, at } = &self.settled;
        let at = millis(*at);
        json!({
            "schema": "vipwatch.claim/1", "node": node, "seq": seq, "at": at, "time": time_text(at),
            "id": instance.as_str(), "from": from.map(Claim::word), "to": claim.word(),
            "state": claim.translated(),
        })
    }
}

/// What one party is told with.
enum Means {
    Ipv6(PathBuf, Lanes<InstanceId, ipv6::Job>),
    Hook(Queue<Hook, hook::Job>),
    Webhook(Queue<Webhook, webhook::Job>),
    Upstream(Arc<Upstream>, Messenger),
}

/// What a configuration asks for.
enum Wanted<'c> {
    /// For routers whose configurations are below this.
    Ipv6(&'c Path),
    Hook(&'c Arc<Hook>),
    Webhook(&'c Arc<Webhook>),
    Upstream(&'c Arc<Upstream>),
}

/// Somebody who is told.
struct Party {
    name: Arc<str>,
    means: Means,
}

/// All duties, shared by the receiver, which has them done, and whoever configures them.
#[derive(Clone)]
pub(crate) struct Duties(Arc<Mutex<Hall>>);

/// Everybody who is told.
struct Hall {
    parties: Vec<Party>,
    /// Runs of one hook at a time.
    hooks_at_once: usize,
    notes: Arc<Notes>,
    node: Arc<str>,
}

impl Duties {
    /// None yet.
    pub(crate) fn new(hooks_at_once: usize, node: Arc<str>, notes: Arc<Notes>) -> Self {
        Self(Arc::new(Mutex::new(Hall { parties: Vec::new(), hooks_at_once, notes, node })))
    }

    /// Those that `config` asks for, and no others. Who is a party already goes on as it is; who is new is told
    /// of all that holds, by `settled`, which is asked while nobody else is told.
    pub(crate) fn configure(
        &self,
        config: &AgentConfig,
        settled: impl FnOnce() -> Vec<Settled>,
    ) -> io::Result<()> {
        match self.0.lock() {
            Ok(mut hall) => hall.configure(config, &settled()),
            Err(_) => Ok(()),
        }
    }

    fn hall(&self) -> Option<MutexGuard<'_, Hall>> {
        self.0.lock().ok()
    }
}

impl Hall {
    fn configure(&mut self, config: &AgentConfig, settled: &[Settled]) -> io::Result<()> {
        let wanted = wanted(config);
        let mut before = std::mem::take(&mut self.parties);
        let mut others = Vec::new();
        for (name, wanted) in wanted {
            let is_same = |party: &Party| party.name == name && wanted.is_served_by(&party.means);
            let same = before.iter().position(is_same);
            match same {
                Some(at) => self.parties.push(before.swap_remove(at)),
                None => others.push((name, wanted)),
            }
        }
        let names = self.parties.iter().map(|party| &party.name);
        let names: Vec<Arc<str>> =
            names.chain(others.iter().map(|(name, _)| name)).cloned().collect();
        let new = self.notes.enrol(&names);
        // ORDER: those who are no parties any more are gone before others are told in their place.
        drop(before);
        for (name, wanted) in others {
            let means = self.means(&wanted, &name)?;
            let party = Party { name, means };
            // One who was known by this name, and is told otherwise now, knows what he was told.
            let owed = self.notes.owed(&party.name);
            let is_owed =
                |one: &&Settled| new.contains(&party.name) || owed.contains_key(&one.instance);
            for one in settled.iter().filter(is_owed) {
                let settlement = Settlement { settled: one.clone(), heard: clock::now() };
                self.tell_one(&party, &Arc::new(settlement));
            }
            self.parties.push(party);
        }
        Ok(())
    }

    fn means(&self, wanted: &Wanted<'_>, name: &Arc<str>) -> io::Result<Means> {
        let (notes, party) = (Arc::clone(&self.notes), Arc::clone(name));
        Ok(match *wanted {
            Wanted::Ipv6(state_path) => {
                let confs = state_path.join("ha_confs");
                let work = move |job: &mut ipv6::Job| ipv6::work(job, &confs, &party, &notes);
                Means::Ipv6(state_path.to_owned(), Lanes::new("ipv6", AT_ONCE, work))
            }
            Wanted::Hook(hook) => {
                Means::Hook(hook::queue(hook, self.hooks_at_once, self.notes.sink(name)))
            }
            Wanted::Webhook(webhook) => {
                Means::Webhook(webhook::queue(webhook, self.notes.sink(name)))
            }
            Wanted::Upstream(upstream) => {
                let node = Arc::clone(&self.node);
                let messenger = Messenger::start(Arc::clone(upstream), node, party, notes)?;
                Means::Upstream(Arc::clone(upstream), messenger)
            }
        })
    }

    fn tell_one(&self, party: &Party, settlement: &Arc<Settlement>) {
        let Settled { instance, claim, seq, .. } = &settlement.settled;
        let wants = |on: &[&str]| on.contains(&claim.word());
        let (letter, node) = (Arc::clone(settlement), Arc::clone(&self.node));
        let (id, owe) = (instance.clone(), || self.notes.owe(&party.name, instance, *seq));
        let left_out = match &party.means {
            Means::Hook(queue) if !wants(&queue.target().on) => 0,
            Means::Webhook(queue) if !wants(&queue.target().on) => 0,
            Means::Hook(queue) => {
                owe();
                queue.put(id, hook::Job { letter, node })
            }
            Means::Webhook(queue) => {
                owe();
                queue.put(id, webhook::Job::new(letter, node))
            }
            Means::Ipv6(_, lanes) => {
                owe();
                lanes.put(id, ipv6::Job::new(letter), Deliver::Latest)
            }
            Means::Upstream(_, messenger) => {
                owe();
                messenger.put(id, *claim, *seq);
                0
            }
        };
        self.notes.superseded(&party.name, left_out);
    }

    /// Lets those finish who are being told, but not for longer than [`FAREWELL`].
    fn close(&self) {
        self.notes.close();
        let owed: usize = self.notes.parties().values().map(|party| party.owed.len()).sum();
        if owed > 0 {
            let seconds = FAREWELL.as_secs();
            tracing::info!(owed, seconds, "stopping; those who are being told may take so long");
        }
        let end = clock::now() + FAREWELL;
        for party in &self.parties {
            if let Means::Upstream(_, messenger) = &party.means {
                messenger.close();
            }
        }
        let mut left = 0;
        for party in &self.parties {
            let limit = end.since(clock::now());
            left += match &party.means {
                Means::Hook(queue) => queue.close(limit),
                Means::Ipv6(_, lanes) => lanes.close(limit),
                Means::Webhook(queue) => queue.close(limit),
                Means::Upstream(_, messenger) => messenger.wait(limit),
            };
        }
        if left > 0 {
            tracing::warn!(left, "stopped before everybody was told; the next one goes on");
        }
    }
}

/// Who is told by a configuration, for people.
pub fn parties(config: &AgentConfig) -> Vec<String> {
    wanted(config).into_iter().map(|(name, _)| name.to_string()).collect()
}

/// What a configuration asks for, each with a name of its own.
fn wanted(config: &AgentConfig) -> Vec<(Arc<str>, Wanted<'_>)> {
    let ipv6 = config
        .has_ipv6_params
        .then(|| ("ipv6 parameters".to_owned(), Wanted::Ipv6(config.state_path.as_path())));
    let hooks = config.hooks.iter();
    let hooks = hooks.map(|hook| (format!("hook {}", hook.name()), Wanted::Hook(hook)));
    let webhooks = config.webhooks.iter();
    let webhooks = webhooks.map(|one| (format!("webhook {}", one.name()), Wanted::Webhook(one)));
    let upstream = config.upstream.iter();
    let upstream = upstream
        .map(|one| (format!("upstream {}", known_as(&one.target.url)), Wanted::Upstream(one)));
    let mut all: Vec<(Arc<str>, Wanted<'_>)> = Vec::new();
    for (name, wanted) in ipv6.into_iter().chain(hooks).chain(webhooks).chain(upstream) {
        let again = (2..).map(|number| format!("{name} #{number}"));
        let mut names = std::iter::once(name.clone()).chain(again);
        let is_free = |name: &String| all.iter().all(|(other, _)| **other != **name);
        let name = names.find(is_free).unwrap_or(name);
        all.push((name.into(), wanted));
    }
    all
}

impl Wanted<'_> {
    /// Whether `means` serves this configuration; a hook or webhook takes other settings without losing
    /// notifications that wait.
    fn is_served_by(&self, means: &Means) -> bool {
        match (self, means) {
            (Self::Ipv6(wanted), Means::Ipv6(known, _)) => *wanted == known,
            (Self::Hook(wanted), Means::Hook(queue)) => queue.reconfigure(wanted),
            (Self::Webhook(wanted), Means::Webhook(queue)) => queue.reconfigure(wanted),
            (Self::Upstream(wanted), Means::Upstream(known, _)) => *wanted == known,
            _ => false,
        }
    }
}

impl Audience for Duties {
    fn tell(&mut self, settled: &Settled) {
        let Settled { instance, claim, seq, .. } = settled;
        let (claim, state) = (claim.word(), claim.translated());
        tracing::info!(%instance, claim, state, seq, "settled");
        let Some(hall) = self.hall() else { return };
        let settlement = Settlement { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &hall.parties {
            hall.tell_one(party, &settlement);
        }
    }

    fn recall(&mut self, settled: &Settled, told: &BTreeMap<String, i64>) {
        let Some(hall) = self.hall() else { return };
        let settlement = Settlement { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &hall.parties {
            if told.get(&*party.name).is_none_or(|seq| *seq < settled.seq) {
                hall.tell_one(party, &settlement);
            }
        }
    }

    fn forget(&mut self, instance: &InstanceId) {
        if let Some(hall) = self.hall() {
            hall.notes.forget(instance);
        }
    }

    fn close(&mut self) {
        if let Some(hall) = self.hall() {
            hall.close();
        }
    }
}
