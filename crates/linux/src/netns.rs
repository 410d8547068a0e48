// SPDX-License-Identifier: Apache-2.0
//! Network namespaces by name, as `ip netns` creates them: opening and entering.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatFs};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use vipwatch_core::{NetnsName, NetnsProcess};

use crate::process_table::{self, ProcessId};

/// The directory with the names of namespaces: that of `ip netns`, which other programs use too.
pub const DIRECTORY: &str = "/run/netns";

/// The file system of a namespace handle since Linux 3.19, from `<linux/magic.h>`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// The file system of a namespace handle before Linux 3.19. Other files of `/proc` have it too; `setns` rejects those.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Why a namespace cannot be opened or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is no namespace with this name.
    #[error("there is no network namespace called {0}")]
    Missing(NetnsName),
    /// The name exists, but it is an ordinary file. A container sees that if it does not share the mounts of the host.
    #[error("{} is not a network namespace", .0.display())]
    NotANamespace(PathBuf),
    /// The file could not be opened or examined.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel refused to enter the namespace; that needs `CAP_SYS_ADMIN`.
    #[error("cannot enter the network namespace {name}")]
    Enter {
        /// Its name.
        name: NetnsName,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// The identity of a namespace: device and inode of its handle. It is unique while the namespace exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetnsId(u64, u64);

impl NetnsId {
    /// The namespace that has this name now; `None` if there is no such name. An error means that the name could not be
    /// checked, not that it does not exist.
    pub fn of_name(name: &NetnsName) -> io::Result<Option<Self>> {
        let path = path_of(name);
        match Self::of_path(&path) {
            Ok(id) => Ok(Some(id).filter(|_| !has_ended(name))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The namespace of which this path is a handle, for example `/proc/PID/ns/net`.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&std::fs::metadata(path)?, &rustix::fs::statfs(path)?))
    }

    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        let handle = open_current()?;
        Ok(Self::of(&handle.metadata()?, &rustix::fs::fstatfs(&handle)?))
    }

    /// Before Linux 3.19 the device is that of the `/proc` mount through which the handle was opened, and a restarted
    /// container has another one. So only the inode is compared there; it belongs to the namespace.
    fn of(metadata: &Metadata, system: &StatFs) -> Self {
        let device = if system.f_type == PROC_SUPER_MAGIC { 0 } else { metadata.dev() };
        Self(device, metadata.ino())
    }
}

/// An open handle on a namespace. It keeps the namespace alive.
#[derive(Debug)]
pub struct Netns {
    name: NetnsName,
    handle: File,
    id: NetnsId,
}

impl Netns {
    /// Opens the namespace with this name.
    pub fn open(name: &NetnsName) -> Result<Self, NetnsError> {
        let path = path_of(name);
        let failed = |path: &Path, source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => NetnsError::Missing(name.clone()),
            _ => NetnsError::Open { path: path.to_owned(), source },
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let handle: File = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|errno| failed(&path, errno.into()))?
            .into();
        let system = rustix::fs::fstatfs(&handle).map_err(|errno| failed(&path, errno.into()))?;
        if ![NSFS_MAGIC, PROC_SUPER_MAGIC].contains(&system.f_type) {
            return Err(NetnsError::NotANamespace(path));
        }
        let metadata = handle.metadata().map_err(|source| failed(&path, source))?;
        // ORDER: after the open, the pid cannot have belonged to another process.
        if has_ended(name) {
            return Err(NetnsError::Missing(name.clone()));
        }
        Ok(Self { name: name.clone(), handle, id: NetnsId::of(&metadata, &system) })
    }

    /// The identity of the namespace.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Moves the calling thread into the namespace until the thread ends, and closes the handle. A process moves as a
    /// whole only while it has one thread.
    ///
    /// A way back is missing on purpose: a thread can never continue in the wrong namespace.
    pub fn enter(self) -> Result<NetnsId, NetnsError> {
        if NetnsId::current().is_ok_and(|current| current == self.id) {
            return Ok(self.id);
        }
        match move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network)) {
            Ok(()) => Ok(self.id),
            // A file of `/proc` that is not a namespace, or a namespace of another type.
            Err(Errno::INVAL) => Err(NetnsError::NotANamespace(path_of(&self.name))),
            Err(errno) => Err(NetnsError::Enter { name: self.name, source: errno.into() }),
        }
    }

    /// Runs `work` in the namespace, on a thread that enters it and then ends.
    pub fn visit<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let failed = |source| NetnsError::Enter { name: self.name.clone(), source };
        let handle = self.handle.try_clone().map_err(failed)?;
        let netns = Self { name: self.name.clone(), handle, id: self.id };
        std::thread::scope(|scope| {
            let visit = std::thread::Builder::new()
                .spawn_scoped(scope, move || netns.enter().map(|_id| work()))
                .map_err(failed)?;
            visit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

as_fd!(Netns.handle);

/// Runs `work` in the namespace with this name, on a thread that enters it and then ends; if `name` is `None`, on the
/// calling thread.
pub fn visit<T: Send>(
    name: Option<&NetnsName>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetnsError> {
    match name.map(Netns::open).transpose()? {
        Some(netns) => netns.visit(work),
        None => Ok(work()),
    }
}

/// Opens a handle on the namespace of the calling thread.
pub fn open_current() -> io::Result<File> {
    match File::open("/proc/thread-self/ns/net") {
        // `/proc/thread-self` exists since Linux 3.17.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let thread = rustix::thread::gettid().as_raw_nonzero();
            File::open(format!("/proc/self/task/{thread}/ns/net"))
        }
        opened => opened,
    }
}

fn path_of(name: &NetnsName) -> PathBuf {
    match name.process() {
        Some(process) => PathBuf::from(format!("/proc/{}/ns/net", process.pid)),
        None => Path::new(DIRECTORY).join(name.as_str()),
    }
}

/// Whether the process that leads to a namespace without a name has ended. The namespace may exist longer; an open handle
/// or socket in it keeps it, so it counts as gone.
pub fn has_ended(name: &NetnsName) -> bool {
    let is_alive = |process: NetnsProcess| {
        process_table::is_alive(ProcessId { pid: process.pid, started: process.started })
    };
    !name.process().is_none_or(is_alive)
}
