// SPDX-License-Identifier: Apache-2.0
//! Reads processes from `/proc`: identity, parent, state, executable, command line, namespaces and cgroup.
//!
//! A process is identified by its pid and its start time ([`ProcessId`]): the kernel gives a pid again to another
//! process. A process may end between two reads; then the read fails with [`std::io::ErrorKind::NotFound`] or
//! `ESRCH`, which [`is_vanished`] recognises, and which is normal.
//!
//! - [`new_processes`] finds the processes that have started since the last call.
//! - [`process_exit`](crate::process_exit) reports the end of processes.

pub mod new_processes;

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use vipwatch_core::cause::ProcessExit;

use crate::clock::{self, Stamp};
use crate::netns::NetnsId;

/// Maximum size of a file of `/proc` that is read, in bytes. The kernel limits most of them to one page; a command
/// line may be longer.
const MAX_BYTES: u64 = 64 << 10;

/// A process: its pid, and its start time in clock ticks since the boot, which tells it from a later process with the
/// same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The pid in the namespace of this process.
    pub pid: u32,
    /// The start time, in clock ticks since the boot.
    pub started: u64,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    /// It runs, or waits for an event.
    Running,
    /// A signal such as SIGSTOP has stopped it.
    Stopped,
    /// A debugger has stopped it.
    Traced,
    /// It has ended, and its parent has not yet collected its exit status.
    Ended,
}

/// One line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// The identity of the process.
    pub id: ProcessId,
    /// The pid of its parent.
    pub parent: u32,
    /// Whether it runs.
    pub state: RunState,
}

/// The pids of all processes.
pub(crate) fn pids() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Reads `/proc/PID/stat`.
pub fn stat(pid: u32) -> io::Result<ProcessStat> {
    let text = read(pid, "stat")?;
    parse_stat(pid, &text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Parses `PID (NAME) STATE PPID …`. The name may contain spaces and parentheses, so the last `)` ends it.
fn parse_stat(pid: u32, text: &[u8]) -> Option<ProcessStat> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = match fields.next()? {
        "T" => RunState::Stopped,
        "t" => RunState::Traced,
        "Z" | "X" | "x" => RunState::Ended,
        _ => RunState::Running,
    };
    let parent = fields.next()?.parse().ok()?;
    // The state is field 3 and the start time is field 22.
    let started = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat { id: ProcessId { pid, started }, parent, state })
}

/// How a process ended that its parent has not yet collected; `None` if it has not ended, or is collected.
pub fn exit_of_ended(id: ProcessId) -> Option<ProcessExit> {
    let text = read(id.pid, "stat").ok()?;
    let stat = parse_stat(id.pid, &text).filter(|stat| stat.id == id)?;
    if stat.state != RunState::Ended {
        return None;
    }
    // The exit status is the last field, the 52nd.
    let status = text.trim_ascii_end().rsplit(|byte| *byte == b' ').next()?;
    Some(exit_from_status(std::str::from_utf8(status).ok()?.parse().ok()?))
}

/// Decodes the status of `wait`.
pub(crate) fn exit_from_status(status: i32) -> ProcessExit {
    let number = |value: i32| u8::try_from(value).unwrap_or(u8::MAX);
    match status & 0x7f {
        0 => ProcessExit::Code(number(status >> 8 & 0xff)),
        signal => ProcessExit::Signal(number(signal)),
    }
}

/// Whether this process still exists and has not ended.
pub fn is_alive(id: ProcessId) -> bool {
    stat(id.pid).is_ok_and(|stat| stat.id == id && stat.state != RunState::Ended)
}

/// The path of the executable that a process runs, without the mark that the kernel adds when the file was deleted or
/// replaced. The path is that of the process's own root directory. Needs `PTRACE_MODE_READ`: the same user, or
/// `CAP_SYS_PTRACE`.
pub fn executable(pid: u32) -> io::Result<PathBuf> {
    const DELETED: &[u8] = b" (deleted)";
    let path = fs::read_link(entry(pid, "exe"))?;
    let bytes = path.as_os_str().as_bytes();
    Ok(match bytes.strip_suffix(DELETED) {
        Some(stripped) => PathBuf::from(std::ffi::OsStr::from_bytes(stripped)),
        None => path,
    })
}

