// SPDX-License-Identifier: Apache-2.0
//! Known defects of Neutron's monitors that no other module has a test for. The numbers are those of
//! `docs/reference/defects.md`.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use vipwatch_testkit::agent::{AgentRequest, SocketRemains};
use vipwatch_testkit::monitor::{children, is_alive, read_pid};
use vipwatch_testkit::{Behaviour, FakeAgent, Release, Router, peer_of, stays, wait_for};

use crate::{fixture, subject};

#[test]
fn d03_one_failed_notification_does_not_stop_the_monitor() {
    let (lab, router, agent) = fixture(Release::V26);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    agent.stop(SocketRemains::DeadSocket);
    router.take_vip();
    router.wait_for_state("primary");
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_word("primary");
    router.drop_vip();
    router.wait_for_state("backup");
    agent.wait_for_word("backup");
}

#[test]
fn d04_and_d24_a_hung_agent_delays_neither_events_nor_the_state_file() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(Behaviour::Hanging);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    for _ in 0..3 {
        router.take_vip();
        router.wait_for_state("primary");
        router.drop_vip();
        router.wait_for_state("backup");
    }
    assert_eq!(agent.words(), ["backup"], "the agent still hangs after all changes");
}

#[test]
fn d05_a_stale_primary_in_the_state_file_is_corrected_at_start() {
    let (_lab, router, agent) = fixture(Release::V12);
    let mut file = std::fs::File::create(router.conf_dir.join("state")).unwrap();
    std::io::Write::write_all(&mut file, b"master").unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    agent.wait_for_word("backup");
}

/// The address changes without a pause from before the subscription until the first snapshot is under way.
#[test]
fn d06_and_d16_the_first_snapshot_and_events_are_applied_in_order() {
    let (_lab, router, agent) = fixture(Release::V29);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    // The kernel lists IPv6 after IPv4. Many IPv6 addresses make the snapshot last longer after the watched address
    // was listed.
    let peer = editor.link(&peer_of(&router.link));
    for number in 0..1_000 {
        editor.add(peer, format!("fd00::{number:x}/128").parse().unwrap());
    }
    for round in 0..160 {
        let child = router.command(&subject()).stderr(Stdio::null()).spawn().unwrap();
        let flap = || {
            editor.add(link, vip);
            editor.remove(link, vip);
        };
        // A million changes take longer than a start.
        let pid = (0..1_000_000).find_map(|_| {
            flap();
            read_pid(&router.pid_file())
        });
        let pid = pid.expect("a pid file");
        // The first snapshot follows the pid file; each round ends at another moment of the snapshot.
        (0..round / 2 % 10).for_each(|_| flap());
        let word = if round % 2 == 0 { "primary" } else { "backup" };
        if word == "primary" {
            editor.add(link, vip);
        }
        router.wait_for_state(word);
        agent.wait_for_word(word);
        crate::reap(child);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap_or_default();
        wait_for("the monitor to end", || (!is_alive(pid)).then_some(()));
        assert_eq!(router.state().as_deref(), Some(word), "at the end of round {round}");
        if word == "primary" {
            editor.remove(link, vip);
        }
        let _ = std::fs::remove_file(router.pid_file());
    }
}

#[test]
fn d11_no_reader_ever_sees_an_empty_state_file() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    let is_over = AtomicBool::new(false);
    let path = router.conf_dir.join("state");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut unexpected = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let word = std::fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
                if word != "primary" && word != "backup" {
                    unexpected.push(word);
                }
            }
            unexpected
        });
        for _ in 0..100 {
            editor.add(link, vip);
            router.wait_for_state("primary");
            editor.remove(link, vip);
            router.wait_for_state("backup");
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().unwrap(), Vec::<String>::new());
    });
}

/// Maximum private memory of one of several monitors, in KiB. The target of `bench dropin` is 64; the
/// environment of a test and the random layout of stack and heap take a few pages more.
const MAX_PRIVATE_KIB: u32 = 64 + 32;

#[test]
fn d12_each_monitor_uses_little_private_memory() {
    let (lab, _router, agent) = fixture(Release::V29);
    // With a single process, every page of the program would count as private.
    let routers: Vec<_> =
        (0..8).map(|number| Router::numbered(&lab, Release::V29, 100 + number)).collect();
    let monitors: Vec<_> = routers.iter().map(|router| router.start(&subject())).collect();
    for router in &routers {
        router.wait_for_state("backup");
        router.take_vip();
    }
    for router in &routers {
        router.wait_for_state("primary");
        wait_for("a request for each router", || {
            let is_primary = |request: &AgentRequest| {
                request.router() == router.id && request.word() == "primary"
            };
            agent.requests().iter().any(is_primary).then_some(())
        });
    }
    let private = monitors.iter().map(|monitor| {
        let children = children(monitor.pid).into_iter().filter_map(private_kib);
        private_kib(monitor.pid).unwrap() + children.sum::<u32>()
    });
    let private: Vec<u32> = private.collect();
    assert!(private.iter().all(|kib| *kib <= MAX_PRIVATE_KIB), "{private:?} KiB");
}

/// Private memory of a process, in KiB; `None` if it has ended.
fn private_kib(pid: i32) -> Option<u32> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let size = |line: &str| line.split_whitespace().nth(1)?.parse::<u32>().ok();
    Some(rollup.lines().filter(|line| line.starts_with("Private_")).filter_map(size).sum())
}

