// SPDX-License-Identifier: Apache-2.0
//! One running keepalived: a parent process and its children, read from `/proc`.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use vipwatch_core::cause::ProcessExit;
use vipwatch_core::keepalived::{CommandLine, Version};
use vipwatch_core::keepalived_process::{Suspension, VrrpChild};
use vipwatch_core::{Moment, NetnsName, NetnsProcess};
use vipwatch_linux::clock::{self, Stamp};
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns::{DIRECTORY, NetnsId};
use vipwatch_linux::process_table::{self as processes, MemoryFile, ProcessId, RunState};
use vipwatch_linux::root_directory::RootDirectory;

/// Ends of a parent and of its child within this time belong together.
const RELATED_ENDS: Duration = Duration::from_secs(5);

/// The beginning of the name of the memory file in which keepalived 2.2 and later keeps the configuration that it has read.
const LOADED_CONFIG: &str = "/keepalived/consolidated";

/// LIMIT: the largest such file that is read, in bytes: more than the largest configuration that discovery reads.
pub(crate) const MAX_LOADED_BYTES: u64 = 16 << 20;

/// LIMIT: the longest path of a foreign process that is kept, in bytes.
const MAX_WORD: usize = 512;

/// LIMIT: the same for the configuration itself.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// The IP protocol number of VRRP.
const VRRP_PROTOCOL: u8 = 112;

/// Where keepalived 2.2 writes the pids of the parent and of the VRRP child without options.
const DEFAULT_PID_FILES: &[&str] = &["/run/keepalived.pid", "/run/keepalived/keepalived.pid"];
const DEFAULT_VRRP_PID_FILES: &[&str] = &["/run/keepalived/vrrp.pid", "/run/vrrp.pid"];

/// The network namespace of a process, as this program can name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProcessNetns {
    /// The namespace of this program.
    Own,
    /// A namespace with a name in `/run/netns`.
    Named(NetnsName),
    /// Another namespace, without a name. It is followed through the process.
    Unnamed,
    /// The namespace could not be read.
    Unreadable,
}

/// A running keepalived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepalivedProcess {
    /// The parent process.
    pub id: ProcessId,
    /// When the parent started.
    pub started: SystemTime,
    /// The command line.
    pub command_line: CommandLine,
    /// The path of the configuration in the root directory of the process.
    pub config: PathBuf,
    /// The configuration as a path of this program, or below `/proc/PID/root` if only the process sees that file.
    pub file: PathBuf,
    /// The version of its executable; `None` if it is not known.
    pub(super) version: Option<Version>,
    /// Whether the process has another root directory than this program: that of a container. The kernel proves that it
    /// runs, and in which network namespace. Its command line and files prove nothing about this machine.
    pub is_foreign: bool,
    /// Whether its files are read: those of a foreign process only on request.
    pub(super) is_followed: bool,
    /// The network namespace.
    pub netns: ProcessNetns,
    /// The pid files of the parent, as paths of this program.
    pub(super) pid_files: Box<[PathBuf]>,
    /// The children of the parent that are keepalived too: for VRRP, health checks and BFD.
    pub(super) children: Vec<ProcessId>,
    /// Why the parent does not run; `None` if it runs.
    pub suspension: Option<Suspension>,
    /// The VRRP child.
    pub vrrp_child: VrrpChild,
    /// Since when the parent and the VRRP child are as they are: the start of the parent, or the time at which a change
    /// was noticed.
    pub state_since: Stamp,
    /// The last end of its VRRP child, or of the process that used the configuration before; `None` if none was seen.
    pub(super) last_end: Option<EndRecord>,
    /// When the VRRP child was seen to continue after it had been stopped or frozen.
    pub(super) resumed_at: Option<Moment>,
    /// When keepalived wrote its copy of its configuration, as of the last check after a transition; `None` if it is not
    /// known.
    pub(super) loaded: Option<LoadTime>,
    /// Whether its file had other lines than it has read, as of the last check after a transition.
    pub(super) is_outdated: bool,
}

/// When a keepalived has read its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadTime {
    /// The time of its copy. The clock may have been set since.
    written: SystemTime,
    /// `None` if the clock was set between the load and the first look at the copy, so that the time is in the future.
    pub(super) moment: Option<Moment>,
}

