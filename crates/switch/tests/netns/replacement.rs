// SPDX-License-Identifier: Apache-2.0
//! Monitors are replaced and verified; nothing else changes.

use vipwatch_testkit::{Release, script};

use crate::fixture::{EndOfTest, SwitchLab, executable, pid_of, start_old, text, wait_until_ended};

#[test]
fn every_monitor_of_another_version_is_replaced_and_reports_to_the_agent() {
    let lab = SwitchLab::new();
    let routers = [1, 2, 3].map(|number| lab.router(number));
    let old: Vec<_> = routers.iter().map(|router| start_old(&lab, router)).collect();
    routers[1].take_vip();
    routers[1].wait_for_state("primary");
    let reports = lab.agent.as_ref().unwrap().count();

    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    let _ends = routers.each_ref().map(EndOfTest);
    for (router, old) in routers.iter().zip(&old) {
        assert_ne!(pid_of(router), old.pid);
        assert_eq!(executable(pid_of(router)), lab.new);
        wait_until_ended(old.pid);
    }
    let states = routers.each_ref().map(vipwatch_testkit::Router::state);
    assert_eq!(
        states.each_ref().map(Option::as_deref),
        [Some("backup"), Some("primary"), Some("backup")]
    );
    assert!(lab.agent.as_ref().unwrap().count() >= reports + 3);
    assert_eq!(lab.log().matches(" is verified: ").count(), 3, "{}", lab.log());
    assert_eq!(lab.record_count(), 0);

    // A change after the replacement reaches the agent.
    routers[0].take_vip();
    routers[0].wait_for_state("primary");

    let again = lab.to_vipwatch("--json");
    let document = String::from_utf8_lossy(&again.stdout);
    assert_eq!(document.matches("\"unchanged\"").count(), 3, "{}", text(&again));
}

#[test]
fn with_again_a_monitor_of_the_same_version_reads_its_configuration_anew() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    let config = lab.lab.path().join("extra.conf");
    script(&config, "");
    router.extra = vec![format!("--config-file={}", config.display())];
    router.take_vip();
    let old = router.start(&lab.new);
    router.wait_for_state("primary");
    router.wait_for_log("Notified agent");
    let write = "printf '[vipwatch]\nprimary_word = master\n' > \"$1\"";
    vipwatch_testkit::run(std::process::Command::new("sh").args(["-c", write, "sh"]).arg(&config));
    let output = lab.to_vipwatch("");
    assert!(output.status.success() && old.is_alive(), "{}", text(&output));
    let output = lab.to_vipwatch("--again");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    assert_eq!(router.state().as_deref(), Some("master"));
    wait_until_ended(old.pid);
}

#[test]
fn a_dry_run_changes_nothing_and_names_what_it_would_do() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let output = lab.to_vipwatch("--dry-run");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("would be replaced"), "{}", text(&output));
    assert!(old.is_alive() && pid_of(&router) == old.pid);
    assert!(!lab.log_path().exists() && !lab.records().exists());
}

#[test]
fn a_monitor_of_the_agents_user_is_replaced_and_runs_as_that_user() {
    const USER: u32 = 65534;
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    router.give_to(USER);
    router.take_vip();
    let old = router.start(&lab.old);
    router.wait_for_state("primary");
    router.wait_for_log("Notified agent");
    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    wait_until_ended(old.pid);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid_of(&router))).unwrap();
    assert!(status.contains(&format!("\nUid:\t{USER}\t{USER}")), "{status}");
    let environment = std::fs::read(format!("/proc/{}/environ", pid_of(&router))).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    // The agent's user could have put any other variable there, and the program starts as root.
    assert!(environment.contains("PROCESS_TAG=") && !environment.contains("VIPWATCH_LAB"));
}

