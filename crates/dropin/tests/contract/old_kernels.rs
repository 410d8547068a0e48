// SPDX-License-Identifier: Apache-2.0
//! Kernels from 3.10 on: the tests hide the parts of `/proc` that old kernels do not have.

use std::ffi::OsString;
use std::process::Command;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Release, Router};

use crate::{fixture, subject};

/// The monitor's command with a `/proc` that contains only what the shell command `links` creates in it.
fn with_proc(links: &str, router: &Router) -> Command {
    let script = format!(
        "mkdir \"$0/proc\" && mount --bind /proc \"$0/proc\" && mount -t tmpfs tmpfs /proc && cd /proc && {links} \
         && exec \"$@\""
    );
    let agents = router.command(&subject());
    let mut command = Command::new("unshare");
    let arguments = ["--mount", "sh", "-c"].map(OsString::from);
    command.args(arguments).arg(script).arg(&router.state_path);
    command.arg(agents.get_program()).args(agents.get_args());
    command
}

/// `/proc/thread-self` exists since Linux 3.17.
#[test]
fn without_proc_thread_self_a_train_agent_gets_the_word_master() {
    let (_lab, router, agent) = fixture(Release::V15);
    router.take_vip();
    let output = output_of(&mut with_proc("ln -s \"$0/proc/self\" self", &router));
    assert!(output.status.success(), "{output:?}");
    agent.wait_for_words(&["master"]);
    router.wait_for_state("master");
    router.stop();
}

#[test]
fn an_unknown_current_namespace_is_an_error() {
    let (_lab, router, agent) = fixture(Release::V15);
    let output = output_of(&mut with_proc("true", &router));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot find the network namespace of this process"), "{stderr}");
    assert!(stderr.contains("primary_word"), "{stderr}");
    assert_eq!(agent.count(), 0, "no request is sent");
}
