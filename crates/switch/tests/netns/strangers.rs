// SPDX-License-Identifier: Apache-2.0
//! Processes of containers and of other users: nothing of theirs is executed, printed as it is, or stops the rest.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use vipwatch_testkit::monitor::{is_alive, output_of};
use vipwatch_testkit::{Router, run, script, wait_for};

use crate::fixture::{EndOfTest, SwitchLab, executable, pid_of, start_old, text, wait_until_ended};
use crate::replacement::STANDIN;

/// The agent's user.
const USER: u32 = 65534;

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_of_another_user_with_the_command_line_of_a_monitor_is_ignored() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let fake = lab.lab.path().join("neutron-keepalived-state-change");
    script(&fake, "exec 0< /dev/zero; while read -r _; do :; done; sleep 1000");
    let arguments = router.arguments();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(&fake).args(&arguments);
    std::fs::set_permissions(lab.lab.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut child = command.spawn().unwrap();
    let line =
        || std::fs::read_to_string(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
    wait_for("the shell", || line().starts_with("/bin/sh\0").then_some(()));
    let output = output_of(&mut lab.command("status"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text(&output).contains("no monitor runs"), "{}", text(&output));
    assert!(text(&output).contains("ignored: processes"), "{}", text(&output));
}

/// A program that leaves a mark if a program of the host starts it. As a monitor it waits for its end.
const MARKING: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    for (int i = 1; i < count; i++)
        if (strcmp(words[i], "--version") == 0 || strcmp(words[i], "--check") == 0)
            return creat(MARK, 0644) < 0;
    for (;;) pause();
}
"#;

/// Mounts what a program needs below the root directory of a container, and starts a program there as root without
/// capabilities, in process, mount and network namespaces of its own.
const CONTAINER: &str = r#"
root=$1
shift
for directory in usr lib lib64; do
    [ -e "/$directory" ] || continue
    mkdir -p "$root/$directory"
    mount --rbind "/$directory" "$root/$directory"
done
exec chroot "$root" /usr/bin/setpriv --bounding-set=-all --inh-caps=-all "$@"
"#;

/// Starts `MARKING` in a container with the command line of the router's monitor.
fn start_in_container(lab: &SwitchLab, router: &Router, mark: &Path) -> Killed {
    let root = lab.lab.path().join("container");
    std::fs::create_dir(&root).unwrap();
    let source = lab.lab.path().join("marking.c");
    let write = "printf %s \"$1\" > \"$2\"";
    run(Command::new("sh").args(["-c", write, "sh", MARKING]).arg(&source));
    let program = root.join("neutron-keepalived-state-change");
    let define = format!("-DMARK=\"{}\"", mark.display());
    run(Command::new("cc").arg(define).arg("-o").arg(&program).arg(&source));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", CONTAINER]);
    command.arg("sh").arg(&root).arg("/neutron-keepalived-state-change").args(router.arguments());
    let container = Killed(command.spawn().unwrap());
    wait_for("the program in the container", || {
        let pid = vipwatch_testkit::monitor::children(i32::try_from(container.0.id()).unwrap());
        let line = vipwatch_testkit::monitor::command_line(*pid.first()?);
        line.starts_with("/neutron-keepalived-state-change").then_some(())
    });
    container
}

/// Its user id is 0 and its arguments are those of a real monitor.
#[test]
fn a_monitor_in_a_container_is_named_and_neither_executed_nor_touched() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let mark = lab.lab.path().join("mark");
    let container = start_in_container(&lab, &router, &mark);
    let pid = vipwatch_testkit::monitor::children(i32::try_from(container.0.id()).unwrap())[0];

    let output = output_of(&mut lab.command("status"));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("it runs in a container"), "{}", text(&output));
    assert!(!mark.exists(), "`status` has executed a program of a container");

    // The monitor of the same router outside of the container is replaced.
    let output = lab.to_vipwatch("");
    let _end = EndOfTest(&router);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("inside the container of the L3 agent"), "{}", text(&output));
    assert_eq!(executable(pid_of(&router)), lab.new);
    wait_until_ended(old.pid);
    assert!(is_alive(pid) && !mark.exists(), "{}", text(&output));
}

