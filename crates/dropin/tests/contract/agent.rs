// SPDX-License-Identifier: Apache-2.0
//! Notifications of the agent, for every way in which the agent can fail.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::{Behaviour, FakeAgent, Release, stays, wait_for};

use crate::{fixture, subject};

#[test]
fn the_request_is_sent_in_one_write_and_closes_the_connection() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let request = agent.requests().remove(0);
    assert_eq!(request.router(), router.id);
    assert_eq!(request.header("connection"), Some("close"));
    assert!(request.request.ends_with("\r\n\r\n"), "the server's single read gets all of it");
}

/// Starts an agent with a faulty `behaviour`, checks that the log contains `message`, and checks that the agent is
/// notified once it answers normally.
fn recovers_from(behaviour: Behaviour, message: &str) {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(behaviour);
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    router.wait_for_log(message);
    agent.set_behaviour(Behaviour::Threaded);
    wait_for("a request that the agent answers", || {
        agent.requests().pop().filter(|request| request.behaviour == Behaviour::Threaded)
    });
    router.wait_for_log("Notified agent router");
    assert_eq!(agent.requests().pop().unwrap().word(), "backup");
}

#[test]
fn an_agent_that_closes_without_an_answer_is_notified_again() {
    recovers_from(Behaviour::Closing, "closed the connection without an answer");
}

#[test]
fn an_agent_that_resets_the_connection_is_notified_again() {
    recovers_from(Behaviour::Resetting, "the agent reset the connection");
}

#[test]
fn an_agent_whose_answer_is_not_http_is_notified_again() {
    recovers_from(Behaviour::Garbage, "answer is not HTTP");
}

#[test]
fn an_agent_that_answers_500_is_notified_again() {
    recovers_from(Behaviour::Status(500), "status 500");
}

#[test]
fn an_agent_that_hangs_is_notified_again_after_the_timeout() {
    recovers_from(Behaviour::Hanging, "did not answer within");
}

#[test]
fn a_full_queue_of_the_agent_is_logged_and_the_request_is_retried() {
    let (lab, router, agent) = fixture(Release::V29);
    agent.stop(SocketRemains::Nothing);
    let path = lab.path().join("keepalived-state-change");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // The kernel queues one more connection than the backlog.
    let waiting = UnixStream::connect(&path).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("keepalived-state-change is full; retrying");
    listener.set_nonblocking(true).unwrap();
    drop((listener.accept().unwrap(), waiting));
    let mut connection = wait_for("a connection of the monitor", || listener.accept().ok()).0;
    connection.set_nonblocking(false).unwrap();
    let mut request = [0; 1024];
    let length = connection.read(&mut request).unwrap();
    assert!(String::from_utf8_lossy(&request[..length]).contains("backup"));
}

#[test]
fn an_answer_that_arrives_byte_by_byte_is_accepted() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(Behaviour::Dribbling);
    let _monitor = router.start(&subject());
    router.wait_for_log("Notified agent router");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn the_answer_of_an_eventlet_agent_is_accepted() {
    let (_lab, router, agent) = fixture(Release::V26);
    agent.set_behaviour(Behaviour::Eventlet);
    let _monitor = router.start(&subject());
    router.wait_for_log("Notified agent router");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn a_rejected_request_is_logged_as_a_defect_and_not_repeated_soon() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(Behaviour::Status(404));
    let _monitor = router.start(&subject());
    router.wait_for_log("status 404; this is a defect");
    stays(Duration::from_millis(500), "one attempt", || agent.words().len() == 1);
    // A new state does not wait for the retry.
    agent.set_behaviour(Behaviour::Threaded);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn an_agent_that_starts_later_is_notified_when_it_starts() {
    let (lab, router, agent) = fixture(Release::V29);
    agent.stop(SocketRemains::Nothing);
    router.take_vip();
    let _monitor = router.start(&subject());
    router.wait_for_log("there is no socket at");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["primary"]);
}

#[test]
fn a_dead_socket_is_logged_and_the_next_agent_is_notified() {
    let (lab, router, agent) = fixture(Release::V29);
    agent.stop(SocketRemains::DeadSocket);
    let _monitor = router.start(&subject());
    router.wait_for_log("no agent is listening on");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["backup"]);
}

#[test]
fn a_restarted_agent_is_notified_of_the_current_state() {
    let (lab, router, agent) = fixture(Release::V29);
    router.take_vip();
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["primary"]);
    agent.stop(SocketRemains::Nothing);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["primary"]);
}

#[test]
fn changes_without_an_agent_are_delivered_as_one_state() {
    let (lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    agent.stop(SocketRemains::DeadSocket);
    for _ in 0..5 {
        router.take_vip();
        router.wait_for_state("primary");
        router.drop_vip();
        router.wait_for_state("backup");
    }
    router.take_vip();
    router.wait_for_state("primary");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["primary"]);
}