impl LoadTime {
    /// `known` is the last result: the time of a copy is converted once, whatever the clock says afterwards.
    fn of(written: SystemTime, known: Option<Self>) -> Self {
        known.filter(|known| known.written == written).unwrap_or_else(|| {
            let is_past = written.elapsed().is_ok();
            Self { written, moment: is_past.then(|| clock::moment_of(written)) }
        })
    }
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndRecord {
    pub(crate) pid: u32,
    /// When the end was noticed.
    pub(crate) at: Stamp,
    pub(crate) exit: ProcessExit,
}

impl EndRecord {
    /// This end or an earlier one, whichever explains more: a child that was killed takes its parent with it, and the
    /// other way round.
    pub(super) fn or_kill(self, earlier: Option<Self>) -> Self {
        let is_kill = |end: &Self| matches!(end.exit, ProcessExit::Signal(_));
        let is_recent = |end: &Self| self.at.moment.since(end.at.moment) < RELATED_ENDS;
        let earlier = earlier.filter(|end| is_kill(end) && is_recent(end) && !is_kill(&self));
        earlier.map_or(self, |earlier| Self { at: self.at, ..earlier })
    }
}

/// The names of network namespaces by their identity, read once for many processes.
#[derive(Debug)]
pub(super) struct NetnsNames {
    own: Option<NetnsId>,
    by_id: HashMap<NetnsId, NetnsName>,
}

impl NetnsNames {
    /// Reads the identity of each named namespace.
    pub(super) fn read() -> Self {
        let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let by_id =
            names.filter_map(|name: NetnsName| Some((NetnsId::of_name(&name).ok()??, name)));
        Self { own: NetnsId::current().ok(), by_id: by_id.collect() }
    }

    fn of_process(&self, pid: u32) -> ProcessNetns {
        match processes::netns(pid) {
            Ok(id) if Some(id) == self.own => ProcessNetns::Own,
            Ok(id) => {
                self.by_id.get(&id).cloned().map_or(ProcessNetns::Unnamed, ProcessNetns::Named)
            }
            Err(_) => ProcessNetns::Unreadable,
        }
    }
}

impl KeepalivedProcess {
    /// Reads the process `id` with its children. `None` for a process that only tests a configuration or prints a text.
    pub(super) fn read(
        id: ProcessId,
        children: Vec<ProcessId>,
        names: &NetnsNames,
        follows_containers: bool,
    ) -> io::Result<Option<Self>> {
        let words = processes::command_line(id.pid)?;
        let mut command_line = CommandLine::parse(words.iter().skip(1).map(String::as_str));
        if !command_line.is_daemon {
            return Ok(None);
        }
        let netns = names.of_process(id.pid);
        let is_foreign = !processes::has_own_root(id.pid)?;
        let is_short = |word: &Option<String>| word.as_ref().is_none_or(|it| it.len() < MAX_WORD);
        let is_short = is_short(&command_line.config) && is_short(&command_line.config_id);
        let is_followed = !is_foreign || follows_containers && is_short;
        if is_foreign {
            // LIMIT: a container chooses these words, and can start thousands of processes with them.
            let CommandLine { config, config_id, has_vrrp, has_vrrp_only, is_daemon, .. } =
                command_line;
            let [config, config_id] = [config, config_id].map(|word| word.filter(|_| is_short));
            let (netns, pid_file, vrrp_pid_file) = (None, None, None);
            command_line = CommandLine {
                config,
                config_id,
                netns,
                pid_file,
                vrrp_pid_file,
                has_vrrp,
                has_vrrp_only,
                is_daemon,
            };
        }
        let config = absolute(id.pid, Path::new(command_line.config()));
        let (file, pid_files) = if is_foreign {
            (processes::path_in_root(id.pid, &config), Box::default())
        } else {
            (own_path(id, &config, &netns), pid_files(id, &command_line, &netns))
        };
        let started = processes::start_stamp(id);
        let mut process = Self {
            id,
            started: started.wall,
            command_line,
            config,
            file,
            version: None,
            is_foreign,
            is_followed,
            netns,
            pid_files,
            children,
            suspension: None,
            vrrp_child: VrrpChild::Unknown,
            state_since: started,
            last_end: None,
            resumed_at: None,
            loaded: None,
            is_outdated: false,
        };
        process.set_vrrp_child();
        process.set_suspensions(&mut HashMap::new());
        Ok(Some(process))
    }

    /// Whether the process runs VRRP.
    pub(crate) fn has_vrrp(&self) -> bool {
        self.command_line.has_vrrp
    }

    /// The identity of the VRRP child, if it exists and is known.
    pub(super) fn vrrp_child_id(&self) -> Option<ProcessId> {
        let VrrpChild::Present { pid, .. } = self.vrrp_child else { return None };
        self.children.iter().find(|child| child.pid == pid).copied()
    }

