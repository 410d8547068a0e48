//! Telling the agent, whatever it does.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::{Behaviour, FakeAgent, Release, stays, wait_for};

use crate::{stage, subject};

#[test]
fn the_request_is_one_that_every_server_understands() {
    let (_lab, router, agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let letter = agent.letters().remove(0);
    assert_eq!(letter.router(), router.id);
    assert_eq!(letter.header("connection"), Some("close"));
    assert!(letter.request.ends_with("\r\n\r\n"), "whole, in the one read the server does");
}

/// The agent misbehaves, then mends its ways: it is told, and the log names the fault.
fn survives(manner: Behaviour, named: &str) {
    let (_lab, router, agent) = stage(Release::V29);
    agent.behave(manner);
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    router.wait_for_log(named);
    agent.behave(Behaviour::Threaded);
    wait_for("an answered word", || {
        agent.letters().pop().filter(|letter| letter.manner == Behaviour::Threaded)
    });
    router.wait_for_log("Notified agent router");
    assert_eq!(agent.letters().pop().unwrap().word(), "backup");
}

#[test]
fn an_agent_that_closes_without_an_answer_is_told_again() {
    survives(Behaviour::Closing, "closed the connection without an answer");
}

#[test]
fn an_agent_that_resets_is_told_again() {
    survives(Behaviour::Resetting, "the agent reset the connection");
}

#[test]
fn an_agent_that_answers_garbage_is_told_again() {
    survives(Behaviour::Garbage, "answer is not HTTP");
}

#[test]
fn an_agent_that_answers_500_is_told_again() {
    survives(Behaviour::Status(500), "status 500");
}

#[test]
fn an_agent_that_hangs_is_told_again_after_the_deadline() {
    survives(Behaviour::Hanging, "did not answer within");
}

#[test]
fn an_agent_whose_queue_is_full_is_named_and_told_when_there_is_room() {
    let (lab, router, agent) = stage(Release::V29);
    agent.stop(SocketRemains::Nothing);
    let path = lab.path().join("keepalived-state-change");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // The kernel lets one more wait than the backlog says.
    let waiting = UnixStream::connect(&path).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("keepalived-state-change is full; retrying");
    listener.set_nonblocking(true).unwrap();
    drop((listener.accept().unwrap(), waiting));
    let mut told = wait_for("the monitor", || listener.accept().ok()).0;
    told.set_nonblocking(false).unwrap();
    let mut request = [0; 1024];
    let length = told.read(&mut request).unwrap();
    assert!(String::from_utf8_lossy(&request[..length]).contains("backup"));
}

#[test]
fn an_agent_that_answers_byte_by_byte_has_answered() {
    let (_lab, router, agent) = stage(Release::V29);
    agent.behave(Behaviour::Dribbling);
    let _monitor = router.start(&subject());
    router.wait_for_log("Notified agent router");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn an_agent_of_the_eventlet_generations_is_understood() {
    let (_lab, router, agent) = stage(Release::V26);
    agent.behave(Behaviour::Eventlet);
    let _monitor = router.start(&subject());
    router.wait_for_log("Notified agent router");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn a_rejection_is_called_a_defect_and_not_hammered() {
    let (_lab, router, agent) = stage(Release::V29);
    agent.behave(Behaviour::Status(404));
    let _monitor = router.start(&subject());
    router.wait_for_log("status 404; this is a defect");
    stays(Duration::from_millis(500), "one attempt", || agent.words().len() == 1);
    // News is not held back by it.
    agent.behave(Behaviour::Threaded);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn an_agent_that_comes_late_is_told_when_it_comes() {
    let (lab, router, agent) = stage(Release::V29);
    agent.stop(SocketRemains::Nothing);
    router.take_vip();
    let _monitor = router.start(&subject());
    router.wait_for_log("there is no socket at");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["primary"]);
}

#[test]
fn an_agent_that_died_and_left_its_socket_is_named_and_its_successor_told() {
    let (lab, router, agent) = stage(Release::V29);
    agent.stop(SocketRemains::DeadSocket);
    let _monitor = router.start(&subject());
    router.wait_for_log("no agent is listening on");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["backup"]);
}

#[test]
fn an_agent_that_restarts_is_told_what_its_predecessor_knew() {
    let (lab, router, agent) = stage(Release::V29);
    router.take_vip();
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["primary"]);
    agent.stop(SocketRemains::Nothing);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["primary"]);
}

