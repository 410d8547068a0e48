//! Every known defect of upstream's monitors that no other module has a case for, by the
//! number it has in `docs/reference/defects.md`.

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

use crate::{stage, subject};

#[test]
fn d03_one_failed_notification_does_not_make_it_deaf() {
    let (lab, router, agent) = stage(Release::V26);
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
fn d04_and_d24_a_hung_agent_delays_neither_watching_nor_the_file() {
    let (_lab, router, agent) = stage(Release::V29);
    agent.behave(Behaviour::Hanging);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    for _ in 0..3 {
        router.take_vip();
        router.wait_for_state("primary");
        router.drop_vip();
        router.wait_for_state("backup");
    }
    assert_eq!(agent.words(), ["backup"], "all of it while the agent still hung");
}

#[test]
fn d05_a_stale_primary_in_the_file_is_corrected_at_start() {
    let (_lab, router, agent) = stage(Release::V12);
    let mut file = std::fs::File::create(router.conf_dir.join("state")).unwrap();
    std::io::Write::write_all(&mut file, b"master").unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    agent.wait_for_word("backup");
}

/// The address changes without a pause from before the subscription until the first look is under way.
#[test]
fn d06_and_d16_first_look_and_event_have_one_order() {
    let (_lab, router, agent) = stage(Release::V29);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    // The kernel lists IPv6 after IPv4: many addresses there keep the look under way for longer after the
    // watched one was listed.
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
        // A million changes take longer than any start.
        let pid = (0..1_000_000).find_map(|_| {
            flap();
            read_pid(&router.pid_file())
        });
        let pid = pid.expect("a pid file");
        // The first look follows the pid file; each round ends at another moment of it.
        (0..round / 2 % 10).for_each(|_| flap());
        let word = if round % 2 == 0 { "primary" } else { "backup" };
        if word == "primary" {
            editor.add(link, vip);
        }
        router.wait_for_state(word);
        agent.wait_for_word(word);
        crate::reap(child);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap_or_default();
        wait_for("its end", || (!is_alive(pid)).then_some(()));
        assert_eq!(router.state().as_deref(), Some(word), "in the end of round {round}");
        if word == "primary" {
            editor.remove(link, vip);
        }
        let _ = std::fs::remove_file(router.pid_file());
    }
}

#[test]
fn d11_no_reader_ever_sees_an_empty_state_file() {
    let (_lab, router, agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    let is_over = AtomicBool::new(false);
    let path = router.conf_dir.join("state");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut strange = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let word = std::fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
                if word != "primary" && word != "backup" {
                    strange.push(word);
                }
            }
            strange
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

/// Private memory that one of several monitors may have, in KiB. The target of `bench dropin` is 64; a
/// test's environment and the random layout of stack and heap take a few pages more.
const MAX_PRIVATE_KIB: u32 = 64 + 32;

#[test]
fn d12_each_monitor_has_little_memory_of_its_own() {
    let (lab, _router, agent) = stage(Release::V29);
    // With one instance only, every page of the program would count as its own.
    let routers: Vec<_> =
        (0..8).map(|number| Router::numbered(&lab, Release::V29, 100 + number)).collect();
    let monitors: Vec<_> = routers.iter().map(|router| router.start(&subject())).collect();
    for router in &routers {
        router.wait_for_state("backup");
        router.take_vip();
    }
    for router in &routers {
        router.wait_for_state("primary");
        wait_for("the agent to hear of each", || {
            let is_told =
                |letter: &AgentRequest| letter.router() == router.id && letter.word() == "primary";
            agent.letters().iter().any(is_told).then_some(())
        });
    }
    let private = monitors.iter().map(|monitor| {
        let children = children(monitor.pid).into_iter().filter_map(private_kib);
        private_kib(monitor.pid).unwrap() + children.sum::<u32>()
    });
    let private: Vec<u32> = private.collect();
    assert!(private.iter().all(|kib| *kib <= MAX_PRIVATE_KIB), "{private:?} KiB");
}

/// Memory that only this process has, in KiB; `None` if it has ended.
fn private_kib(pid: i32) -> Option<u32> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let size = |line: &str| line.split_whitespace().nth(1)?.parse::<u32>().ok();
    Some(rollup.lines().filter(|line| line.starts_with("Private_")).filter_map(size).sum())
}