/// The name of a process, which any process may give itself; at most 15 bytes.
pub fn name(pid: u32) -> io::Result<String> {
    let text = read(pid, "comm")?;
    Ok(String::from_utf8_lossy(text.trim_ascii_end()).into_owned())
}

/// The words of the command line, with the name of the program; empty for a process that has ended.
pub fn command_line(pid: u32) -> io::Result<Vec<String>> {
    Ok(parse_command_line(&read(pid, "cmdline")?))
}

fn parse_command_line(text: &[u8]) -> Vec<String> {
    let words = text.strip_suffix(b"\0").unwrap_or(text);
    if words.is_empty() {
        return Vec::new();
    }
    let words = words.split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The words `NAME=VALUE` of the environment with which a process was started. An environment that is too large is an
/// error. Needs `PTRACE_MODE_READ`.
pub fn environment(pid: u32) -> io::Result<Vec<String>> {
    let text = crate::file::read_head(&entry(pid, "environ"), MAX_BYTES + 1)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The real user id of a process. The owner of the files below `/proc/PID` is root for a process that has changed its
/// user, so it does not tell the user.
pub fn user(pid: u32) -> io::Result<u32> {
    let text = read(pid, "status")?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    user.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a process may change addresses and links: its effective capabilities contain `CAP_NET_ADMIN`. They are those in
/// the user namespace of the process; see [`has_own_user_namespace`].
pub fn has_net_admin(pid: u32) -> io::Result<bool> {
    const NET_ADMIN: u32 = 12;
    let text = read(pid, "status")?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    let capabilities = capabilities.ok_or(io::ErrorKind::InvalidData)?;
    Ok(capabilities >> NET_ADMIN & 1 == 1)
}

/// Whether a process is in the user namespace of this one. In another one, user id 0 and every capability mean nothing
/// here. Needs `PTRACE_MODE_READ`.
pub fn has_own_user_namespace(pid: u32) -> io::Result<bool> {
    match file_identity(Path::new("/proc/self/ns/user")) {
        Ok(own) => Ok(file_identity(&entry(pid, "ns/user"))? == own),
        // A kernel without user namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether a process has the root directory of this one. A process in a container has another one. Needs
/// `PTRACE_MODE_READ`.
pub fn has_own_root(pid: u32) -> io::Result<bool> {
    Ok(file_identity(&entry(pid, "root"))? == file_identity(Path::new("/proc/self/root"))?)
}

/// The working directory of a process, as a path in its own root directory.
pub fn working_directory(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(entry(pid, "cwd"))
}

/// The path through which this process reads `path` of another process. That process may have another root directory: that of
/// a container, or one in which `ip netns exec` has mounted other files.
pub fn path_in_root(pid: u32, path: &Path) -> PathBuf {
    let relative = path.strip_prefix("/").unwrap_or(path);
    entry(pid, "root").join(relative)
}

/// The network namespace of a process. Needs `PTRACE_MODE_READ`.
pub fn netns(pid: u32) -> io::Result<NetnsId> {
    NetnsId::of_path(&entry(pid, "ns/net"))
}

/// The pids of a process in its own and all outer pid namespaces that this process sees, the innermost last.
pub fn nested_pids(pid: u32) -> io::Result<Vec<u32>> {
    Ok(parse_nested_pids(pid, &read(pid, "status")?))
}

fn parse_nested_pids(pid: u32, status: &[u8]) -> Vec<u32> {
    let text = String::from_utf8_lossy(status);
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Linux has the line since version 4.1.
    line.map_or_else(
        || vec![pid],
        |line| line.split_ascii_whitespace().filter_map(|one| one.parse().ok()).collect(),
    )
}

/// Whether `pid` names a process and not one of its further threads, which `/proc` does not list, but opens.
pub fn is_process(pid: u32) -> bool {
    read(pid, "status").is_ok_and(|text| {
        let text = String::from_utf8_lossy(&text);
        let group = text.lines().find_map(|line| line.strip_prefix("Tgid:"));
        group.is_some_and(|group| group.trim().parse() == Ok(pid))
    })
}

/// LIMIT: maximum number of descriptors examined in one process. Any process may open a million files.
const MAX_DESCRIPTORS: usize = 16_384;

/// A file in the memory of another process (`memfd_create(2)`).
#[derive(Debug)]
pub struct MemoryFile {
    file: fs::File,
    /// When the file was written.
    pub written: SystemTime,
}

impl MemoryFile {
    /// The text of the file; an error if it has more than `limit` bytes.
    pub fn text(self, limit: u64) -> io::Result<String> {
        crate::file::text_file(self.file, limit).map(|file| file.text)
    }
}

/// The first memory file of a process with a name that begins with `name`. Needs `PTRACE_MODE_READ`.
///
/// A process can give any file such a name. Only a file of the kernel's own memory file system counts: others may block
/// the reader, or belong to another program.
pub fn memory_file(pid: u32, name: &str) -> io::Result<Option<MemoryFile>> {
    let name = format!("/memfd:{name}");
    for descriptor in fs::read_dir(entry(pid, "fd"))?.take(MAX_DESCRIPTORS) {
        let path = descriptor?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if !target.as_os_str().as_bytes().starts_with(name.as_bytes()) {
            continue;
        }
        // ORDER: a descriptor for the path only is examined first. Opening a device or pipe may have an effect.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = fs::File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        let metadata = found.metadata()?;
        if !metadata.is_file() || metadata.nlink() != 0 || metadata.dev() != memory_device()? {
            continue;
        }
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?.into();
        return Ok(Some(MemoryFile { file, written: metadata.modified()? }));
    }
    Ok(None)
}

/// The device of the file system on which the kernel keeps all memory files.
fn memory_device() -> io::Result<u64> {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(*device);
    }
    let own = rustix::fs::memfd_create("vipwatch", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(*DEVICE.get_or_init(|| rustix::fs::fstat(&own).map_or(0, |stat| stat.st_dev)))
}

/// The inodes of the sockets that a process has open.
pub fn socket_inodes(pid: u32) -> io::Result<Vec<u64>> {
    let mut inodes = Vec::new();
    for descriptor in fs::read_dir(entry(pid, "fd"))?.take(MAX_DESCRIPTORS) {
        let Ok(target) = fs::read_link(descriptor?.path()) else { continue };
        let text = target.to_string_lossy();
        let inode = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
    }
    Ok(inodes)
}

/// The ports of the netlink sockets for links and addresses that a process has open.
pub fn netlink_ports(pid: u32) -> io::Result<Vec<u32>> {
    let own = socket_inodes(pid)?;
    let text = read(pid, "net/netlink")?;
    let text = String::from_utf8_lossy(&text);
    // "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode": `Eth` is the netlink family, 0 for routing; `Pid` is the port.
    let ports = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "0", port, .., inode] = fields.as_slice() else { return None };
        let is_own = inode.parse().is_ok_and(|inode| own.contains(&inode));
        port.parse().ok().filter(|_| is_own)
    });
    Ok(ports.collect())
}

/// The inodes of the raw sockets for this IP protocol in the network namespace of a process.
pub fn raw_socket_inodes(pid: u32, protocol: u8) -> Vec<u64> {
    let mut inodes = Vec::new();
    for file in ["net/raw", "net/raw6"] {
        inodes.extend(parse_raw_sockets(&read(pid, file).unwrap_or_default(), protocol));
    }
    inodes
}

fn parse_raw_sockets(text: &[u8], protocol: u8) -> Vec<u64> {
    let text = String::from_utf8_lossy(text);
    let inodes = text.lines().skip(1).filter_map(|line| {
        // "  112: 00000000:0070 00000000:0000 07 …": the number of the protocol stands where others have a port.
        let mut fields = line.split_ascii_whitespace();
        let (_, port) = fields.nth(1)?.rsplit_once(':')?;
        let is_wanted = u16::from_str_radix(port, 16) == Ok(u16::from(protocol));
        fields.nth(7)?.parse().ok().filter(|_| is_wanted)
    });
    inodes.collect()
}

/// The parsers of the files, on any bytes.
#[cfg(fuzzing)]
pub mod fuzzing {
    use std::path::PathBuf;

    use super::ProcessStat;

    /// Parses `/proc/PID/stat`.
    pub fn stat(pid: u32, text: &[u8]) -> Option<ProcessStat> {
        super::parse_stat(pid, text)
    }

    /// Parses `/proc/PID/cmdline`.
    pub fn command_line(text: &[u8]) -> Vec<String> {
        super::parse_command_line(text)
    }

    /// Parses the line `NSpid:` of `/proc/PID/status`.
    pub fn nested_pids(pid: u32, text: &[u8]) -> Vec<u32> {
        super::parse_nested_pids(pid, text)
    }

    /// Parses `/proc/PID/cgroup`.
    pub fn freezer_directories(text: &[u8]) -> Vec<PathBuf> {
        super::parse_freezer_directories(text)
    }

    /// Parses `/proc/PID/net/raw`.
    pub fn raw_sockets(text: &[u8], protocol: u8) -> Vec<u64> {
        super::parse_raw_sockets(text, protocol)
    }
}

/// The cgroups of a process in which it can be frozen: directories of the unified hierarchy and of the `freezer`
/// controller of version 1.
pub fn freezer_directories(pid: u32) -> io::Result<Vec<PathBuf>> {
    Ok(parse_freezer_directories(&read(pid, "cgroup")?))
}

fn parse_freezer_directories(text: &[u8]) -> Vec<PathBuf> {
    let text = String::from_utf8_lossy(text);
    let mut directories = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = if controllers.is_empty() {
            unified_mount()
        } else if controllers.split(',').any(|one| one == "freezer") {
            Some(Path::new("/sys/fs/cgroup/freezer"))
        } else {
            None
        };
        // A cgroup outside of this process's cgroup namespace is shown as "/..", and cannot be read.
        let relative = path.trim_start_matches('/');
        directories.extend(mount.map(|mount| mount.join(relative)));
    }
    directories
}

/// Where the unified hierarchy is mounted; `None` if it is not.
fn unified_mount() -> Option<&'static Path> {
    static MOUNT: OnceLock<Option<&'static Path>> = OnceLock::new();
    *MOUNT.get_or_init(|| {
        let candidates = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        candidates.into_iter().find(|mount| mount.join("cgroup.procs").exists())
    })
}

