//! Reading files that others may have prepared for us.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The first `limit` bytes of the regular file at `path`.
///
/// No symbolic link is followed, and a pipe in the file's place is not waited for.
pub fn read_head(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether an error is about the disk and not about a mistake: it is full, read-only or broken, and may
/// be mended while the program runs.
pub fn is_storage_trouble(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];
    error.raw_os_error().is_some_and(|code| known.iter().any(|errno| errno.raw_os_error() == code))
}

/// The text of the regular file at `path`, which may be a symbolic link, if it has no more than
/// `limit` bytes. Bytes that are not UTF-8 are replaced: they can only be in a comment or a
/// password.
///
/// A pipe in the file's place is not waited for.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    if metadata.len() > limit {
        let text = format!("it has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
