// SPDX-License-Identifier: Apache-2.0
//! The facts about the keepalived of one instance, for the audit.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vipwatch_api::KeepalivedItem;
use vipwatch_core::audit::SETTLE;
use vipwatch_core::keepalived::{StartupDelay, has_secret, without_secrets};
use vipwatch_core::keepalived_process::{
    KeepalivedFacts, KeepalivedPresence, PidFileStranger, RunningKeepalived, VrrpChild,
};
use vipwatch_linux::clock::Stamp;
use vipwatch_linux::process_table as processes;

use super::keepalived::{is_pid_of, read_pid};
use super::{EndRecord, KeepalivedProcess, ProcessView, is_router};
use crate::discovery::{InstanceConfig, Origin, PendingEdit};
use crate::event::time;
use crate::witness::expected_down_interval;

/// The facts about the keepalived of an instance, and since when its processes are as they are.
#[derive(Debug)]
pub(crate) struct DatedKeepalivedFacts {
    pub(crate) facts: KeepalivedFacts,
    /// `None` if it is not known.
    pub(crate) since: Option<Stamp>,
}

/// Gathers the facts; `None` for an instance that is in no file of keepalived. `pending` is why the content of its file is
/// not in use.
pub(crate) fn keepalived_facts(
    view: &ProcessView,
    instance: &InstanceConfig,
    pending: Option<PendingEdit>,
) -> Option<DatedKeepalivedFacts> {
    if instance.origin == Origin::Own {
        return None;
    }
    let running = view.of_instance(instance);
    let (presence, since) = match (running, view.ended_of(instance)) {
        (Some(process), _) => {
            let running = running_facts(process, &instance.file, pending);
            (KeepalivedPresence::Running(running), Some(process.state_since))
        }
        (None, Some(ended)) => {
            let EndRecord { pid, at, .. } = ended.end;
            (KeepalivedPresence::Gone { pid, at: time(at.wall).to_string() }, Some(at))
        }
        (None, None) => (not_found(view), view.since),
    };
    let config = (!is_router(instance)).then(|| instance.file.display().to_string());
    let recent_starts = view.recent_starts_of(instance);
    let stranger = stranger(view, instance, running.map(|process| &**process));
    let facts = KeepalivedFacts { config, presence, recent_starts, stranger };
    Some(DatedKeepalivedFacts { facts, since })
}

impl ProcessView {
    /// Whether an instance has not had the time to take over, because keepalived holds back all its instances after its
    /// start or that of the machine.
    pub(crate) fn is_held_back(&self, instance: &InstanceConfig) -> bool {
        let delay = instance.vrrp.startup_delay;
        let Some(process) = self.of_instance(instance).filter(|_| delay != StartupDelay::default())
        else {
            return false;
        };
        // A VRRP child that was started again waits again.
        let started = processes::started_after_boot(process.vrrp_child_id().unwrap_or(process.id));
        let ends = started.saturating_add(delay.after_start).max(delay.after_boot);
        let needed = expected_down_interval(instance) + SETTLE;
        processes::since_boot() < ends.saturating_add(needed)
    }

    /// Whether no keepalived receives adverts for an instance: it or its VRRP child has ended, or was never seen.
    pub(crate) fn has_ended(&self, instance: &InstanceConfig) -> bool {
        match self.of_instance(instance) {
            _ if instance.origin == Origin::Own => false,
            Some(process) => process.vrrp_child == VrrpChild::Missing,
            None => self.ended_of(instance).is_some() || self.unreadable == 0,
        }
    }

    /// The document of the keepalived of an instance; `None` for an instance that is in no file of keepalived.
    pub(crate) fn item(&self, instance: &InstanceConfig) -> Option<KeepalivedItem> {
        let state = keepalived_facts(self, instance, None)?.facts.state();
        let process = self.of_instance(instance);
        let vrrp_pid = process.and_then(|process| match process.vrrp_child {
            VrrpChild::Present { pid, .. } => Some(pid),
            VrrpChild::Missing | VrrpChild::Unknown => None,
        });
        Some(KeepalivedItem {
            state: state.to_string(),
            pid: process.map(|process| process.id.pid),
            vrrp_pid,
            started: process.map(|process| time(process.started)),
        })
    }
}

/// The presence of a keepalived of which no process was found. A process that cannot be read may be it.
fn not_found(view: &ProcessView) -> KeepalivedPresence {
    match view.unreadable {
        0 => KeepalivedPresence::NotFound,
        count => KeepalivedPresence::Unknown(format!(
            "the executable of {count} processes named keepalived cannot be read"
        )),
    }
}