/// Whether the cgroup in this directory is frozen, by itself or by one above it. The files state both.
pub fn is_frozen(directory: &Path) -> bool {
    let has_line = |file: &str, line: &str| {
        let text = crate::file::read_head(&directory.join(file), 256).unwrap_or_default();
        text.split(|byte| *byte == b'\n').any(|one| one == line.as_bytes())
    };
    has_line("cgroup.events", "frozen 1") || has_line("freezer.state", "FROZEN")
}

/// Whether a process has the user namespace and the root directory of this process: only then its user ids and paths mean
/// here what they mean there. A process in a container has another root directory; one that `ip netns exec` has
/// started has the same. Needs `PTRACE_MODE_READ`.
pub fn shares_root(pid: u32) -> io::Result<bool> {
    // ORDER: the user namespace comes first. In one of its own, any user can choose as root directory a file system
    // that a process of that user serves (FUSE), and that never answers.
    Ok(has_own_user_namespace(pid)? && has_own_root(pid)?)
}

/// The device and inode of a file, which are the same for every path that leads to it.
pub fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// When a process started.
pub fn start_time(id: ProcessId) -> SystemTime {
    boot_time() + started_after_boot(id)
}

/// The time between the boot and the start of a process.
pub fn started_after_boot(id: ProcessId) -> Duration {
    Duration::from_millis(id.started.saturating_mul(1000) / ticks_per_second())
}