    /// Finds the VRRP child among the children. keepalived gives all its processes the same name and command line, so
    /// its pid file decides, then its socket for VRRP, then the fact that there is only one child.
    fn set_vrrp_child(&mut self) {
        let known = self.vrrp_child_id();
        let found = known.or_else(|| self.child_of_pid_file()).or_else(|| self.child_with_socket());
        let only = || Some(*self.children.first()?).filter(|_| self.children.len() == 1);
        self.vrrp_child = match found.or_else(only) {
            Some(child) => VrrpChild::Present { pid: child.pid, suspension: None },
            None if self.children.is_empty() => VrrpChild::Missing,
            None => VrrpChild::Unknown,
        };
    }

    fn child_of_pid_file(&self) -> Option<ProcessId> {
        let root = RootDirectory::of_process(self.id).ok().filter(|_| !self.is_foreign)?;
        let named = self.command_line.vrrp_pid_file.as_deref();
        let defaults = if named.is_some() { &[] } else { DEFAULT_VRRP_PID_FILES };
        let mut files = named.into_iter().chain(defaults.iter().copied());
        files.find_map(|file| {
            let file = absolute(self.id.pid, Path::new(file));
            let pid = root.read_text_file(&file, 32).ok()?.text.trim().parse().ok()?;
            let is_it = |child: &&ProcessId| is_pid_of(child.pid, pid);
            self.children.iter().find(is_it).copied()
        })
    }

    fn child_with_socket(&self) -> Option<ProcessId> {
        if self.children.len() < 2 {
            return None;
        }
        let sockets = processes::raw_socket_inodes(self.id.pid, VRRP_PROTOCOL);
        let has_socket = |child: &&ProcessId| {
            let open = processes::socket_inodes(child.pid).unwrap_or_default();
            open.iter().any(|inode| sockets.contains(inode))
        };
        self.children.iter().find(has_socket).copied()
    }

    /// The same keepalived with these children, which are examined again.
    pub(super) fn with_children(&self, children: Vec<ProcessId>) -> Self {
        let mut process = Self { children, ..self.clone() };
        process.set_vrrp_child();
        process.set_suspensions(&mut HashMap::new());
        process.date_change(self);
        process
    }

    /// The same keepalived, with what its processes do now. `frozen` has the cgroups that were read already.
    pub(super) fn checked(&self, frozen: &mut HashMap<PathBuf, bool>) -> Self {
        let mut process = self.clone();
        process.set_suspensions(frozen);
        process.date_change(self);
        process
    }

    fn date_change(&mut self, before: &Self) {
        let is_same = self.suspension == before.suspension && self.vrrp_child == before.vrrp_child;
        if is_same {
            return;
        }
        self.state_since = Stamp::now();
        let is_suspended =
            |child: VrrpChild| matches!(child, VrrpChild::Present { suspension: Some(_), .. });
        let is_child_same = self.vrrp_child_id() == before.vrrp_child_id();
        if is_child_same && is_suspended(before.vrrp_child) && !is_suspended(self.vrrp_child) {
            self.resumed_at = Some(self.state_since.moment);
        }
    }

    /// Reads when keepalived has read its configuration, and whether that is the current one. This lists all open files
    /// of the process.
    pub(super) fn read_loaded_at(&mut self) {
        let copy = loaded_config(self.id).ok().flatten();
        self.loaded = copy.map(|copy| LoadTime::of(copy.written, self.loaded));
        self.is_outdated = self.outdated_since(&self.file).is_some();
    }

    /// The netlink ports of the process that changes addresses; empty if it has ended.
    pub(super) fn netlink_ports(&self) -> Vec<u32> {
        let child = self.vrrp_child_id();
        let candidates = child.map_or_else(|| self.children.clone(), |child| vec![child]);
        let ports = |id: &ProcessId| processes::netlink_ports(id.pid).unwrap_or_default();
        candidates.iter().flat_map(ports).collect()
    }

    /// When the VRRP child started, or the parent if the child is not known; with its pid.
    pub(super) fn vrrp_start(&self) -> (u32, Moment) {
        let id = self.vrrp_child_id().unwrap_or(self.id);
        (id.pid, processes::start_stamp(id).moment)
    }

