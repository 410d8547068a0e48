// SPDX-License-Identifier: Apache-2.0
//! Which notifications a worker takes next, and how long a batch waits.

use std::sync::Arc;

use vipwatch_core::Moment;
use vipwatch_core::notification::DeliveryStep;

use super::state::{Job, TakenEvent, TargetQueueState};
use crate::notify::attempt::OutgoingEvent;
use crate::notify::notification::Subject;

impl TargetQueueState {
    /// The next job.
    pub(super) fn take_job(&mut self, now: Moment) -> Job {
        if self.is_removed {
            return Job::Wait(None);
        }
        let due: Vec<Subject> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for subject in due {
            self.place(&subject, now);
        }
        let max = match self.batch_wait(now) {
            Some(at) => {
                return Job::Wait([Some(at), self.next_timer()].into_iter().flatten().min());
            }
            None => self.settings.batch().map_or(1, |batch| batch.max),
        };
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(subject) = self.ready.pop_front()
        {
            match self.take(&subject, now) {
                Some(Job::Attempt(events)) => taken.extend(events),
                Some(job) if taken.is_empty() => return self.after_take(job),
                Some(_) => {
                    // The backlog is read after this batch.
                    if let Some(tracked) = self.subjects.get_mut(&subject) {
                        tracked.is_reading = false;
                        tracked.is_ready = true;
                    }
                    self.ready.push_front(subject);
                    break;
                }
                None => {}
            }
        }
        if taken.is_empty() {
            self.ready_since = None;
            return Job::Wait(self.next_timer());
        }
        self.running += taken.len();
        self.after_take(Job::Attempt(taken))
    }

    fn after_take(&mut self, job: Job) -> Job {
        if self.ready.is_empty() {
            self.ready_since = None;
        }
        job
    }

    /// How long a batch must wait: for the interval between two, or for more notifications.
    fn batch_wait(&self, now: Moment) -> Option<Moment> {
        let batch = self.settings.batch()?;
        let ready_since = self.ready_since?;
        let is_full = self.ready.len() >= batch.max || self.is_closing;
        let collected_at = if is_full { ready_since } else { ready_since + batch.wait };
        let next_at = if self.is_closing { now } else { self.next_batch_at };
        Some(collected_at.max(next_at)).filter(|at| *at > now)
    }

    /// Begins an attempt for a subject that was ready; `None` if it is not ready any more.
    fn take(&mut self, subject: &Subject, now: Moment) -> Option<Job> {
        let is_silenced = self.is_silenced(subject);
        let policy = self.policy;
        let tracked = self.subjects.get_mut(subject)?;
        tracked.is_ready = false;
        match tracked.delivery.next_step(now, is_silenced, &policy) {
            DeliveryStep::Attempt => {
                let missed = tracked.delivery.missed();
                let notification = Arc::clone(&tracked.delivery.begin()?.content);
                let event = OutgoingEvent { notification, missed };
                Some(Job::Attempt(vec![TakenEvent { subject: subject.clone(), event }]))
            }
            DeliveryStep::ReadBacklog(range) => {
                let Subject::Instance(instance) = subject else { return None };
                tracked.is_reading = true;
                let (subject, instance) = (subject.clone(), instance.clone());
                Some(Job::ReadBacklog { subject, instance, range })
            }
            _ => {
                self.place(subject, now);
                None
            }
        }
    }
}
