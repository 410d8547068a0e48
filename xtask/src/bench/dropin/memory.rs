//! What each instance takes: memory and processes, bare and as a 29 agent starts it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, pause};

use super::{PeerPrograms, Running, Who, router_for, say, set, spin};
use crate::Stop;
use crate::bench::measure::{family, memory};
use crate::bench::report::{BenchTarget, Row};

/// Memory and processes of each of many.
#[expect(clippy::cast_precision_loss, reason = "a count of processes")]
pub(super) fn footprint(homes: &PeerPrograms, count: u32, rows: &mut Vec<Row>) {
    let names = ["RSS", "PSS", "USS"];
    let mut table = names.map(|name| Row::new(format!("{name} each, {count} instances"), "KiB"));
    let mut processes = Row::new(format!("processes each, {count} instances"), "");
    if count == 50 {
        table[1].target = Some(BenchTarget::AtMost(80.0));
        table[2].target = Some(BenchTarget::AtMost(64.0));
    }
    for who in Who::ALL {
        if who == Who::Daemon && count > 1 {
            // A hundred megabytes and three seconds each: one tells as much.
            continue;
        }
        say(&format!("footprint of {count}"), who);
        let lab = Lab::new();
        let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let routers: Vec<_> = (1..=count).map(|number| router_for(who, &lab, number)).collect();
        let running: Vec<_> =
            routers.iter().map(|router| Running::start(homes, who, router)).collect();
        for router in &routers {
            spin(Duration::from_mins(1), || router.state());
            router.take_vip();
        }
        for router in &routers {
            spin(Duration::from_mins(1), || {
                (router.state().as_deref() == Some("primary")).then_some(())
            });
        }
        pause(Duration::from_secs(1));
        let pids: Vec<i32> = running.iter().flat_map(Running::pids).collect();
        let sum = memory(&pids);
        let share = f64::from(count);
        for (row, value) in table.iter_mut().zip([sum.rss, sum.pss, sum.uss]) {
            set(row, who, Some(value / share));
        }
        set(&mut processes, who, Some(pids.len() as f64 / share));
    }
    rows.extend(table);
    rows.push(processes);
}

/// The same, with everything that stays alive when a 29 agent starts it through sudo and
/// rootwrap.
#[expect(clippy::cast_precision_loss, reason = "a count of processes")]
pub(super) fn wrapped(homes: &PeerPrograms, count: u32, rows: &mut Vec<Row>) {
    let mut memory_row =
        Row::new(format!("PSS each through sudo and rootwrap, {count} instances"), "KiB");
    let mut processes =
        Row::new(format!("processes each through sudo and rootwrap, {count} instances"), "");
    for who in [Who::Ours, Who::Script] {
        say("through sudo and rootwrap", who);
        let lab = Lab::new();
        let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let rootwrap = match rootwrap(homes, who, lab.path()) {
            Ok(rootwrap) => rootwrap,
            Err(Stop(reason)) => {
                eprintln!("bench: not measured through rootwrap: {reason}");
                return;
            }
        };
        let routers: Vec<_> = (1..=count).map(|number| router_for(who, &lab, number)).collect();
        let mut spawned = Vec::new();
        let mut pids = Vec::new();
        for router in &routers {
            let mut command = Command::new("sudo");
            command.arg(homes.script.join("bin/neutron-rootwrap")).arg(&rootwrap);
            command.arg("neutron-keepalived-state-change").args(router.arguments());
            // As the agent does: pipes that nobody reads.
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            spawned.push(command.spawn().expect("sudo starts"));
            if spin(Duration::from_secs(30), || router.state()).is_none() {
                eprintln!("bench: not measured through rootwrap: the monitor did not start");
                return;
            }
        }
        pause(Duration::from_secs(1));
        for (child, router) in spawned.iter_mut().zip(&routers) {
            pids.extend(read_pid(&router.pid_file()).map(family).into_iter().flatten());
            if matches!(child.try_wait(), Ok(None)) {
                pids.extend(family(i32::try_from(child.id()).expect("a pid")));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        set(&mut memory_row, who, Some(memory(&pids).pss / f64::from(count)));
        set(&mut processes, who, Some(pids.len() as f64 / f64::from(count)));
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        for mut child in spawned {
            let _ = child.wait();
        }
    }
    rows.extend([memory_row, processes]);
}

/// A rootwrap configuration that finds `who` first.
fn rootwrap(homes: &PeerPrograms, who: Who, directory: &Path) -> Result<PathBuf, Stop> {
    let bin = directory.join("bin");
    std::fs::create_dir(&bin)?;
    let program = match who {
        Who::Ours => homes.subject.clone(),
        Who::Script | Who::Daemon | Who::Limit => {
            homes.script.join("bin/neutron-keepalived-state-change")
        }
    };
    std::os::unix::fs::symlink(program, bin.join("neutron-keepalived-state-change"))?;
    let filters = directory.join("filters");
    std::fs::create_dir(&filters)?;
    let write = |path: &Path, text: String| -> Result<(), Stop> {
        std::io::Write::write_all(&mut std::fs::File::create(path)?, text.as_bytes())?;
        Ok(())
    };
    write(
        &filters.join("l3.filters"),
        "[Filters]\nmonitor: CommandFilter, neutron-keepalived-state-change, root\n".to_owned(),
    )?;
    let config = directory.join("rootwrap.conf");
    write(
        &config,
        format!(
            "[DEFAULT]\nfilters_path={}\nexec_dirs={}\nuse_syslog=False\n",
            filters.display(),
            bin.display()
        ),
    )?;
    let probe = Command::new("sudo").args(["-n", "true"]).output()?;
    if !probe.status.success() {
        return Err(Stop("sudo does not work in here".to_owned()));
    }
    Ok(config)
}
