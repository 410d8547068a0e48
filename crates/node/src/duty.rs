//! What an agent does when something holds: its duties, each for a party that wants to know.
//!
//! ```text
//!   Settled ─┬─ IPv6 parameters   lanes, in order for each router
//!            ├─ hooks             lanes, in order for each router
//!            ├─ webhooks          lanes, in order for each router and address
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
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_core::claim::Claim;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_linux::clock;
use vipwatch_receiver::{Audience, Settled};

pub use self::notes::{Notes, PartyView};
use self::upstream::Messenger;
use crate::config::{AgentConfig, Deliver, Hook, Webhook};
use crate::lane::Lanes;
use crate::outlet::post::public_part;
use crate::outlet::webhook::Poster;
use crate::outlet::{Letter, Sink, hook, webhook};
use crate::transition::{millis, time_text};

/// How long those who are being told may take when the receiver is stopped.
const FAREWELL: Duration = Duration::from_secs(5);

/// Routers that are set up at a time, and posts to one address.
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

/// A program's letter, and where it is noted what has come of it.
type HookJob = (Sink, hook::Job);

/// What one party is told with.
enum Means {
    Ipv6(Lanes<InstanceId, ipv6::Job>),
    Hook(Arc<Hook>),
    Webhook(Arc<Webhook>, Lanes<InstanceId, webhook::Job>),
    Upstream(Messenger),
}

/// Somebody who is told.
struct Party {
    name: Arc<str>,
    means: Means,
}

/// All duties.
pub(crate) struct Duties {
    parties: Vec<Party>,
    /// Shared by all programs, so that those of one router run in order.
    hooks: Lanes<InstanceId, HookJob>,
    notes: Arc<Notes>,
    node: Arc<str>,
}

impl Duties {
    /// Those that `config` asks for.
    pub(crate) fn new(
        config: &AgentConfig,
        hooks_at_once: usize,
        node: Arc<str>,
        notes: Arc<Notes>,
    ) -> io::Result<Self> {
        let mut parties = Vec::new();
        if config.has_ipv6_params {
            let name = notes.enrol("ipv6 parameters");
            let (theirs, party) = (Arc::clone(&notes), Arc::clone(&name));
            let confs = config.state_path.join("ha_confs");
            let work = move |job: &mut ipv6::Job| ipv6::work(job, &confs, &party, &theirs);
            parties.push(Party { name, means: Means::Ipv6(Lanes::new("ipv6", AT_ONCE, work)) });
        }
        for hook in &config.hooks {
            let name = notes.enrol(&format!("hook {}", hook.program.join(" ")));
            parties.push(Party { name, means: Means::Hook(Arc::clone(hook)) });
        }
        for webhook in &config.webhooks {
            let name = notes.enrol(&format!("webhook {}", public_part(&webhook.target.url)));
            let poster = Poster::new(Arc::clone(webhook), notes.sink(&name));
            let lanes = Lanes::new("webhook", AT_ONCE, move |job: &mut _| poster.work(job));
            parties.push(Party { name, means: Means::Webhook(Arc::clone(webhook), lanes) });
        }
        if let Some(upstream) = &config.upstream {
            let name = notes.enrol(&format!("upstream {}", public_part(&upstream.target.url)));
            let (party, theirs) = (Arc::clone(&name), Arc::clone(&notes));
            let messenger =
                Messenger::start(Arc::clone(upstream), Arc::clone(&node), party, theirs)?;
            parties.push(Party { name, means: Means::Upstream(messenger) });
        }
        let hooks =
            Lanes::new("hook", hooks_at_once, |(sink, job): &mut HookJob| hook::work(job, sink));
        Ok(Self { parties, hooks, notes, node })
    }

    fn tell_one(&self, party: &Party, settlement: &Arc<Settlement>) {
        let Settled { instance, claim, seq, .. } = &settlement.settled;
        let wants = |on: &[&str]| on.contains(&claim.word());
        let (letter, node) = (Arc::clone(settlement), Arc::clone(&self.node));
        let id = instance.clone();
        match &party.means {
            Means::Hook(hook) if !wants(&hook.on) => {}
            Means::Webhook(webhook, _) if !wants(&webhook.on) => {}
            Means::Hook(hook) => {
                self.notes.owe(&party.name, instance, *seq);
                let job = hook::Job { hook: Arc::clone(hook), letter, node };
                let is_same = |other: &HookJob| Arc::ptr_eq(&other.1.hook, hook);
                let job = (self.notes.sink(&party.name), job);
                self.hooks.put(id, job, hook.deliver, is_same);
            }
            Means::Webhook(webhook, lanes) => {
                self.notes.owe(&party.name, instance, *seq);
                lanes.put(id, webhook::Job::new(letter, node), webhook.deliver, |_| true);
            }
            Means::Ipv6(lanes) => {
                self.notes.owe(&party.name, instance, *seq);
                lanes.put(id, ipv6::Job::new(letter), Deliver::Latest, |_| true);
            }
            Means::Upstream(messenger) => {
                self.notes.owe(&party.name, instance, *seq);
                messenger.put(id, *claim, *seq);
            }
        }
    }
}

impl Audience for Duties {
    fn tell(&mut self, settled: &Settled) {
        let Settled { instance, claim, seq, .. } = settled;
        let (claim, state) = (claim.word(), claim.translated());
        tracing::info!(%instance, claim, state, seq, "settled");
        let settlement = Settlement { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &self.parties {
            self.tell_one(party, &settlement);
        }
    }

    fn recall(&mut self, settled: &Settled, told: &BTreeMap<String, i64>) {
        let settlement = Settlement { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &self.parties {
            if told.get(&*party.name).is_none_or(|seq| *seq < settled.seq) {
                self.tell_one(party, &settlement);
            }
        }
    }

    fn close(&mut self) {
        let end = clock::now() + FAREWELL;
        let mut left = self.hooks.close(FAREWELL);
        for party in &self.parties {
            let limit = end.since(clock::now());
            left += match &party.means {
                Means::Hook(_) => 0,
                Means::Ipv6(lanes) => lanes.close(limit),
                Means::Webhook(_, lanes) => lanes.close(limit),
                Means::Upstream(messenger) => messenger.close(limit),
            };
        }
        if left > 0 {
            tracing::warn!(left, "stopped before everybody was told; the next one goes on");
        }
    }
}