fn running_facts(
    process: &KeepalivedProcess,
    file: &Path,
    pending: Option<PendingEdit>,
) -> RunningKeepalived {
    // Discovery compares settings, whatever the clocks say, and reads no copy of a router's keepalived.
    let (loaded_at, is_file_refused) = match pending {
        Some(PendingEdit::NotLoaded { loaded_at, is_refused }) => (Some(loaded_at), is_refused),
        _ => (None, false),
    };
    let outdated_since = loaded_at.or_else(|| process.outdated_since(file));
    RunningKeepalived {
        pid: process.id.pid,
        since: seconds(process.started),
        suspension: process.suspension,
        vrrp_child: process.vrrp_child,
        outdated_since: outdated_since.map(seconds),
        is_file_refused,
    }
}

/// A time without a fraction of a second: the start of a process is known to one hundredth.
fn seconds(at: SystemTime) -> String {
    let millis = vipwatch_linux::clock::unix_millis(at);
    vipwatch_api::timestamp_from_millis(millis - millis.rem_euclid(1000)).to_string()
}

/// A pid file of the instance's keepalived that names a living process which is not it.
fn stranger(
    view: &ProcessView,
    instance: &InstanceConfig,
    process: Option<&KeepalivedProcess>,
) -> Option<PidFileStranger> {
    if process.is_none() && view.ended_of(instance).is_some_and(|ended| ended.is_foreign) {
        return None;
    }
    let of_router = if is_router(instance) { router_pid_files(instance) } else { Vec::new() };
    let ended = view.ended_of(instance).map(|ended| &*ended.pid_files).unwrap_or_default();
    let of_process = process.map_or(ended, |process| &*process.pid_files);
    of_router.iter().chain(of_process).find_map(|file| {
        let pid = read_pid(file)?;
        if process.is_some_and(|process| is_pid_of(process.id.pid, pid)) {
            return None;
        }
        let program = program(pid)?;
        // Another keepalived may use the default file after this one, which has a file of its own or none.
        let is_keepalived = view.running.values().flatten().any(|other| other.id.pid == pid);
        if is_keepalived && process.is_some() {
            return None;
        }
        Some(PidFileStranger { file: file.display().to_string(), pid, program })
    })
}

/// The program of a living process; `None` if there is no such process.
fn program(pid: u32) -> Option<String> {
    let stat = processes::stat(pid).ok()?;
    if stat.state == processes::RunState::Ended || !processes::is_process(pid) {
        return None;
    }
    let executable = processes::executable(pid).ok();
    let name = executable.map(|path| path.display().to_string());
    let name = name.or_else(|| processes::name(pid).ok())?;
    Some(vipwatch_core::escape_untrusted(&name))
}

/// The files in which Neutron's agent has keepalived write its pid: `ha_confs/ID.pid.keepalived`, in older releases
/// `ha_confs/ID.pid`.
fn router_pid_files(instance: &InstanceConfig) -> Vec<PathBuf> {
    let ha_confs = instance.file.parent().and_then(Path::parent);
    let files = |ha_confs: &Path| {
        ["pid.keepalived", "pid"].map(|end| ha_confs.join(format!("{}.{end}", instance.id)))
    };
    ha_confs.map(files).into_iter().flatten().collect()
}

/// Whether a configuration has the same lines as keepalived's copy of it. The copy has no comments and no indentation, and
/// the lines of included files, each after a comment with its name. Passwords and keys are not compared.
///
/// LIMIT: a change in an included file is not seen here. Discovery sees one of settings. Where a password is a definition
/// (`auth_pass $PASS`), no definition is compared.
///
/// BOUND: one line of each text. Their author may be a container.
pub(super) fn is_same_text(copy: &str, file: &str) -> bool {
    let is_defined = |line: &str| line.contains('$') && has_secret(line);
    let hides = copy.lines().chain(file.lines()).any(is_defined);
    let mut rest = compared_lines(copy, hides);
    // Included lines stand between those of the file.
    let is_in_order = compared_lines(file, hides).all(|line| rest.any(|other| other == line));
    let count = |text| compared_lines(text, hides).count();
    is_in_order && (file.contains("include") || count(file) == count(copy))
}

/// The lines that are compared, without comments, secrets and includes.
fn compared_lines(text: &str, hides_definitions: bool) -> impl Iterator<Item = String> {
    let lines = text.lines().map(without_comment).filter(|line| !line.is_empty());
    let lines = lines.map(move |line| match line.split_once('=') {
        Some((name, value))
            if line.starts_with('$') && (hides_definitions || has_secret(value)) =>
        {
            name.to_owned()
        }
        _ => without_secrets(&line),
    });
    lines.filter(|line| !line.starts_with("include"))
}