/// Agents up to 15 start a monitor with `ip netns exec`, and the drop-in recognises their word by that.
#[test]
fn a_monitor_that_the_agent_has_started_inside_the_namespace_is_started_there_again() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    router.release = Release::V15;
    router.take_vip();
    let old = router.start(&lab.old);
    router.wait_for_state("master");
    router.wait_for_log("Notified agent");
    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    wait_until_ended(old.pid);
    assert_eq!(router.state().as_deref(), Some("master"));
    assert!(lab.log().contains("starting: ip netns exec"), "{}", lab.log());
}

/// A service with `PrivateTmp=` has mounts of its own, and so have the monitors that it starts.
#[test]
fn a_monitor_with_mounts_of_its_own_is_not_taken_for_one_inside_the_namespace() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    router.release = Release::V17;
    router.take_vip();
    let mut command = std::process::Command::new("unshare");
    command.arg("--mount").arg(&lab.old).args(router.arguments());
    vipwatch_testkit::run(&mut command);
    router.wait_for_state("primary");
    router.wait_for_log("Notified agent");
    let output = lab.to_vipwatch("--again");
    let _end = EndOfTest(&router);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!lab.log().contains("ip netns exec"), "{}", lab.log());
    assert_eq!(router.state().as_deref(), Some("primary"));
}

#[test]
fn only_the_named_router_is_replaced() {
    let lab = SwitchLab::new();
    let routers = [1, 2].map(|number| lab.router(number));
    let old: Vec<_> = routers.iter().map(|router| start_old(&lab, router)).collect();
    let output = lab.to_vipwatch(&format!("--router {}", routers[1].id));
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&routers[1]);
    assert!(old[0].is_alive() && !old[1].is_alive());
}

#[test]
fn the_new_monitor_has_the_session_directory_and_environment_of_a_service() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    let pid = pid_of(&router);
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap();
    let environment = String::from_utf8_lossy(&read("environ")).into_owned();
    // Releases 22 to 28 pass this tag, and container tools look for it.
    assert!(
        environment.contains(&format!(
            "PROCESS_TAG=neutron-keepalived-state-change-monitor-{}",
            router.id
        ))
    );
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    assert!(command.contains(&router.arguments().join(" ")), "{command}");
    let program = command.split(' ').next();
    assert_eq!(program, lab.new.to_str(), "agents look for the name of the program");
    assert_eq!(String::from_utf8_lossy(&read("comm")), "neutron-keepali\n");
    let parent = vipwatch_testkit::monitor::parent(pid).unwrap();
    assert_ne!(parent, i32::try_from(std::process::id()).unwrap(), "it outlives the switch");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert_eq!(String::from_utf8_lossy(&read("cgroup")), own);
}

#[test]
fn status_shows_program_version_and_a_state_that_is_wrong() {
    let lab = SwitchLab::new();
    let routers = [1, 2].map(|number| lab.router(number));
    let monitors = [start_old(&lab, &routers[0]), routers[1].start(&lab.new)];
    routers[1].wait_for_state("backup");
    // A monitor that does not run its loop does not see the address.
    monitors[1].signal(rustix::process::Signal::STOP);
    routers[1].take_vip();
    let status = |words: &str| {
        let mut command = lab.command(words);
        text(&vipwatch_testkit::monitor::output_of(command.arg("--program").arg(&lab.new)))
    };
    let document = status("status --json");
    // The installed program, and both monitors.
    assert_eq!(document.matches("\"program\": \"vipwatch\"").count(), 3, "{document}");
    // The installed program, and the monitor that runs it. The switch does not execute the other one.
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert_eq!(document.matches(&version).count(), 2, "{document}");
    assert_eq!(document.matches("disagrees with the kernel").count(), 1, "{document}");
    let table = status("status");
    assert!(table.contains(&routers[0].id) && table.contains("ROUTER"), "{table}");
    assert_eq!(table.matches("vipwatch        other").count(), 1, "{table}");
}