#[test]
fn what_happened_while_the_agent_was_away_is_told_as_one_word() {
    let (lab, router, agent) = stage(Release::V29);
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
fn a_role_that_followed_another_too_closely_is_confirmed_after_the_window() {
    let (_lab, router, agent) = stage(Release::V29);
    // So long that the second word follows within the window, however busy the machine is.
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
    let letters = agent.letters();
    let gap = letters[2].at - letters[1].at;
    assert!(gap >= Duration::from_secs(5), "the receiver may still sleep on the primary: {gap:?}");
    stays(Duration::from_millis(500), "and then silence", || agent.words().len() == 3);
}

#[test]
fn an_unchanged_role_is_not_repeated() {
    let (_lab, router, agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.ip(&format!("address add 10.1.1.1/24 dev {}", router.link));
    router.netns.ip(&format!("link set {} down", router.link));
    stays(Duration::from_millis(500), "one word", || agent.words().len() == 1);
}

#[test]
fn an_attempt_without_an_answer_counts_as_possibly_heard() {
    let (_lab, router, agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    agent.behave(Behaviour::Hanging);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    router.drop_vip();
    router.wait_for_state("backup");
    // It never acknowledged the primary, and may act on it all the same.
    agent.behave(Behaviour::Threaded);
    let letter = agent.wait_for_word("backup");
    assert_eq!(letter.manner, Behaviour::Threaded);
}

#[test]
fn a_socket_of_another_user_is_refused_unless_allowed() {
    let (lab, router, agent) = stage(Release::V29);
    let socket = lab.path().join("keepalived-state-change");
    std::os::unix::fs::chown(&socket, Some(65534), None).expect("root, to give a socket away");
    // Anybody may connect: it is the monitor that must not.
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
fn a_server_of_another_user_is_refused_whoever_owns_the_socket() {
    let (lab, router, agent) = stage(Release::V29);
    drop(agent);
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = lab.path().join("keepalived-state-change");
    // The kernel notes who listens: a thread that is somebody else.
    let listener = std::thread::scope(|scope| {
        let impostor = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(uid, uid, uid)
                .expect("root, to become another user");
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
fn something_else_in_the_sockets_place_is_named() {
    let (lab, router, agent) = stage(Release::V29);
    drop(agent);
    std::fs::create_dir(lab.path().join("keepalived-state-change")).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_log("keepalived-state-change is not a socket");
}

#[test]
fn a_socket_that_does_not_let_us_in_is_named_and_tried_again() {
    let (lab, mut router, agent) = stage(Release::V29);
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
    let (_lab, router, agent) = stage(Release::V29);
    agent.behave(Behaviour::Closing);
    let monitor = router.start(&subject());
    router.wait_for_state("backup");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", monitor.pid)).unwrap().count();
    router.wait_for_log("without an answer");
    let before = open();
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    // Every change is a new attempt, and every attempt fails. The next change comes when the
    // last attempt was heard: a pair within one batch would be no change at all.
    let end = Instant::now() + Duration::from_mins(10);
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
            assert!(Instant::now() < end, "only {before} attempts");
            std::thread::yield_now();
        }
    }
    if is_held {
        editor.remove(link, vip);
    }
    wait_for("the descriptors to be back", || (open() <= before).then_some(()));
    agent.behave(Behaviour::Threaded);
    router.take_vip();
    agent.wait_for_word("primary");
}