/// The directory of the agent's user, with a link to a program of root under the name of a monitor.
fn links_of_the_agents_user(lab: &SwitchLab, program: &Path) -> PathBuf {
    let links = lab.lab.path().join("links");
    std::fs::create_dir(&links).unwrap();
    symlink(program, links.join("neutron-keepalived-state-change")).unwrap();
    std::os::unix::fs::chown(&links, Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(lab.lab.path(), PermissionsExt::from_mode(0o755)).unwrap();
    links
}

/// When it ends, the fake monitor puts a program of its own behind the link, and makes the new monitor fail.
const EXCHANGING: &str = r#"
for word; do
    case $word in
        --pid_file=*) printf %s $$ > "${word#*=}" ;;
        --conf_dir=*) conf_dir=${word#*=} ;;
    esac
done
printf backup > "$conf_dir/state"
trap 'ln -sfn "$LINKS/own" "$LINKS/neutron-keepalived-state-change"; mv "$LINKS/../ha_confs" "$LINKS/../gone"; exit' TERM
while :; do sleep 1000 & wait; done
"#;

#[test]
fn the_way_back_never_executes_a_link_that_the_agents_user_has_exchanged() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    router.give_to(USER);
    let [program, standin] = ["exchanging", "standin"].map(|name| lab.roots.path().join(name));
    script(&program, EXCHANGING);
    script(&standin, STANDIN);
    let links = links_of_the_agents_user(&lab, &program);
    let mark = lab.roots.path().join("mark");
    script(&links.join("own"), &format!("id -u > {}", mark.display()));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(links.join("neutron-keepalived-state-change")).args(router.arguments());
    let mut fake = Killed(command.env("LINKS", &links).spawn().unwrap());
    router.wait_for_state("backup");
    wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));

    let mut command = lab.command("to-vipwatch --timeout 2");
    let output = output_of(command.arg("--program").arg(&standin).arg("--program").arg(&lab.new));
    let _end = EndOfTest(&router);
    wait_for("the fake monitor to end", || fake.0.try_wait().unwrap());
    let link = std::fs::read_link(links.join("neutron-keepalived-state-change")).unwrap();
    assert_eq!(link, links.join("own"), "the link was exchanged: {}", text(&output));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(!mark.exists(), "{}", text(&output));
    assert!(text(&output).contains("old program"), "the way back was used: {}", text(&output));
}

#[test]
fn escape_sequences_in_the_arguments_of_a_process_do_not_reach_the_terminal() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    router.give_to(USER);
    let program = lab.roots.path().join("neutron-keepalived-state-change");
    script(&program, "exec 0< /dev/zero; while read -r _; do :; done; sleep 1000");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(&program).args(router.arguments());
    let fake =
        Killed(command.arg("--pid_file=/\x1b]0;title\x07\u{9b}2J\u{202e}\nrow").spawn().unwrap());
    let line = || vipwatch_testkit::monitor::command_line(i32::try_from(fake.0.id()).unwrap());
    wait_for("the shell", || line().starts_with("/bin/sh").then_some(()));
    for words in
        ["status", "status --json", "to-vipwatch --dry-run", "to-vipwatch --dry-run --json"]
    {
        let mut command = lab.command(words);
        if words.starts_with("to-") {
            command.arg("--program").arg(&lab.new);
        }
        let text = text(&output_of(&mut command));
        assert!(text.contains("title"), "{words}: {text}");
        let is_harmful = |c: char| matches!(c, '\x1b' | '\x07' | '\u{9b}' | '\u{202e}');
        assert!(!text.contains(is_harmful) && !text.contains("\nrow"), "{words}: {text:?}");
    }
}