/// A stand-in for Neutron's script: it writes pid and state, then waits.
pub(crate) const STANDIN: &str = r#"
while [ $# -gt 0 ]; do
    case $1 in
        --pid_file) pid_file=$2; shift ;;
        --conf_dir) conf_dir=$2; shift ;;
    esac
    shift
done
printf backup > "$conf_dir/state"
printf %s $$ > "$pid_file"
sleep 1000 &
wait
"#;

#[test]
fn a_script_gets_its_values_as_words_of_their_own_and_leaves_no_process_behind() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let directory = lab.lab.path().join("script");
    std::fs::create_dir(&directory).unwrap();
    let program = directory.join("neutron-keepalived-state-change");
    script(&program, STANDIN);
    let output = lab.to_neutron(&program, "");
    assert!(output.status.success(), "{}", text(&output));
    let shell = pid_of(&router);
    let children = vipwatch_testkit::monitor::children(shell);
    assert_eq!(children.len(), 1, "the stand-in runs `sleep`");
    // The agent has received the state from the switch: the script does not report its first state.
    assert!(lab.log().contains("agent own-report"), "{}", lab.log());

    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    wait_until_ended(shell);
    wait_until_ended(children[0]);
    assert_eq!(executable(pid_of(&router)), lab.new);
}

/// Installs the package's files in mounts of the shell, then runs the switch there in both directions. After each run, and
/// after one for a single router, it prints where the agent's name leads to.
const INSTALLED: &str = r#"
mount -t tmpfs tmpfs "$1"
mkdir "$1/u" "$1/w" "$1/lu" "$1/lw" "$1/su" "$1/sw"
mount -t overlay -o "lowerdir=/usr/bin,upperdir=$1/u,workdir=$1/w" overlay /usr/bin
mount -t overlay -o "lowerdir=/usr/lib,upperdir=$1/lu,workdir=$1/lw" overlay /usr/lib
mount -t overlay -o "lowerdir=/var/lib,upperdir=$1/su,workdir=$1/sw" overlay /var/lib
name=neutron-keepalived-state-change
mkdir -p /usr/lib/vipwatch
install -m 0755 "$2" /usr/lib/vipwatch/neutron-setup
install -m 0755 "$3" "/usr/lib/vipwatch/$name"
install -m 0755 "$4" "/usr/bin/$name.neutron"
ln -sf "/usr/lib/vipwatch/$name" "/usr/bin/$name"
router=$5 switch=$6
shift 6
"$switch" to-neutron --router "$router" "$@"
echo "single: $(readlink "/usr/bin/$name")"
"$switch" to-vipwatch "$@"
"$switch" to-neutron "$@"
echo "back: $(readlink "/usr/bin/$name")"
"$switch" status "$@" | grep ^agent
"$switch" to-vipwatch "$@"
echo "there: $(readlink "/usr/bin/$name")"
"#;

/// The agent looks for dead monitors at any moment, and starts the program to which the name leads.
#[test]
fn with_the_package_the_agents_name_leads_to_the_program_that_is_wanted() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let [mounts, program] = ["mounts", "standin"].map(|name| lab.lab.path().join(name));
    std::fs::create_dir(&mounts).unwrap();
    script(&program, STANDIN);
    let setup = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/neutron/neutron-setup");
    let switch = lab.command("");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", INSTALLED, "sh"]);
    command.arg(&mounts).arg(setup).arg(&lab.new).arg(&program).arg(&router.id);
    command.arg(switch.get_program()).args(switch.get_args());
    let output = vipwatch_testkit::monitor::output_of(&mut command);
    let _end = EndOfTest(&router);
    assert!(output.status.success(), "{}", text(&output));
    let vipwatch = "/usr/lib/vipwatch/neutron-keepalived-state-change";
    let neutron = "neutron-keepalived-state-change.neutron";
    let agent = "agent     listens on its socket; it starts neutron-script";
    let expected = format!("single: {vipwatch}\nback: {neutron}\n{agent}\nthere: {vipwatch}\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
}