    /// Reads whether the parent and the VRRP child run.
    fn set_suspensions(&mut self, frozen: &mut HashMap<PathBuf, bool>) {
        self.suspension = suspension(self.id, frozen);
        if let VrrpChild::Present { pid, .. } = self.vrrp_child
            && let Some(child) = self.vrrp_child_id()
        {
            self.vrrp_child = VrrpChild::Present { pid, suspension: suspension(child, frozen) };
        }
    }

    /// Whether this keepalived has started with, or has loaded, an older content of its configuration than the files
    /// have now: then when it has read them. `None` also if that is not known.
    ///
    /// keepalived 2.2 and later keeps the text that it has read in a memory file, which it writes again at each reload.
    /// The time of that file tells when, and its text tells which lines. A file that was written again without a change
    /// of its lines is no change.
    pub(crate) fn outdated_since(&self, file: &Path) -> Option<SystemTime> {
        let (root, path) = self.place_of(file).ok().filter(|_| self.is_followed)?;
        let changed = changed_at(&root.metadata(&path).ok()?)?;
        if changed <= processes::start_time(self.id) {
            return None;
        }
        let copy = loaded_config(self.id).ok().flatten()?;
        let written = copy.written;
        if changed <= written {
            return None;
        }
        let loaded = copy.text(MAX_LOADED_BYTES).ok()?;
        let current = root.read_text_file(&path, MAX_CONFIG_BYTES).ok()?.text;
        (!super::facts::is_same_text(&loaded, &current)).then_some(written)
    }

    /// Whether `file` is the file that the process names as its configuration, by device and inode. Neither is opened.
    pub(super) fn has_file(&self, file: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let root = RootDirectory::of_process(self.id);
        let own = std::fs::metadata(file);
        let its = root.and_then(|root| root.metadata(&self.config));
        matches!((own, its), (Ok(own), Ok(its)) if (own.dev(), own.ino()) == (its.dev(), its.ino()))
    }

    /// When its configuration was written; `None` if that is not known.
    pub(super) fn config_written(&self) -> Option<SystemTime> {
        let (root, path) = self.place_of(&self.file).ok().filter(|_| self.is_followed)?;
        root.metadata(&path).ok()?.modified().ok()
    }

    /// The root directory below which `file`, a path of this program or below `/proc/PID/root`, is opened, and the path
    /// there.
    fn place_of(&self, file: &Path) -> io::Result<(RootDirectory, PathBuf)> {
        match file.strip_prefix(processes::path_in_root(self.id.pid, Path::new("/"))) {
            Ok(path) => Ok((RootDirectory::of_process(self.id)?, path.to_owned())),
            Err(_) => Ok((RootDirectory::own()?, file.to_owned())),
        }
    }

    /// The paths under which instances find this keepalived: its configuration, and for a foreign one its namespace.
    pub(super) fn keys(&self) -> impl Iterator<Item = PathBuf> {
        let is_known = self.is_foreign && self.netns != ProcessNetns::Unreadable;
        let netns = is_known.then(|| netns_key(self.netns_name().as_ref()));
        [Some(self.file.clone()).filter(|_| self.is_followed), netns].into_iter().flatten()
    }

    /// Its network namespace; `None` for this program's own, and if it cannot be read.
    pub(crate) fn netns_name(&self) -> Option<NetnsName> {
        match &self.netns {
            ProcessNetns::Named(name) => Some(name.clone()),
            ProcessNetns::Unnamed => Some(unnamed_netns(self.id)),
            ProcessNetns::Own | ProcessNetns::Unreadable => None,
        }
    }

