//! Posts a letter to an address on the web, until it is taken.
//!
//! An answer of the 2xx kind takes it. Of the 4xx kind, most mean that it will never be taken, and
//! it is given up; everything else is tried again, later and later.

use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::{Backoff, Jitter};
use vipwatch_history::Stage;

use super::outlet::{DeliveryReport, Notification, ReportCallback};
use super::post::Client;
use super::queue::{TargetQueue, TargetSettings as _};
use crate::config::Webhook;
use crate::notify::keyed_queue::Next;

/// Between two attempts, at first and at most.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Posts to one webhook at a time.
const POSTS_AT_ONCE: usize = 4;

/// One letter for one address.
#[derive(Debug)]
pub(crate) struct WebhookJob {
    letter: Arc<dyn Notification>,
    node: Arc<str>,
    backoff: Backoff,
    dice: Jitter,
    /// The failure that was said last.
    failing: Option<String>,
}

impl WebhookJob {
    pub(crate) fn new(letter: Arc<dyn Notification>, node: Arc<str>) -> Self {
        let dice = Jitter::new(u64::try_from(letter.seq()).unwrap_or(0));
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { letter, node, backoff, dice, failing: None }
    }
}

/// The queue of one webhook.
pub(crate) fn queue(
    webhook: &Arc<Webhook>,
    sink: ReportCallback,
) -> TargetQueue<Webhook, WebhookJob> {
    let client = Client::default();
    // Certificates are read now, so that they are known if the file disappears. A failure is reported when
    // something is delivered.
    let _ = client.prepare(&webhook.target);
    TargetQueue::new("webhook", webhook, POSTS_AT_ONCE, |settings| {
        move |job: &mut WebhookJob| work(&settings.current(), &client, job, &sink)
    })
}

/// Posts once, and reports what is news.
fn work(webhook: &Webhook, client: &Client, job: &mut WebhookJob, sink: &ReportCallback) -> Next {
    let outcome = client.send(&webhook.target, &job.letter.json(&job.node).to_string());
    let is_final = outcome.as_ref().err().is_none_or(|error| !error.may_pass());
    let outcome = outcome.map_err(|error| vipwatch_core::ErrorChain(&error).to_string());
    let is_news = outcome.as_ref().err() != job.failing.as_ref() || is_final;
    job.failing = outcome.as_ref().err().cloned();
    if is_news {
        let mut report = DeliveryReport::new(&*job.letter, Stage::Webhook, &webhook.name());
        (report.outcome, report.is_final) = (outcome, is_final);
        sink(report);
    }
    if is_final { Next::Done } else { Next::Again(job.backoff.next_wait(&mut job.dice)) }
}
