// SPDX-License-Identifier: Apache-2.0
//! The table of all keepalived processes, kept current by one scan after another.
//!
//! ```text
//!   new pids ──▶ executable is keepalived? ──▶ members ──▶ parents with their children ──▶ ProcessView
//!   ended pidfd ──▶ member leaves ────────────────┘                                  └──▶ sources
//! ```

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use vipwatch_core::cause::ProcessExit;
use vipwatch_core::keepalived::Version;
use vipwatch_core::keepalived_process::CRASH_LOOP_SPAN;
use vipwatch_linux::clock::Stamp;
use vipwatch_linux::file::FileStamp;
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::process_exit::{EndedProcess, ExitWatcher};
use vipwatch_linux::process_table::new_processes::{Candidates, NewProcesses};
use vipwatch_linux::process_table::{self as processes, ProcessId, RunState};

use super::keepalived::NetnsNames;
use super::{
    EndRecord, EndedKeepalived, KeepalivedProcess, ProcessNetns, ProcessSource, ProcessView,
};

/// The file name of keepalived's executable.
const PROGRAM: &str = "keepalived";

/// A keyword of keepalived's configuration, which its executable contains.
const KEYWORD: &[u8] = b"vrrp_instance";

/// Size of the largest executable that is searched for the keyword, in bytes.
const MAX_EXECUTABLE: u64 = 64 << 20;

/// Maximum number of configurations of processes that are remembered.
const MAX_SOURCES: usize = 20_000;

/// LIMIT: the same for processes in containers.
const MAX_FOREIGN_SOURCES: usize = 1_000;

/// LIMIT: maximum number of processes of keepalived. Each one costs memory and a descriptor.
const MAX_MEMBERS: usize = 60_000;

/// LIMIT: maximum number of executables of which it is remembered whether they are keepalived.
const MAX_PROGRAMS: usize = 1_024;

/// What an executable file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramKind {
    Keepalived,
    /// Another program, or a process that cannot move an address of this machine.
    Other,
    /// The process has the name keepalived, and its executable cannot be read.
    Unreadable,
}

/// What the bytes of an executable say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Executable {
    is_keepalived: bool,
    version: Option<Version>,
}

/// Identifies a configuration across restarts of its process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct SourceKey {
    /// The path in the root directory of the process.
    config: PathBuf,
    netns: ProcessNetns,
    config_id: Option<String>,
    is_foreign: bool,
}

impl SourceKey {
    fn of(process: &KeepalivedProcess) -> Self {
        Self {
            config: process.config.clone(),
            // A container's namespace may get another name at each start.
            netns: if process.is_foreign { ProcessNetns::Unnamed } else { process.netns.clone() },
            config_id: process.command_line.config_id.clone(),
            is_foreign: process.is_foreign,
        }
    }
}

/// Recent starts of one keepalived: of its parents, and of the VRRP children of one parent.
#[derive(Debug, Default)]
struct RecentStarts {
    parents: VecDeque<Instant>,
    children: VecDeque<Instant>,
}

/// All keepalived processes.
#[derive(Debug)]
pub struct KeepalivedTable {
    new: NewProcesses,
    exits: ExitWatcher,
    /// How the processes of the last scan ended, until the keepaliveds are grouped again.
    recent_ends: HashMap<ProcessId, EndRecord>,
    /// Every process of a keepalived with the pid of its parent.
    members: BTreeMap<ProcessId, u32>,
    keepaliveds: BTreeMap<ProcessId, Arc<KeepalivedProcess>>,
    unreadable: HashSet<u32>,
    /// Whether an executable contains keepalived's keyword, and its version.
    programs: HashMap<FileStamp, Executable>,
    /// In the order in which they were first seen, so that the ids of their instances do not change.
    sources: Vec<ProcessSource>,
    /// The positions of the sources. Two containers may use one path in their own root directories.
    source_positions: HashMap<SourceKey, Vec<usize>>,
    /// The source that uses each file.
    source_files: HashMap<Arc<Path>, SourceKey>,
    /// Grows with each change of the sources.
    sources_version: u64,
    ended: HashMap<PathBuf, EndedKeepalived>,
    starts: HashMap<PathBuf, RecentStarts>,
    since: Option<Stamp>,
    has_scanned: bool,
    /// Whether the files of containers are read.
    follows_containers: bool,
    /// [`can_move_addresses`]; unit tests run without that right.
    can_move: fn(u32) -> io::Result<bool>,
}