#[test]
fn d15_and_d21_a_vip_that_appears_right_after_the_first_state_is_not_missed() {
    for _ in 0..20 {
        let (_lab, router, agent) = stage(Release::V29);
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
fn d22_the_first_state_is_told_without_waiting_for_an_event() {
    for word in ["backup", "primary"] {
        let (_lab, router, agent) = stage(Release::V29);
        if word == "primary" {
            router.take_vip();
        }
        // A link-local address becomes usable a second after the link: that would be an event.
        router.remove_link_local_addresses();
        let _monitor = router.start(&subject());
        agent.wait_for_words(&[word]);
    }
}

#[test]
fn d23_an_absent_agent_does_not_keep_the_file_from_being_written() {
    let (_lab, router, agent) = stage(Release::V29);
    agent.stop(SocketRemains::Nothing);
    let monitor = router.start(&subject());
    router.take_vip();
    router.wait_for_state("primary");
    router.drop_vip();
    router.wait_for_state("backup");
    assert!(monitor.is_alive());
}

#[test]
fn d25_a_backlog_of_five_loses_nobody() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let (lab, _router, agent) = stage(Release::V29);
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
    // Only now the queue begins to move, slowly.
    let listener = std::os::unix::net::UnixListener::from(server);
    let mut heard = std::collections::HashSet::new();
    while heard.len() < routers.len() {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(poll(&mut waiting, Some(&limit)).unwrap() > 0, "only {} came", heard.len());
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\n").unwrap_or_default();
        heard.extend(
            routers
                .iter()
                .filter(|router| text.contains(&router.id))
                .map(|router| router.id.clone()),
        );
    }
}

#[test]
fn d26_pipes_that_nobody_reads_do_not_fill() {
    let (_lab, router, agent) = stage(Release::V29);
    // `start` keeps the pipes open and unread, as a 29 agent does.
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
fn d27_other_addresses_cost_no_process_and_no_truth() {
    let (_lab, router, agent) = stage(Release::V29);
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
    let (_lab, router, agent) = stage(Release::V29);
    let mut monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    monitor.signal(Signal::TERM);
    monitor.wait_until_gone();
    assert!(!router.pid_file().exists());
    assert!(!router.conf_dir.join("ip-monitor").exists());
    // The process that the agent started is in the namespace too, and may be on its way out still.
    wait_for("nobody to be left in the namespace", || router.netns.pids().is_empty().then_some(()));
}

#[test]
fn d32_a_link_that_was_renamed_no_longer_counts() {
    let (_lab, router, agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.ip(&format!("link set {} down", router.link));
    router.netns.ip(&format!("link set {} name other", router.link));
    router.netns.ip(&format!("address add {} dev other", router.cidr));
    stays(Duration::from_millis(300), "backup", || router.state().as_deref() == Some("backup"));
}

#[test]
fn d33_a_peer_address_does_not_confuse_it() {
    let (_lab, router, agent) = stage(Release::V29);
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
    let (_lab, mut router, agent) = stage(Release::V29);
    router.give_to(65534);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            std::fs::File::create(router.conf_dir.join("state")).map(|_| ())
        });
        user.join().unwrap().expect("the agent writes the file too");
    });
}

#[test]
fn d35_a_directory_with_spaces_and_stars_is_a_directory() {
    let (lab, mut router, agent) = stage(Release::V29);
    router.conf_dir = lab.path().join("a b * $(touch x) 'c'");
    std::fs::create_dir(&router.conf_dir).unwrap();
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    agent.wait_for_words(&["backup"]);
}

#[test]
fn d37_it_needs_no_other_program() {
    let (_lab, router, agent) = stage(Release::V29);
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
