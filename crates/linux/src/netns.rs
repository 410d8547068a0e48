//! Network namespaces by name, as `ip netns` keeps them.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatFs};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use vipwatch_core::NetnsName;

/// Where names of namespaces live, by agreement of `ip netns` and everybody since.
pub const DIRECTORY: &str = "/run/netns";

/// The file system of a namespace handle since Linux 3.19, from `<linux/magic.h>`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// The file system of a namespace handle before Linux 3.19. Other files of `/proc` have it too: there `setns` decides.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Why a namespace could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// No such name.
    #[error("there is no network namespace called {0}")]
    Missing(NetnsName),
    /// The name exists, but it is an ordinary file: a container that does not share the
    /// host's mounts sees this.
    #[error("{} is not a network namespace", .0.display())]
    NotANamespace(PathBuf),
    /// The file could not be opened or examined.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Entering takes `CAP_SYS_ADMIN`.
    #[error("cannot enter the network namespace {name}")]
    Enter {
        /// Its name.
        name: NetnsName,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The identity of a namespace while it lives: device and inode of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetnsId(u64, u64);

impl NetnsId {
    /// Which namespace `name` stands for now; `None` if it stands for none. An error says
    /// that this could not be found out, which is not the same.
    pub fn of_name(name: &NetnsName) -> io::Result<Option<Self>> {
        let path = path_of(name);
        let read = || -> io::Result<Self> {
            Ok(Self::of(&std::fs::metadata(&path)?, &rustix::fs::statfs(&path)?))
        };
        match read() {
            Ok(id) => Ok(Some(id)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The one the calling thread is in.
    pub fn current() -> io::Result<Self> {
        let handle = open_current()?;
        Ok(Self::of(&handle.metadata()?, &rustix::fs::fstatfs(&handle)?))
    }

    /// Before Linux 3.19 the device is that of the `/proc` through which the handle was opened, and a container that was
    /// started again has another one. The inode is the namespace's own.
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
    /// Opens the namespace called `name`.
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
        Ok(Self { name: name.clone(), handle, id: NetnsId::of(&metadata, &system) })
    }

    /// Its identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Moves the calling thread here for the rest of its life, and lets go of the handle. A
    /// process that means to go as a whole has one thread.
    ///
    /// There is no way back on purpose: nothing can be left in the wrong namespace.
    pub fn settle(self) -> Result<NetnsId, NetnsError> {
        if NetnsId::current().is_ok_and(|current| current == self.id) {
            return Ok(self.id);
        }
        match move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network)) {
            Ok(()) => Ok(self.id),
            // A file of `/proc` that is no namespace, or a namespace of another kind.
            Err(Errno::INVAL) => Err(NetnsError::NotANamespace(path_of(&self.name))),
            Err(errno) => Err(NetnsError::Enter { name: self.name, source: errno.into() }),
        }
    }
}

impl Netns {
    /// Does `work` here, on a thread that comes and ends here.
    pub fn visit<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let again = |source| NetnsError::Enter { name: self.name.clone(), source };
        let handle = self.handle.try_clone().map_err(again)?;
        let netns = Self { name: self.name.clone(), handle, id: self.id };
        std::thread::scope(|scope| {
            let visit = std::thread::Builder::new()
                .spawn_scoped(scope, move || netns.settle().map(|_id| work()))
                .map_err(again)?;
            visit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Does `work` in the namespace called `name`, or in the caller's own, on a thread that goes
/// there and ends there.
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
    Path::new(DIRECTORY).join(name.as_str())
}