impl KeepalivedTable {
    /// An empty table. `since` is when this program began to follow processes; `None` if it reads them only once.
    pub fn new(since: Option<Stamp>, follows_containers: bool) -> io::Result<Self> {
        Ok(Self {
            new: NewProcesses::default(),
            exits: ExitWatcher::new()?,
            recent_ends: HashMap::new(),
            members: BTreeMap::new(),
            keepaliveds: BTreeMap::new(),
            unreadable: HashSet::new(),
            programs: HashMap::new(),
            sources: Vec::new(),
            source_positions: HashMap::new(),
            source_files: HashMap::new(),
            sources_version: 0,
            ended: HashMap::new(),
            starts: HashMap::new(),
            since,
            has_scanned: false,
            follows_containers,
            can_move: can_move_addresses,
        })
    }

    /// Finds the processes that have started or ended since the last call. Returns the configuration
    /// files of the keepaliveds that have changed.
    pub fn scan(&mut self, now: Instant) -> HashSet<PathBuf> {
        let mut is_changed = false;
        for EndedProcess { id, exit } in self.exits.take_ended() {
            is_changed |= self.members.remove(&id).is_some();
            let end = EndRecord { pid: id.pid, at: Stamp::now(), exit };
            self.recent_ends.insert(id, end);
        }
        let candidates = self.new.take(now).unwrap_or(Candidates::New(Vec::new()));
        if let Candidates::All(pids) = &candidates {
            let listed: HashSet<u32> = pids.iter().copied().collect();
            self.unreadable.retain(|pid| listed.contains(pid));
        }
        // A process without a pidfd must be looked at.
        if self.exits.count() < self.members.len() {
            let before = self.members.len();
            let exits = &self.exits;
            self.members.retain(|id, _| exits.is_watched(*id) || processes::is_alive(*id));
            is_changed |= self.members.len() != before;
        }
        let (Candidates::All(pids) | Candidates::New(pids)) = candidates;
        for pid in pids {
            is_changed |= self.examine(pid);
        }
        let is_child_missing = self
            .keepaliveds
            .values()
            .any(|process| process.has_vrrp() && process.vrrp_child_id().is_none());
        let changed =
            if is_changed || is_child_missing { self.regroup(now) } else { HashSet::new() };
        self.recent_ends.clear();
        self.has_scanned = true;
        changed
    }

    /// Adds the process if it is a keepalived that is not known yet.
    fn examine(&mut self, pid: u32) -> bool {
        match self.program_of(pid) {
            ProgramKind::Other => {
                self.unreadable.remove(&pid);
                return false;
            }
            ProgramKind::Unreadable => return self.unreadable.insert(pid),
            ProgramKind::Keepalived => {}
        }
        let Ok(stat) = processes::stat(pid) else { return false };
        let is_new = !self.members.contains_key(&stat.id) && self.members.len() < MAX_MEMBERS;
        if !is_new || stat.state == RunState::Ended || !processes::is_process(pid) {
            return false;
        }
        self.exits.watch(stat.id);
        self.members.retain(|id, _| id.pid != pid);
        self.members.insert(stat.id, stat.parent);
        true
    }

