//! Kernels from 3.10 on: what they lack is taken away from the program here.

use std::ffi::OsString;
use std::process::Command;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Release, Router};

use crate::{stage, subject};

/// `/proc` as seen by the program: a directory with the given `ln -s` commands run in it.
fn with_proc(links: &str, router: &Router) -> Command {
    let script = format!(
        "mkdir \"$0/proc\" && mount --bind /proc \"$0/proc\" && mount -t tmpfs tmpfs /proc && cd /proc && {links} \
         && exec \"$@\""
    );
    let agents = router.command(&subject());
    let mut command = Command::new("unshare");
    let words = ["--mount", "sh", "-c"].map(OsString::from);
    command.args(words).arg(script).arg(&router.state_path);
    command.arg(agents.get_program()).args(agents.get_args());
    command
}

/// Linux 3.17 brought `/proc/thread-self`.
#[test]
fn without_thread_self_a_train_agent_is_told_its_own_word() {
    let (_lab, router, agent) = stage(Release::V15);
    router.take_vip();
    let output = output_of(&mut with_proc("ln -s \"$0/proc/self\" self", &router));
    assert!(output.status.success(), "{output:?}");
    agent.wait_for_words(&["master"]);
    router.wait_for_state("master");
    router.stop();
}

#[test]
fn a_namespace_that_cannot_be_told_is_an_error_and_not_outside() {
    let (_lab, router, agent) = stage(Release::V15);
    let output = output_of(&mut with_proc("true", &router));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot tell which network namespace this process is in"), "{said}");
    assert!(said.contains("primary_word"), "{said}");
    assert_eq!(agent.count(), 0, "no word is sent");
}
