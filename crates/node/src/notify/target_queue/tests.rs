// SPDX-License-Identifier: Apache-2.0
//! The queue of a hook, with real processes.

use std::path::Path;
use std::time::Instant;

use vipwatch_core::{EventKind, RoleKind};
use vipwatch_history::Record;

use super::*;
use crate::config::{Hook, HookAccount};
use crate::notify::notification::RecordedTransition;

/// A queue of a hook for primary that runs `script` in `directory`, and is retried.
fn queue(directory: &Path, script: &str) -> TargetQueue {
    let context = QueueContext {
        identity: NodeIdentity { node: "n".into(), epoch: "e".into() },
        store: None,
        reports: None,
        silences: Arc::new(Silences::new(Vec::new()).unwrap()),
        read_backlog: Arc::new(|_, _, _, _| None),
        journal: SharedJournal::default(),
        slots: Slots::new(),
        hooks_at_once: 2,
        hook_runner: HookRunner::in_this_process(),
    };
    let script = format!("cd {} && {script}", directory.display());
    let hook = Hook {
        name: "hook".to_owned(),
        program: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
        on: vec![EventKind::Role(RoleKind::Primary)],
        account: HookAccount::default(),
        timeout: Duration::from_mins(2),
        deliver: DeliveryMode::Latest,
        settle: Duration::ZERO,
        retries: 1000,
    };
    let settings = TargetSettings::Hook(Arc::new(hook));
    TargetQueue::new(settings, DeliverySource::Node, BTreeMap::new(), &Arc::new(context))
}

fn submit(queue: &TargetQueue, id: &str, seq: i64, to: &str) -> Subject {
    let record = Record {
        seq,
        at: 0,
        instance: id.to_owned(),
        netns: None,
        from: None,
        to: RoleKind::from_word(to),
        trigger: "address".to_owned(),
        reason: None,
        cause: None,
    };
    let id: InstanceId = id.parse().unwrap();
    let transition =
        RecordedTransition { record, id: id.clone(), instance: None, read_at: clock::now() };
    let transition: Arc<dyn Notification> = Arc::new(transition);
    queue.submit(&transition);
    Subject::Instance(id)
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !is_true() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_retry_is_not_delayed_by_an_attempt_that_hangs() {
    let directory = tempfile::tempdir().unwrap();
    // The attempt for `b` fails once. The wait for the next one is longer than an idle worker stays.
    let script = "case $VIPWATCH_ID in \
         a) while [ ! -e end ]; do sleep 0.1; done ;; \
         b) [ -e failed ] || { : > failed; exit 1; } ;; esac";
    let queue = queue(directory.path(), script);
    let a = submit(&queue, "a", 1, "primary");
    let b = submit(&queue, "b", 2, "primary");
    wait_until("the second attempt", || queue.is_done(&b, 2));
    assert!(!queue.is_done(&a, 1), "the other attempt still runs");
    std::fs::File::create(directory.path().join("end")).unwrap();
    wait_until("the first attempt", || queue.is_done(&a, 1));
}

#[test]
fn a_failure_is_over_when_the_role_is_one_that_the_target_does_not_get() {
    let directory = tempfile::tempdir().unwrap();
    let queue = queue(directory.path(), "exit 1");
    let subject = submit(&queue, "a", 1, "primary");
    wait_until("the failure", || queue.failure(&subject).is_some());
    submit(&queue, "a", 2, "backup");
    wait_until("the conclusion", || queue.is_done(&subject, 2));
    assert_eq!(queue.failure(&subject), None);
}