/// When a process started, on both clocks.
pub fn start_stamp(id: ProcessId) -> Stamp {
    let wall = start_time(id);
    Stamp { wall, moment: clock::moment_of(wall) }
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// When the kernel booted. It is read again each time, because the clock may be set.
fn boot_time() -> SystemTime {
    SystemTime::now().checked_sub(since_boot()).unwrap_or(UNIX_EPOCH)
}

/// The time since the boot.
pub fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Whether an error means that the process has ended.
pub fn is_vanished(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn entry(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

fn read(pid: u32, name: &str) -> io::Result<Vec<u8>> {
    crate::file::read_head(&entry(pid, name), MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let text = b"7 (a) T 9 (x) T 1 7 7 0 -1 4194624 1 2 3 4 5 6 7 8 20 0 1 0 3560349 9 9\n";
        let stat = parse_stat(7, text).unwrap();
        assert_eq!(stat.id, ProcessId { pid: 7, started: 3_560_349 });
        assert_eq!((stat.parent, stat.state), (1, RunState::Stopped));
        assert_eq!(parse_stat(7, b"7 (a"), None);
        assert_eq!(parse_stat(7, b"7 (a) S 1"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        let stat = stat(pid).unwrap();
        assert!(is_alive(stat.id));
        let other = ProcessId { started: stat.id.started + 1, ..stat.id };
        assert!(!is_alive(other), "another process with the same pid");
        assert_eq!(executable(pid).unwrap(), std::env::current_exe().unwrap());
        assert!(!command_line(pid).unwrap().is_empty());
        assert_eq!(working_directory(pid).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(netns(pid).unwrap(), NetnsId::current().unwrap());
        assert_eq!(user(pid).unwrap(), rustix::process::getuid().as_raw());
        assert!(has_own_root(pid).unwrap() && has_own_user_namespace(pid).unwrap());
        assert!(has_net_admin(pid).is_ok());
        let environment = environment(pid).unwrap();
        assert!(environment.iter().any(|word| word.starts_with("PATH=")), "{environment:?}");
        assert!(is_process(pid) && nested_pids(pid).unwrap().contains(&pid));
        assert!(shares_root(pid).unwrap());
        let age = SystemTime::now().duration_since(start_time(stat.id)).unwrap_or_default();
        assert!(age < Duration::from_hours(1), "{age:?}");
    }

    #[test]
    fn an_environment_above_the_limit_is_not_cut_but_an_error() {
        let environment_of = |bytes: usize| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env_clear().env("X", "x".repeat(bytes));
            let mut child = command.spawn().unwrap();
            let found = environment(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        // The word `X=` and the zero byte at its end are three bytes.
        let limit = usize::try_from(MAX_BYTES).unwrap() - 3;
        assert_eq!(environment_of(limit).unwrap(), [format!("X={}", "x".repeat(limit))]);
        let error = environment_of(limit + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_memory_file_is_found_by_its_name_and_read_up_to_a_limit() {
        use std::io::Write;
        let pid = std::process::id();
        assert!(memory_file(pid, "vipwatch-test").unwrap().is_none());
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let own = rustix::fs::memfd_create("vipwatch-test.1", flags).unwrap();
        fs::File::from(own.try_clone().unwrap()).write_all(b"text").unwrap();
        let found = || memory_file(pid, "vipwatch-test").unwrap().unwrap();
        assert_eq!(found().text(4).unwrap(), "text");
        assert!(found().text(3).is_err(), "larger than the limit");
    }

    #[test]
    fn an_absent_process_is_recognised() {
        let error = stat(u32::MAX).unwrap_err();
        assert!(is_vanished(&error), "{error}");
        assert!(!is_process(u32::MAX));
    }

    #[test]
    fn a_directory_without_a_freezer_is_not_frozen() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_frozen(directory.path()));
        let write = |name: &str, text: &str| {
            let mut file = fs::File::create(directory.path().join(name)).unwrap();
            io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        write("cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!is_frozen(directory.path()));
        write("cgroup.events", "populated 1\nfrozen 1\n");
        assert!(is_frozen(directory.path()));
        write("cgroup.events", "");
        write("freezer.state", "FROZEN\n");
        assert!(is_frozen(directory.path()));
    }
}