    fn program_of(&mut self, pid: u32) -> ProgramKind {
        match processes::executable(pid) {
            Ok(path) if path.file_name().is_some_and(|name| name == PROGRAM) => {}
            Ok(_) => return ProgramKind::Other,
            // A thread of the kernel and a process that has ended have no executable.
            Err(error) if processes::is_vanished(&error) => return ProgramKind::Other,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return unreadable_kind(pid);
            }
            // Any user can make the path of an executable too long for the kernel to show. The file decides.
            Err(_) => {}
        }
        // ORDER: before the file is opened. Any user can run a program with this name, from a file system of its own.
        if !(self.can_move)(pid).unwrap_or(false) {
            return ProgramKind::Other;
        }
        let executable = PathBuf::from(format!("/proc/{pid}/exe"));
        let Ok(stamp) = FileStamp::at(&executable) else { return ProgramKind::Other };
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.clear();
        }
        let program = match self.programs.get(&stamp) {
            Some(known) => *known,
            // An error may be gone at the next look, so it is not remembered.
            None => match Executable::read(&executable) {
                Ok(program) => *self.programs.entry(stamp).or_insert(program),
                Err(_) => return ProgramKind::Other,
            },
        };
        if program.is_keepalived { ProgramKind::Keepalived } else { ProgramKind::Other }
    }

    /// The version of a process that was examined before.
    fn version_of(&self, pid: u32) -> Option<Version> {
        let stamp = FileStamp::at(&PathBuf::from(format!("/proc/{pid}/exe"))).ok()?;
        self.programs.get(&stamp)?.version
    }

    /// Makes the keepaliveds from the members; returns the files of those that have changed.
    fn regroup(&mut self, now: Instant) -> HashSet<PathBuf> {
        let pids: HashSet<u32> = self.members.keys().map(|id| id.pid).collect();
        // The kernel gives the children of an ended process to another one. keepalived does so when it becomes a daemon.
        for (id, parent) in &mut self.members {
            if !pids.contains(parent)
                && let Ok(stat) = processes::stat(id.pid)
            {
                *parent = stat.parent;
            }
        }
        let mut groups: BTreeMap<ProcessId, Vec<ProcessId>> = BTreeMap::new();
        let by_pid: HashMap<u32, ProcessId> = self.members.keys().map(|id| (id.pid, *id)).collect();
        for (id, parent) in &self.members {
            match by_pid.get(parent) {
                // A child of a child exists for a moment: keepalived becomes a daemon, or starts a script.
                Some(parent) if self.is_child(*parent, &by_pid) => {}
                Some(parent) => groups.entry(*parent).or_default().push(*id),
                None => drop(groups.entry(*id).or_default()),
            }
        }
        let mut changed = HashSet::new();
        let before = std::mem::take(&mut self.keepaliveds);
        let mut names = None;
        // The first of two with one instance name keeps the plain id: also after a restart of the node.
        let mut groups: Vec<(ProcessId, Vec<ProcessId>)> = groups.into_iter().collect();
        groups.sort_by_key(|(id, _)| (id.started, id.pid));
        for (id, children) in groups {
            let is_orphan = !before.contains_key(&id) && was_child(id, &before);
            let process = match before.get(&id) {
                Some(known) if known.children == children && known.vrrp_child_id().is_some() => {
                    Arc::clone(known)
                }
                Some(known) => {
                    let end = known.vrrp_child_id().and_then(|child| self.recent_ends.get(&child));
                    let mut process = known.with_children(children);
                    process.last_end = end.copied().or(known.last_end);
                    if process == **known { Arc::clone(known) } else { Arc::new(process) }
                }
                None => {
                    let names = names.get_or_insert_with(NetnsNames::read);
                    let read =
                        KeepalivedProcess::read(id, children, names, self.follows_containers);
                    let Ok(Some(mut process)) = read else { continue };
                    process.version = self.version_of(id.pid);
                    if is_orphan {
                        // It ends soon, or another process becomes its parent.
                        process.state_since = Stamp::now();
                    }
                    self.set_unique_file(&mut process);
                    process.last_end = self.last_end_of(&process.file, &before);
                    self.remember(&process);
                    Arc::new(process)
                }
            };
            if !is_orphan {
                self.record_start(before.get(&id), &process, now);
            }
            if before.get(&id) != Some(&process) {
                changed.extend(process.keys());
            }
            self.keepaliveds.insert(id, process);
        }
        self.record_ends(before, &mut changed);
        changed
    }

    /// Whether the parent of this process is a keepalived too.
    fn is_child(&self, id: ProcessId, by_pid: &HashMap<u32, ProcessId>) -> bool {
        self.members.get(&id).is_some_and(|parent| by_pid.contains_key(parent))
    }

    /// The last end of a process that used this configuration.
    fn last_end_of(
        &self,
        file: &Path,
        before: &BTreeMap<ProcessId, Arc<KeepalivedProcess>>,
    ) -> Option<EndRecord> {
        let users = before.iter().filter(|(_, process)| process.file == file);
        let mut ends = users.filter_map(|(id, _)| self.recent_ends.get(id));
        ends.next().copied().or_else(|| Some(self.ended.get(file)?.end))
    }

    /// Two keepaliveds may use one file in different namespaces or with different ids. The second one gets the path
    /// through its own root directory, which leads to the same file.
    fn set_unique_file(&self, process: &mut KeepalivedProcess) {
        // That of a foreign one contains its pid.
        let user = self.source_files.get(process.file.as_path());
        if user.is_some_and(|user| *user != SourceKey::of(process)) {
            process.file = processes::path_in_root(process.id.pid, &process.config);
        }
    }

    fn remember(&mut self, process: &KeepalivedProcess) {
        if !process.has_vrrp() {
            return;
        }
        let (key, source, process_id) = (SourceKey::of(process), process.source(), process.id);
        for key in process.keys() {
            self.ended.remove(&key);
        }
        if !process.is_followed {
            return;
        }
        let foreign = self.sources.iter().filter(|source| source.is_foreign);
        let has_room = self.sources.len() < MAX_SOURCES
            && (!process.is_foreign || foreign.count() < MAX_FOREIGN_SOURCES);
        // ORDER: the process is a member already. Another living one with the same key is no predecessor.
        let is_over = |position: &&usize| {
            let known = &self.sources[**position];
            let has_ended =
                known.process.is_none_or(|id| id == process_id || !self.members.contains_key(&id));
            has_ended && (known.netns == source.netns || is_gone(&known.netns))
        };
        let positions = self.source_positions.get(&key).map(Vec::as_slice).unwrap_or_default();
        match positions.iter().find(is_over) {
            Some(position) => {
                let known = &mut self.sources[*position];
                // The path through the root of a process differs from that of its predecessor.
                self.source_files.remove(&known.file);
                self.ended.remove(&*known.file);
                self.sources_version += u64::from(*known != source);
                *known = source.clone();
            }
            None if has_room => {
                self.source_positions.entry(key.clone()).or_default().push(self.sources.len());
                self.sources.push(source.clone());
                self.sources_version += 1;
            }
            None => return,
        }
        self.source_files.insert(source.file, key);
    }

    /// Adds configurations that processes used in an earlier run.
    pub(crate) fn add_sources(&mut self, sources: Vec<ProcessSource>) {
        for source in sources {
            let config_id = source.config_id.clone();
            let (config, netns) = (source.file.to_path_buf(), source.netns.clone());
            let key = SourceKey { config, netns, config_id, is_foreign: false };
            let is_known = self.source_positions.contains_key(&key)
                || self.source_files.contains_key(&source.file);
            if !is_known && self.sources.len() < MAX_SOURCES {
                self.source_positions.entry(key.clone()).or_default().push(self.sources.len());
                self.source_files.insert(Arc::clone(&source.file), key);
                self.sources.push(source);
            }
        }
    }

    /// Counts the start of a parent, or of a VRRP child below the same parent.
    fn record_start(
        &mut self,
        before: Option<&Arc<KeepalivedProcess>>,
        process: &Arc<KeepalivedProcess>,
        now: Instant,
    ) {
        let child = process.vrrp_child_id();
        for key in process.keys() {
            match before {
                // The processes of the first scan have started at some time before.
                None if self.has_scanned => {
                    let starts = self.starts.entry(key).or_default();
                    starts.parents.push_back(now);
                    starts.children.clear();
                }
                Some(before) if child.is_some() && before.vrrp_child_id() != child => {
                    self.starts.entry(key).or_default().children.push_back(now);
                }
                None | Some(_) => {}
            }
        }
    }

    fn record_ends(
        &mut self,
        before: BTreeMap<ProcessId, Arc<KeepalivedProcess>>,
        changed: &mut HashSet<PathBuf>,
    ) {
        let used: HashSet<PathBuf> =
            self.keepaliveds.values().flat_map(|process| process.keys()).collect();
        for (id, process) in before {
            if self.keepaliveds.contains_key(&id) {
                continue;
            }
            changed.extend(process.keys());
            // The handle of a namespace without a name goes away with the process.
            self.sources_version += u64::from(process.netns == ProcessNetns::Unnamed);
            if process.has_vrrp() {
                let unknown =
                    EndRecord { pid: id.pid, at: Stamp::now(), exit: ProcessExit::Unknown };
                let end = self.recent_ends.get(&id).copied().unwrap_or(unknown);
                let child = process.vrrp_child_id().and_then(|id| self.recent_ends.get(&id));
                let ended = EndedKeepalived {
                    end: end.or_kill(child.copied()).or_kill(process.last_end),
                    netns: process.netns.clone(),
                    pid_files: process.pid_files.clone(),
                    is_foreign: process.is_foreign,
                };
                for key in process.keys().filter(|key| !used.contains(key)) {
                    if self.ended.len() < MAX_SOURCES {
                        self.ended.insert(key, ended.clone());
                    }
                }
            }
        }
    }

    /// Reads whether the processes run, of all keepaliveds or of those with these files. Returns the files of those that
    /// have changed.
    pub fn check_running(&mut self, files: Option<&HashSet<PathBuf>>) -> HashSet<PathBuf> {
        let mut frozen = HashMap::new();
        let mut changed = HashSet::new();
        for known in self.keepaliveds.values_mut() {
            if files.is_some_and(|files| !known.keys().any(|key| files.contains(&key))) {
                continue;
            }
            let mut process = known.checked(&mut frozen);
            // Of all keepaliveds, it would take too long.
            if files.is_some() {
                process.read_loaded_at();
            }
            if process != **known {
                changed.extend(process.keys());
                *known = Arc::new(process);
            }
        }
        changed
    }

    /// Forgets starts that are too old to count; returns the files for which that changes the number.
    pub fn expire_starts(&mut self, now: Instant) -> HashSet<PathBuf> {
        let mut changed = HashSet::new();
        self.starts.retain(|file, starts| {
            for times in [&mut starts.parents, &mut starts.children] {
                while times.front().is_some_and(|at| *at + CRASH_LOOP_SPAN < now) {
                    times.pop_front();
                    changed.insert(file.clone());
                }
            }
            !starts.parents.is_empty() || !starts.children.is_empty()
        });
        changed
    }

    /// The configurations that processes use or have used, in the order in which they were first seen.
    pub fn sources(&self) -> Vec<ProcessSource> {
        self.sources.clone()
    }

    /// A number that grows when [`Self::sources`] change.
    pub fn sources_version(&self) -> u64 {
        self.sources_version
    }

    /// The running keepaliveds.
    pub(super) fn running(&self) -> impl Iterator<Item = &KeepalivedProcess> {
        self.keepaliveds.values().map(|process| &**process)
    }

    /// Everything that is known now.
    pub fn view(&self) -> ProcessView {
        let mut running: HashMap<PathBuf, Vec<Arc<KeepalivedProcess>>> = HashMap::new();
        for process in self.keepaliveds.values() {
            for key in process.keys() {
                running.entry(key).or_default().push(Arc::clone(process));
            }
        }
        let count = |starts: &RecentStarts| starts.parents.len().max(starts.children.len());
        let recent = self.starts.iter().filter(|(_, starts)| count(starts) > 1);
        ProcessView {
            running,
            ended: self.ended.clone(),
            recent_starts: recent
                .map(|(file, starts)| {
                    (file.clone(), u32::try_from(count(starts)).unwrap_or(u32::MAX))
                })
                .collect(),
            unreadable: self.unreadable.len(),
            count: self.keepaliveds.len(),
            since: self.since,
        }
    }
}