    /// This process as a source for discovery.
    pub(super) fn source(&self) -> super::ProcessSource {
        super::ProcessSource {
            file: Arc::from(self.file.as_path()),
            netns: self.netns.clone(),
            config_id: self.command_line.config_id.clone(),
            version: self.version,
            process: Some(self.id),
            is_foreign: self.is_foreign,
        }
    }
}

/// The memory file in which a keepalived keeps the configuration that it has read; `None` for one before 2.2.
pub(super) fn loaded_config(id: ProcessId) -> io::Result<Option<MemoryFile>> {
    let found = processes::memory_file(id.pid, LOADED_CONFIG)?;
    // ORDER: the pid may have been given to another process before the file was opened, but not after this check.
    Ok(found.filter(|_| processes::is_alive(id)))
}

/// The namespace of a process, which has no name.
pub(crate) fn unnamed_netns(id: ProcessId) -> NetnsName {
    NetnsName::of_process(NetnsProcess { pid: id.pid, started: id.started })
}

/// The path that stands for a namespace in [`KeepalivedProcess::keys`]; `None` is this program's own.
pub(super) fn netns_key(netns: Option<&NetnsName>) -> PathBuf {
    netns
        .map_or_else(|| "/proc/self/ns/net".into(), |name| Path::new(DIRECTORY).join(name.as_str()))
}

/// The later one of the times at which the content and the inode of a file changed: a file that was moved to this place
/// keeps the former.
fn changed_at(metadata: &std::fs::Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;
    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let nanos = u32::try_from(metadata.ctime_nsec()).ok()?;
    let inode = SystemTime::UNIX_EPOCH + std::time::Duration::new(seconds, nanos);
    Some(metadata.modified().ok()?.max(inode))
}

/// The absolute form of a path of the process, in its own root directory, without `.` and `..`.
fn absolute(pid: u32, path: &Path) -> PathBuf {
    let whole = match processes::working_directory(pid) {
        Ok(directory) => directory.join(path),
        Err(_) => path.to_owned(),
    };
    let mut plain = PathBuf::new();
    for component in whole.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The path of this program for the file that a process with the same root directory sees at `path`: the same path if
/// that is the same file; the file of which `ip netns exec` mounts a copy over `/etc`; else the path through the root of
/// the process, which has mounts of its own.
fn own_path(id: ProcessId, path: &Path, netns: &ProcessNetns) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let root = RootDirectory::of_process(id);
    let Ok(wanted) = root.and_then(|root| root.metadata(path)) else {
        // The file does not exist, perhaps because an editor replaces it.
        return path.to_owned();
    };
    let wanted = (wanted.dev(), wanted.ino());
    let through_root = processes::path_in_root(id.pid, path);
    let mounted = match (netns, path.strip_prefix("/etc")) {
        (ProcessNetns::Named(name), Ok(rest)) => {
            Some(Path::new("/etc/netns").join(name.as_str()).join(rest))
        }
        _ => None,
    };
    let is_it = |own: &PathBuf| processes::file_identity(own).is_ok_and(|own| own == wanted);
    [Some(path.to_owned()), mounted].into_iter().flatten().find(is_it).unwrap_or(through_root)
}

/// The pid files of the parent, as paths of this program; without those that only the process itself can reach.
fn pid_files(id: ProcessId, command_line: &CommandLine, netns: &ProcessNetns) -> Box<[PathBuf]> {
    let named = command_line.pid_file.as_deref();
    let defaults = if named.is_some() { &[] } else { DEFAULT_PID_FILES };
    let files = named.into_iter().chain(defaults.iter().copied());
    let own = |file| own_path(id, &absolute(id.pid, Path::new(file)), netns);
    files.map(own).filter(|file| !file.starts_with("/proc")).collect()
}

/// The pid in a pid file; `None` if there is none.
pub(super) fn read_pid(file: &Path) -> Option<u32> {
    let text = read_head(file, 32).ok()?;
    String::from_utf8_lossy(&text).trim().parse().ok()
}

/// Whether `written`, a pid in a file, is this process. Its own pid namespace may give it another pid.
pub(super) fn is_pid_of(process: u32, written: u32) -> bool {
    process == written
        || processes::nested_pids(process).is_ok_and(|pids| pids.last() == Some(&written))
}

/// Why a process does not run; `None` if it runs, or has ended.
fn suspension(id: ProcessId, frozen: &mut HashMap<PathBuf, bool>) -> Option<Suspension> {
    let stat = processes::stat(id.pid).ok().filter(|stat| stat.id == id)?;
    let mut is_frozen = || {
        let directories = processes::freezer_directories(id.pid).unwrap_or_default();
        directories.into_iter().any(|directory| {
            let is_frozen = processes::is_frozen;
            *frozen.entry(directory).or_insert_with_key(|directory| is_frozen(directory))
        })
    };
    match stat.state {
        RunState::Stopped => Some(Suspension::Signal),
        RunState::Traced => Some(Suspension::Tracer),
        RunState::Running => is_frozen().then_some(Suspension::Freezer),
        RunState::Ended => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_was_set_back_makes_no_old_load_a_recent_one() {
        let written = SystemTime::now() - Duration::from_mins(1);
        let known = LoadTime::of(written, None);
        assert!(known.moment.is_some_and(|at| clock::now().since(at) >= Duration::from_mins(1)));
        assert_eq!(LoadTime::of(written, Some(known)), known);
        // The first look at this copy is after the step.
        let future = SystemTime::now() + Duration::from_hours(8);
        assert_eq!(LoadTime::of(future, Some(known)).moment, None);
    }
}
