// SPDX-License-Identifier: Apache-2.0
//! Tests causes with a whole node that follows nothing.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use vipwatch_core::Role;
use vipwatch_core::cause::ChangeDirection;
use vipwatch_linux::listen::SocketFileLost;
use vipwatch_linux::signal::ServiceSignals;
use vipwatch_receiver::ListenSource;

use super::*;
use crate::Config;
use crate::api_server::ApiServer;
use crate::service::StartupFds;

/// An API server without clients.
struct NoServer;

impl ApiServer for NoServer {
    fn serve(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn check_socket(&self) -> Result<(), SocketFileLost> {
        Ok(())
    }

    fn reload(&self) {}
}

/// A node with its files in `directory`, and without instances.
fn node(directory: &Path) -> Node {
    let text = format!(
        "[node]\nstate_dir = {directory:?}\n[find]\nprocesses = false\n\
         neutron_state_path = {directory:?}\nkeepalived_conf = {:?}\n[witness]\nenabled = false\n",
        directory.join("keepalived.conf")
    );
    let config = Config::parse(&directory.join("vipwatch.toml"), &text).unwrap();
    let signals = ServiceSignals::block().unwrap();
    let fds = StartupFds { listen_source: ListenSource::New, signals };
    let load_config = Box::new(|| unreachable!("the test does not reload"));
    Node::start(config, load_config, fds, Box::new(|_, _| Ok(Box::new(NoServer)))).unwrap()
}

/// A member of a sync group whose transition waits for its cause.
fn pending(example: &InstanceConfig, number: usize, trigger: Trigger) -> PendingCause {
    let mut instance = example.clone();
    instance.id = format!("member{number}").parse().unwrap();
    let now = clock::now();
    PendingCause {
        transition: Arc::new(Transition {
            seq: 1,
            at: SystemTime::now(),
            read_at: now,
            is_repeated: false,
            instance: Arc::new(instance),
            from: Some(RoleKind::Primary),
            to: Role::Backup,
            direction: ChangeDirection::Lost,
            trigger,
            cause: None,
        }),
        reason: DeliveryReason::Change,
        evidence: ReadEvidence { is_final: true, ..ReadEvidence::none(now) },
        changer: None,
        deadline: now + CAUSE_TIMEOUT,
        is_put_off: false,
    }
}

#[test]
fn the_cause_of_a_sync_group_with_thousands_of_members_needs_no_larger_stack() {
    const MEMBERS: usize = 20_000;
    // A call for each member would need some megabytes.
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let test = small.spawn(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut node = node(directory.path());
        let mut example = crate::discovery::example();
        let mut vrrp = (*example.vrrp).clone();
        vrrp.sync_group = Some("G".into());
        example.vrrp = Arc::new(vrrp);
        for number in 0..MEMBERS {
            // Only the first member has evidence of its own.
            let trigger = if number == 0 { Trigger::Config } else { Trigger::Address };
            node.pending_causes.add(pending(&example, number, trigger));
        }
        node.conclude_known_causes(&"member0".parse().unwrap());
        assert!(node.pending_causes.ids().is_empty());
    });
    test.unwrap().join().unwrap();
}

#[test]
fn a_deadline_is_put_off_once_for_the_adverts_that_are_not_read_yet() {
    let mut example = pending(&crate::discovery::example(), 1, Trigger::Address);
    (example.evidence.is_final, example.deadline) = (false, clock::now());
    let id = example.transition.instance.id.clone();
    let mut all = PendingCauses::default();
    all.add(example);
    let now = clock::now();
    assert_eq!(all.ids_due_at(now).len(), 1);
    assert!(all.put_off(&id, now) && !all.put_off(&id, now));
    all.set_due(&id, now, None);
    assert!(all.ids_due_at(now).is_empty() && all.due() > Some(now), "it is not over yet");
    let later = all.due().unwrap();
    assert!(!all.put_off(&id, later));
    all.set_due(&id, later, None);
    assert_eq!(all.due(), None);
}
