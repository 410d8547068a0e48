// SPDX-License-Identifier: Apache-2.0
//! The log: oslo.log's format, in the file and in syslog.

use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::inotify;
use rustix::process::Signal;
use vipwatch_testkit::{Release, wait_for};

use crate::{fixture, subject};

#[test]
fn every_line_has_the_format_of_oslo_log() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("Notified agent");
    for line in router.log().lines() {
        // 2026-11-15 08:58:55.704 7305 DEBUG neutron.agent.l3.keepalived_state_change [-] text
        let words: Vec<&str> = line.splitn(7, ' ').collect();
        assert_eq!(words.len(), 7, "{line}");
        let is_like = |text: &str, pattern: &str| {
            text.len() == pattern.len()
                && text
                    .chars()
                    .zip(pattern.chars())
                    .all(|(c, p)| if p == '0' { c.is_ascii_digit() } else { c == p })
        };
        assert!(is_like(words[0], "0000-00-00") && is_like(words[1], "00:00:00.000"), "{line}");
        assert_eq!(words[2], monitor.pid.to_string());
        assert!(["DEBUG", "INFO", "WARNING", "ERROR"].contains(&words[3]), "{line}");
        assert_eq!(words[4..6], ["neutron.agent.l3.keepalived_state_change", "[-]"]);
    }
}

#[test]
fn without_debug_there_is_one_line_for_a_change() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.debug = false;
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    router.wait_for_log(" is primary: ");
    let log = router.log();
    assert_eq!(log.matches("Notified agent").count(), 1, "{log}");
    assert!(!log.contains("DEBUG"), "{log}");
    assert_eq!(log.matches(" is primary: ").count(), 1, "{log}");
}

#[test]
fn sighup_and_rotation_reopen_the_log() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let log = router.conf_dir.join("neutron-keepalived-state-change.log");
    std::fs::rename(&log, log.with_extension("1")).unwrap();
    monitor.signal(Signal::HUP);
    wait_for("a new log", || log.exists().then_some(()));

    std::fs::rename(&log, log.with_extension("2")).unwrap();
    router.take_vip();
    router.wait_for_log("Wrote router");
    assert!(monitor.is_alive());
}

#[test]
fn every_line_also_goes_to_syslog() {
    let (lab, router, _agent) = fixture(Release::V29);
    // In the test environment /dev/log is a symbolic link to /run/log. Monitors of other tests write to it too; the
    // router's id distinguishes the lines.
    let socket = lab.path().join("log");
    let receiver = UnixDatagram::bind(&socket).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    std::os::unix::fs::symlink(&socket, "/run/log").unwrap();
    let wanted = format!("Wrote router {}", router.id);
    // The kernel queues ten lines: a line of this monitor may be dropped while other monitors write.
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let length = receiver.recv(&mut buffer).expect("no line arrived in time");
            let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if line.contains(&wanted) {
                return line;
            }
        }
    });
    let _monitor = router.start(&subject());
    wait_for("a line of this router", || {
        router.take_vip();
        router.drop_vip();
        reader.is_finished().then_some(())
    });
    let line = reader.join().unwrap();
    // <15>: LOG_USER, debug.
    assert!(
        line.starts_with("<15>") && line.contains("neutron-keepalived-state-change["),
        "{line}"
    );
    std::fs::remove_file("/run/log").unwrap();
}

#[test]
fn no_secret_of_a_config_file_is_logged() {
    let (lab, router, agent) = fixture(Release::V29);
    let config = lab.path().join("neutron.conf");
    let text = b"[DEFAULT]\ndebug = true\ntransport_url = rabbit://user:hunter2@host\n[database]\nconnection = mysql://hunter2\n";
    std::io::Write::write_all(&mut std::fs::File::create(&config).unwrap(), text).unwrap();
    let mut command = router.command(&subject());
    let child = command.arg("--config-file").arg(&config).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("Notified agent");
    assert!(!router.log().contains("hunter2"));
    crate::reap(child);
}

#[test]
fn a_symbolic_link_at_the_log_file_is_not_opened() {
    let (lab, router, agent) = fixture(Release::V29);
    let precious = lab.path().join("precious");
    std::io::Write::write_all(&mut std::fs::File::create(&precious).unwrap(), b"precious").unwrap();
    let log = router.conf_dir.join("neutron-keepalived-state-change.log");
    std::os::unix::fs::symlink(&precious, &log).unwrap();
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert!(monitor.is_alive(), "the monitor runs without its log file");
}

/// Runs `work` and returns the changes of files in `directory`, in order: `(event, name)`.
fn changes_during(directory: &Path, work: impl FnOnce()) -> Vec<(&'static str, String)> {
    let inotify = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&inotify, directory, flags).unwrap();
    work();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&inotify, &mut buffer);
    let mut changes = Vec::new();
    while let Ok(event) = reader.next() {
        let is_write = event.events().contains(inotify::ReadFlags::MODIFY);
        let name = event.file_name().unwrap_or_default().to_string_lossy().into_owned();
        changes.push((if is_write { "write" } else { "replace" }, name));
    }
    changes
}

#[test]
fn the_state_file_is_replaced_before_the_line_about_it_is_written() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.debug = false;
    let mut monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    // The last line about the first state.
    router.wait_for_log("Notified agent");
    let changes = changes_during(&router.conf_dir, || {
        router.take_vip();
        router.wait_for_log(" is primary: ");
        // The kernel reports a write after the data is readable. When the process is gone, it has reported all of them.
        monitor.signal(Signal::KILL);
        monitor.wait_until_gone();
    });
    // The last one: the kernel may report the line about the first state after the watch has begun.
    let position =
        |change, name: &str| changes.iter().rposition(|seen| *seen == (change, name.to_owned()));
    let replaced = position("replace", "state").expect("a new state file");
    let logged = position("write", "neutron-keepalived-state-change.log").expect("a line");
    assert!(replaced < logged, "{changes:?}");
}

/// The kernel queues a few lines for a syslog daemon that reads nothing, and refuses further lines.
#[test]
fn a_syslog_daemon_that_reads_nothing_does_not_block_the_monitor() {
    let (lab, router, agent) = fixture(Release::V29);
    let socket = lab.path().join("log");
    let _unread = UnixDatagram::bind(&socket).unwrap();
    // The monitor gets its own /dev, in which `log` is this socket. Other tests use the normal /dev/log.
    let script = "mkdir \"$0/dev\" && touch \"$0/dev/null\" && mount --bind /dev/null \"$0/dev/null\" \
                  && ln -s \"$0/log\" \"$0/dev/log\" && mount --rbind \"$0/dev\" /dev && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(lab.path());
    let child = command.arg(subject()).args(router.arguments()).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    for _ in 0..50 {
        router.take_vip();
        router.wait_for_state("primary");
        router.drop_vip();
        router.wait_for_state("backup");
    }
    agent.wait_for_word("backup");
    assert!(is_queue_full(&socket), "the monitor logs to this socket");
    router.stop();
    crate::reap(child);
}

fn is_queue_full(socket: &Path) -> bool {
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    let refused = sender.send_to(b"one more", socket).map_err(|error| error.kind());
    refused == Err(std::io::ErrorKind::WouldBlock)
}
