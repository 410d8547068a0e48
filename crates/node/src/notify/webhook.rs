//! Posts a notification to an HTTP address until the server accepts it.
//!
//! A status 2xx accepts it. After most 4xx statuses the notification is given up, because the server would never accept
//! it. After every other status or error it is posted again, with growing pauses.

use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::{Backoff, Jitter};
use vipwatch_history::Stage;

use super::outlet::{DeliveryReport, Notification, ReportCallback};
use super::post::Client;
use super::queue::{TargetQueue, TargetSettings as _};
use crate::config::Webhook;
use crate::notify::keyed_queue::Next;

/// The pause after the first failed attempt.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between two attempts.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Maximum number of requests to one webhook at a time.
const POSTS_AT_ONCE: usize = 4;

/// One notification for one webhook.
#[derive(Debug)]
pub(crate) struct WebhookJob {
    notification: Arc<dyn Notification>,
    node: Arc<str>,
    backoff: Backoff,
    jitter: Jitter,
    /// The error that was reported last; the same error is not reported again. `None` before the first failure.
    failing: Option<String>,
}

impl WebhookJob {
    pub(crate) fn new(notification: Arc<dyn Notification>, node: Arc<str>) -> Self {
        let jitter = Jitter::new(u64::try_from(notification.seq()).unwrap_or(0));
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { notification, node, backoff, jitter, failing: None }
    }
}

/// The queue of one webhook.
pub(crate) fn queue(
    webhook: &Arc<Webhook>,
    callback: ReportCallback,
) -> TargetQueue<Webhook, WebhookJob> {
    let client = Client::default();
    // Certificates are read now, so that they are known if the file disappears. A failure is reported when
    // something is delivered.
    let _ = client.prepare(&webhook.target);
    TargetQueue::new("webhook", webhook, POSTS_AT_ONCE, |settings| {
        move |job: &mut WebhookJob| work(&settings.current(), &client, job, &callback)
    })
}

/// Posts once, and reports the result unless it is the same error as before.
fn work(
    webhook: &Webhook,
    client: &Client,
    job: &mut WebhookJob,
    callback: &ReportCallback,
) -> Next {
    let outcome = client.send(&webhook.target, &job.notification.json(&job.node).to_string());
    let is_final = outcome.as_ref().err().is_none_or(|error| !error.may_pass());
    let outcome = outcome.map_err(|error| vipwatch_core::ErrorChain(&error).to_string());
    let is_news = outcome.as_ref().err() != job.failing.as_ref() || is_final;
    job.failing = outcome.as_ref().err().cloned();
    if is_news {
        let mut report = DeliveryReport::new(&*job.notification, Stage::Webhook, &webhook.name());
        report.outcome = outcome;
        report.is_final = is_final;
        callback(report);
    }
    if is_final { Next::Done } else { Next::RetryAfter(job.backoff.next_wait(&mut job.jitter)) }
}