#[test]
fn a_state_that_follows_another_too_closely_is_sent_again_after_the_window() {
    let (_lab, router, agent) = fixture(Release::V29);
    // The window is so long that the second state follows within it, even on a busy machine.
    let conf = b"vrrp_instance VR_1 {\n    advert_int 5\n}\n";
    std::io::Write::write_all(
        &mut std::fs::File::create(router.conf_dir.join("keepalived.conf")).unwrap(),
        conf,
    )
    .unwrap();
    router.take_vip();
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["primary"]);
    router.drop_vip();
    agent.wait_for_words(&["primary", "backup"]);
    agent.wait_for_words(&["primary", "backup", "backup"]);
    let requests = agent.requests();
    let gap = requests[2].at - requests[1].at;
    assert!(gap >= Duration::from_secs(5), "the agent may still delay the primary: {gap:?}");
    stays(Duration::from_millis(500), "no further request", || agent.words().len() == 3);
}

#[test]
fn an_unchanged_state_is_not_sent_again() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.ip(&format!("address add 10.1.1.1/24 dev {}", router.link));
    router.netns.ip(&format!("link set {} down", router.link));
    stays(Duration::from_millis(500), "one request", || agent.words().len() == 1);
}

#[test]
fn a_request_without_an_answer_counts_as_possibly_received() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    agent.set_behaviour(Behaviour::Hanging);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    router.drop_vip();
    router.wait_for_state("backup");
    // The agent never acknowledged the primary, but it may act on it.
    agent.set_behaviour(Behaviour::Threaded);
    let request = agent.wait_for_word("backup");
    assert_eq!(request.behaviour, Behaviour::Threaded);
}

#[test]
fn a_socket_of_another_user_is_refused_unless_allowed() {
    let (lab, router, agent) = fixture(Release::V29);
    let socket = lab.path().join("keepalived-state-change");
    std::os::unix::fs::chown(&socket, Some(65534), None)
        .expect("changing the owner of a socket needs root");
    // Every user may connect, so that only the monitor's own check can refuse.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();
    let monitor = router.start(&subject());
    router.wait_for_log("belongs to user 65534, not to the agent's user or root");
    assert!(agent.words().is_empty());
    drop(monitor);

    let child = router.command(&subject()).arg("--allow_any_agent").spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    crate::reap(child);
}

#[test]
fn a_server_of_another_user_is_refused_even_if_root_owns_the_socket() {
    let (lab, router, agent) = fixture(Release::V29);
    drop(agent);
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = lab.path().join("keepalived-state-change");
    // The kernel stores the user of the listening thread; this thread runs as another user.
    let listener = std::thread::scope(|scope| {
        let impostor = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(uid, uid, uid)
                .expect("changing the user needs root");
            UnixListener::bind(&socket).unwrap()
        });
        impostor.join().unwrap()
    });
    std::os::unix::fs::chown(&socket, Some(0), None).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("is served by user 65534, not by the agent's user or root");
    drop(listener);
}

#[test]
fn a_directory_in_place_of_the_socket_is_logged() {
    let (lab, router, agent) = fixture(Release::V29);
    drop(agent);
    std::fs::create_dir(lab.path().join("keepalived-state-change")).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("keepalived-state-change is not a socket");
}

#[test]
fn a_socket_without_permission_is_logged_and_retried() {
    let (lab, mut router, agent) = fixture(Release::V29);
    router.give_to(65534);
    let socket = lab.path().join("keepalived-state-change");
    let allow = |mode| std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode));
    allow(0o000).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("no permission to connect to");
    allow(0o700).unwrap();
    agent.wait_for_words(&["backup"]);
}

#[test]
fn ten_thousand_failures_leak_no_descriptor() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(Behaviour::Closing);
    let monitor = router.start(&subject());
    router.wait_for_state("backup");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", monitor.pid)).unwrap().count();
    router.wait_for_log("without an answer");
    let before = open();
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    // Every change causes a new attempt, and every attempt fails. The test waits for each attempt before the next
    // change: two changes within one batch would cancel each other.
    let deadline = Instant::now() + Duration::from_mins(10);
    let mut is_held = false;
    while agent.count() < 10_000 {
        let before = agent.count();
        if is_held {
            editor.remove(link, vip);
        } else {
            editor.add(link, vip);
        }
        is_held = !is_held;
        while agent.count() == before {
            assert!(Instant::now() < deadline, "only {before} attempts");
            std::thread::yield_now();
        }
    }
    if is_held {
        editor.remove(link, vip);
    }
    wait_for("all descriptors to be closed", || (open() <= before).then_some(()));
    agent.set_behaviour(Behaviour::Threaded);
    router.take_vip();
    agent.wait_for_word("primary");
}