#[test]
fn d15_and_d21_a_vip_that_appears_right_after_the_first_state_is_not_missed() {
    for _ in 0..20 {
        let (_lab, router, agent) = fixture(Release::V29);
        let (editor, link) = router.editor();
        let child = router.command(&subject()).stderr(Stdio::null()).spawn().unwrap();
        router.wait_for_state("backup");
        editor.add(link, router.cidr.parse().unwrap());
        router.wait_for_state("primary");
        agent.wait_for_word("primary");
        crate::reap(child);
    }
}

#[test]
fn d22_the_first_state_is_sent_without_waiting_for_an_event() {
    for word in ["backup", "primary"] {
        let (_lab, router, agent) = fixture(Release::V29);
        if word == "primary" {
            router.take_vip();
        }
        // A link-local address becomes usable a second after its link is up, which would cause an event.
        router.remove_link_local_addresses();
        let _monitor = router.start(&subject());
        agent.wait_for_words(&[word]);
    }
}

#[test]
fn d23_the_state_file_is_written_without_an_agent() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.stop(SocketRemains::Nothing);
    let monitor = router.start(&subject());
    router.take_vip();
    router.wait_for_state("primary");
    router.drop_vip();
    router.wait_for_state("backup");
    assert!(monitor.is_alive());
}

#[test]
fn d25_a_queue_of_five_connections_loses_no_state() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let (lab, _router, agent) = fixture(Release::V29);
    drop(agent);
    let routers: Vec<_> =
        (0..40).map(|number| Router::numbered(&lab, Release::V29, 100 + number)).collect();
    let path = lab.path().join("keepalived-state-change");
    let server = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&server, &SocketAddrUnix::new(path.as_path()).unwrap()).unwrap();
    listen(&server, 5).unwrap();
    let _monitors: Vec<_> = routers.iter().map(|router| router.start(&subject())).collect();
    for router in &routers {
        router.wait_for_state("backup");
    }
    // The server accepts connections only from now on, one by one.
    let listener = std::os::unix::net::UnixListener::from(server);
    let mut received = std::collections::HashSet::new();
    while received.len() < routers.len() {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(
            poll(&mut waiting, Some(&limit)).unwrap() > 0,
            "only {} requests arrived",
            received.len()
        );
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\n").unwrap_or_default();
        received.extend(
            routers
                .iter()
                .filter(|router| text.contains(&router.id))
                .map(|router| router.id.clone()),
        );
    }
}

#[test]
fn d26_unread_pipes_do_not_fill() {
    let (_lab, router, agent) = fixture(Release::V29);
    // `start` keeps the pipes open and unread, as the agent of release 29 does.
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    for _ in 0..150 {
        editor.add(link, vip);
        agent.wait_for_word("primary");
        editor.remove(link, vip);
        agent.wait_for_word("backup");
    }
}

#[test]
fn d27_other_addresses_start_no_process_and_do_not_change_the_state() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let (editor, link) = router.editor();
    for n in 0..500 {
        editor.add(link, format!("10.7.{}.{}/32", n / 250, n % 250).parse().unwrap());
    }
    editor.add(link, router.cidr.parse().unwrap());
    agent.wait_for_words(&["backup", "primary"]);
    assert_eq!(children(monitor.pid), Vec::<i32>::new());
}

#[test]
fn d29_sigterm_leaves_neither_pid_file_nor_fifo_nor_process() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    monitor.signal(Signal::TERM);
    monitor.wait_until_gone();
    assert!(!router.pid_file().exists());
    assert!(!router.conf_dir.join("ip-monitor").exists());
    // The foreground process that the agent started is in the namespace too, and may not have ended yet.
    wait_for("no process to be left in the namespace", || {
        router.netns.pids().is_empty().then_some(())
    });
}

#[test]
fn d32_a_link_that_was_renamed_no_longer_counts() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.ip(&format!("link set {} down", router.link));
    router.netns.ip(&format!("link set {} name other", router.link));
    router.netns.ip(&format!("address add {} dev other", router.cidr));
    stays(Duration::from_millis(300), "backup", || router.state().as_deref() == Some("backup"));
}

#[test]
fn d33_a_peer_address_does_not_change_the_state() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let peer = peer_of(&router.link);
    router.netns.ip(&format!("address add 10.0.0.1 peer 169.254.0.1/24 dev {}", router.link));
    router.netns.ip(&format!("address add 169.254.0.1 peer 10.0.0.9/32 dev {peer}"));
    stays(Duration::from_millis(300), "backup", || router.state().as_deref() == Some("backup"));
    router.netns.ip(&format!("address add 169.254.0.1 peer 10.0.0.2/24 dev {}", router.link));
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn d34_the_agents_user_can_write_the_state_file() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.give_to(65534);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            std::fs::File::create(router.conf_dir.join("state")).map(|_| ())
        });
        user.join().unwrap().expect("the agent's user can write the file");
    });
}

#[test]
fn d35_a_directory_name_with_spaces_and_shell_characters_works() {
    let (lab, mut router, agent) = fixture(Release::V29);
    router.conf_dir = lab.path().join("a b * $(touch x) 'c'");
    std::fs::create_dir(&router.conf_dir).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn d37_the_monitor_needs_no_other_program() {
    let (_lab, router, agent) = fixture(Release::V29);
    let child = router
        .command(&subject())
        .env_clear()
        .env("PATH", "/nonexistent")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    wait_for("the pid file", || read_pid(&router.pid_file()));
    crate::reap(child);
}