/// A line without its comment, and with single spaces.
fn without_comment(line: &str) -> String {
    let mut is_quoted = false;
    let end = line.find(|c: char| {
        is_quoted ^= c == '"';
        !is_quoted && matches!(c, '#' | '!')
    });
    let words = line[..end.unwrap_or(line.len())].split_whitespace();
    let text = words.fold(String::new(), |text, word| text + word + " ");
    text.trim_end().to_owned()
}

#[cfg(test)]
impl ProcessView {
    /// A keepalived with the configuration `file`. Parent and VRRP child started at these times after the boot.
    pub(crate) fn running_since(
        file: &Path,
        parent: std::time::Duration,
        child: std::time::Duration,
    ) -> Self {
        let per_second = u128::from(rustix::param::clock_ticks_per_second());
        let started = |since: std::time::Duration| {
            u64::try_from(since.as_millis() * per_second / 1000).unwrap()
        };
        let id = processes::ProcessId { pid: 7, started: started(parent) };
        let vrrp_child = VrrpChild::Present { pid: 8, suspension: None };
        let process = KeepalivedProcess {
            id,
            started: processes::start_time(id),
            command_line: vipwatch_core::keepalived::CommandLine::parse([]),
            config: file.to_owned(),
            file: file.to_owned(),
            version: None,
            is_foreign: false,
            is_followed: true,
            netns: super::ProcessNetns::Own,
            pid_files: Box::default(),
            children: vec![processes::ProcessId { pid: 8, started: started(child) }],
            suspension: None,
            vrrp_child,
            state_since: processes::start_stamp(id),
            last_end: None,
            resumed_at: None,
            loaded: None,
            is_outdated: false,
        };
        let running = [(file.to_owned(), vec![std::sync::Arc::new(process)])].into();
        Self { running, count: 1, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "! head\nglobal_defs {\n  router_id \"a # b\"  # note\n}\ninclude x.conf\n\
                        vrrp_instance A {\n\tinterface  eth0\n}\n";
    const COPY: &str = "# /etc/k.conf\nglobal_defs {\nrouter_id \"a # b\"\n}\n\n# x.conf\n\
                        vrrp_instance B {\n}\n!\nvrrp_instance A {\ninterface eth0\n}\n!\n";

    #[test]
    fn comments_indentation_and_included_lines_are_no_difference() {
        assert!(is_same_text(COPY, FILE));
        assert!(is_same_text(COPY, &FILE.replace("# note", "# another note")));
    }

    #[test]
    fn a_changed_password_or_key_is_no_difference() {
        const COPY: &str = "vrrp_instance A {\nauthentication {\nauth_type PASS\nauth_pass old\n}\n\
                            auth_hmac {\nkey 7 hex:00ff\n}\n}\n";
        assert!(is_same_text(COPY, &COPY.replace("old", "\"another # one\"")));
        assert!(is_same_text(COPY, &COPY.replace("hex:00ff", "hex:0000ffff")));
        assert!(!is_same_text(COPY, &COPY.replace("key 7", "key 8")));
        let defined = format!("$PASS=old\n{}", COPY.replace("auth_pass old", "auth_pass $PASS"));
        assert!(is_same_text(&defined, &defined.replace("=old", "=new")));
        let in_one_line =
            defined.replace("authentication {\nauth_type PASS\n", "authentication { ");
        let in_one_line = in_one_line.replace("$PASS\n}", "$PASS }");
        assert!(in_one_line.contains("{ auth_pass $PASS }"), "{in_one_line}");
        assert!(is_same_text(&in_one_line, &in_one_line.replace("=old", "=new")));
        let defined = format!("$K=key 7 hex:00ff\n{}", COPY.replace("key 7 hex:00ff", "$K"));
        assert!(is_same_text(&defined, &defined.replace("00ff", "0000ffff")));
        let unused = format!("$WEIGHT=old\n{COPY}");
        assert!(!is_same_text(&unused, &unused.replace("=old", "=new")));
        assert!(!is_same_text(COPY, &COPY.replace("auth_pass old\n", "")));
    }

    #[test]
    fn a_changed_added_or_removed_line_is_a_difference() {
        assert!(!is_same_text(COPY, &FILE.replace("eth0", "eth1")));
        assert!(!is_same_text(
            COPY,
            &FILE.replace("}\ninclude", "}\nvrrp_sync_group G {\n}\ninclude")
        ));
        let copy = "vrrp_instance A {\npriority 10\n}\n";
        assert!(!is_same_text(copy, "vrrp_instance A {\n}\n"));
    }
}