// Readable when a process has ended.
vipwatch_linux::as_fd!(KeepalivedTable.exits);

/// Whether the namespace of a process that has ended exists no more.
fn is_gone(netns: &ProcessNetns) -> bool {
    match netns {
        ProcessNetns::Named(name) => NetnsId::of_name(name).is_ok_and(|id| id.is_none()),
        ProcessNetns::Unnamed => true,
        ProcessNetns::Own | ProcessNetns::Unreadable => false,
    }
}

/// What a process is, of which this program may not read the executable.
fn unreadable_kind(pid: u32) -> ProgramKind {
    let is_named = processes::name(pid).is_ok_and(|name| name == PROGRAM);
    let is_elsewhere = processes::has_own_user_namespace(pid).is_ok_and(|is_own| !is_own);
    if is_named && !is_elsewhere && processes::has_net_admin(pid).unwrap_or(false) {
        ProgramKind::Unreadable
    } else {
        ProgramKind::Other
    }
}

/// Whether a process may change the addresses of its network namespace, which no container without that right can: it has
/// the capability in this program's user namespace. Its user does not matter.
fn can_move_addresses(pid: u32) -> io::Result<bool> {
    Ok(processes::has_net_admin(pid)? && processes::has_own_user_namespace(pid)?)
}

/// Whether this process was a child of a keepalived before.
fn was_child(id: ProcessId, before: &BTreeMap<ProcessId, Arc<KeepalivedProcess>>) -> bool {
    before.values().any(|process| process.children.contains(&id))
}

impl Executable {
    /// Searches the file. It is read in parts: an executable may be large.
    fn read(file: &Path) -> io::Result<Self> {
        use std::io::Read;
        let mut reader = fs::File::open(file)?.take(MAX_EXECUTABLE);
        let mut buffer = vec![0; 64 << 10];
        let (mut kept, mut found) = (0, Self::default());
        loop {
            let count = reader.read(&mut buffer[kept..])?;
            let filled = kept + count;
            let part = &buffer[..filled];
            found.is_keepalived |= part.windows(KEYWORD.len()).any(|window| window == KEYWORD);
            found.version = found.version.or_else(|| Version::in_executable(part));
            if count == 0 || found.is_keepalived && found.version.is_some() {
                return Ok(found);
            }
            // A text may lie across two parts.
            kept = filled.min(Version::TEXT_BYTES - 1);
            buffer.copy_within(filled - kept..filled, 0);
        }
    }
}

#[cfg(test)]
mod tests;
