// SPDX-License-Identifier: Apache-2.0
//! Reads files that another user may have prepared, replaces files in one step, and keeps files of databases private.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::clock;

/// The first `limit` bytes of the regular file at `path`.
///
/// A symbolic link is an error, and so is a named pipe; the call does not block on it.
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

/// Replaces the file at `path` in one step by a new one with these permissions, which `write` fills. Until then the new file
/// has the name PATH`.new`. A symbolic link with that name is not followed.
pub fn replace_file(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let staged = with_suffix(path, ".new");
    match std::fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&staged)?;
    // The process may create files with fewer permissions (`umask(2)`).
    let permissions = file.set_permissions(PermissionsExt::from_mode(mode));
    let replaced =
        permissions.and_then(|()| write(&mut file)).and_then(|()| std::fs::rename(&staged, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&staged);
    }
    replaced
}

/// A SQLite file that cannot be used, and was renamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAsideFile {
    /// The new name.
    pub path: PathBuf,
    /// The file's format; `None` if the file is damaged.
    pub format: Option<i64>,
}

/// Renames a SQLite file and the files that belong to it: a damaged one to `STEM.corrupt-TIME`, one of another format to
/// `STEM.format-FORMAT-TIME`. The time is in milliseconds since the epoch; the next number that is free is used. The
/// caller has closed the file, and no other process uses the directory.
pub fn set_aside(path: &Path, format: Option<i64>) -> io::Result<SetAsideFile> {
    let reason = format.map_or_else(|| "corrupt".to_owned(), |format| format!("format-{format}"));
    let names =
        (clock::unix_millis_now()..).map(|time| path.with_extension(format!("{reason}-{time}")));
    let is_free = |name: &PathBuf| {
        DATABASE_SUFFIXES.iter().all(|suffix| with_suffix(name, suffix).symlink_metadata().is_err())
    };
    let Some(aside) = names.into_iter().find(is_free) else {
        return Err(io::ErrorKind::AlreadyExists.into());
    };
    std::fs::rename(path, &aside)?;
    for suffix in &DATABASE_SUFFIXES[1..] {
        // The file need not exist.
        let _ = std::fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix));
    }
    Ok(SetAsideFile { path: aside, format })
}

/// A line about the newest file of another format than `current` that [`set_aside`] has renamed and that still exists;
/// `None` without one. `path` is the file's name before, `current` the format that this program uses.
pub fn other_format_text(path: &Path, current: i64) -> Option<String> {
    let start = format!("{}.format-", path.file_stem()?.to_str()?);
    let entries = std::fs::read_dir(path.parent()?).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let renamed = names.filter_map(|name| {
        let (format, time) = name.strip_prefix(&start)?.rsplit_once('-')?;
        Some((time.parse::<i64>().ok()?, format.parse::<i64>().ok()?, name))
    });
    // After a roll-back, the file of this format that an upgrade has kept is no problem.
    let (_time, format, name) = renamed.filter(|(_, format, _)| *format != current).max()?;
    Some(format!(
        "{} had format {format}, and this version uses format {current}: the file is kept as {}, and a new one was begun",
        path.display(),
        path.with_file_name(name).display()
    ))
}

/// Suffixes that SQLite adds to a database's file names.
const DATABASE_SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether the storage caused an error: the disk is full, read-only or broken. An administrator can repair that while
/// the program runs.
pub fn is_storage_error(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];
    error.raw_os_error().is_some_and(|code| known.iter().any(|errno| errno.raw_os_error() == code))
}

/// Reads the text of the regular file at `path`, or of the file that a symbolic link at `path` points to. A file with
/// more than `limit` bytes is an error. Bytes that are not UTF-8 are replaced: they can only be in a comment or a
/// password.
///
/// A named pipe is an error; the call does not block on it.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    read_text_file(path, limit).map(|file| file.text)
}

/// A file that was read, with its metadata.
#[derive(Debug)]
pub struct TextFile {
    /// The content.
    pub text: String,
    /// Owner and permissions of the open file, so that they cannot belong to another file with the same name.
    pub metadata: Metadata,
}

/// Like [`read_text`], with owner and permissions.
pub fn read_text_file(path: &Path, limit: u64) -> io::Result<TextFile> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    text_file(rustix::fs::open(path, flags, Mode::empty())?.into(), limit)
}

/// Reads the text of an open file, which must be a regular one with at most `limit` bytes.
pub fn text_file(file: File, limit: u64) -> io::Result<TextFile> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    text_of_regular(file, metadata, limit)
}

/// The same for a file that is known to be a regular one, with this metadata.
pub(crate) fn text_of_regular(file: File, metadata: Metadata, limit: u64) -> io::Result<TextFile> {
    if metadata.len() > limit {
        let text = format!("it has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(TextFile { text: String::from_utf8_lossy(&bytes).into_owned(), metadata })
}

/// Identifies one version of a file: a changed file has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Device and inode.
    inode: (u64, u64),
    size: u64,
    /// `mtime`: seconds and nanoseconds.
    modified: (i64, i64),
    /// `ctime`: seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file at `path`, or of the file that a symbolic link at `path` points to. Take it before the
    /// file is read: a change in between is then noticed later.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&std::fs::metadata(path)?))
    }

    /// The stamp of a file with this metadata.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Permissions of a database: the owner may write, the group may read.
const DATABASE_MODE: u32 = 0o640;

/// Creates the file of a SQLite database at `path` with mode 0640, before SQLite creates it with more permissions. If
/// the file, its `-wal` or its `-shm` exists, permissions beyond 0640 are removed. SQLite creates new files beside a
/// database with the permissions of the database.
///
/// Errors are ignored: SQLite reports them when it opens the file.
pub fn restrict_database(path: &Path) {
    // ORDER: only a new file is opened. Closing an existing one would release every lock that this process has on it
    // (`fcntl(2)`), including the locks of SQLite's connections.
    drop(File::options().write(true).create_new(true).mode(DATABASE_MODE).open(path));
    for suffix in DATABASE_SUFFIXES {
        let name = with_suffix(path, suffix);
        let Ok(metadata) = name.metadata() else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_file() && mode & !DATABASE_MODE != 0 {
            let permissions = PermissionsExt::from_mode(mode & DATABASE_MODE);
            let _ = std::fs::set_permissions(&name, permissions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        use std::io::Write;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        // A link of another user with the name of the new file.
        let victim = directory.path().join("victim");
        File::create(&victim).unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("f.new")).unwrap();
        replace_file(&path, 0o644, |file| file.write_all(b"one")).unwrap();
        assert_eq!(read_head(&path, 9).unwrap(), b"one");
        assert_eq!((mode(&path), victim.metadata().unwrap().len()), (0o644, 0));
        let failed = replace_file(&path, 0o644, |file| {
            file.write_all(b"two")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(read_head(&path, 9).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "no file is left");
    }

    #[test]
    fn a_database_that_is_set_aside_never_replaces_another_file() {
        use std::io::Write;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("h.sqlite");
        let now = clock::unix_millis_now();
        for time in now..now + 1_000 {
            File::create(path.with_extension(format!("format-3-{time}"))).unwrap();
        }
        for name in ["h.sqlite", "h.sqlite-wal"] {
            let mut file = File::create(directory.path().join(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
        }
        assert_eq!(other_format_text(&directory.path().join("x.sqlite"), 4), None);
        let SetAsideFile { path: aside, format } = set_aside(&path, Some(3)).unwrap();
        assert_eq!((std::fs::read(&aside).unwrap(), format), (b"h.sqlite".to_vec(), Some(3)));
        assert_eq!(std::fs::read(with_suffix(&aside, "-wal")).unwrap(), b"h.sqlite-wal");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1_002);
        let text = other_format_text(&path, 4).unwrap();
        let name = aside.file_name().unwrap().to_str().unwrap();
        assert!(
            text.contains("had format 3, and this version uses format 4") && text.contains(name)
        );
        assert_eq!(other_format_text(&path, 3), None, "after a roll-back");
    }

    #[test]
    fn a_database_is_readable_by_its_group_and_by_no_other_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new.sqlite");
        restrict_database(&path);
        assert_eq!(mode(&path) & !DATABASE_MODE, 0);
        let old = directory.path().join("old.sqlite");
        let beside = directory.path().join("old.sqlite-wal");
        for path in [&old, &beside] {
            File::create(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o664)).unwrap();
        }
        restrict_database(&old);
        assert_eq!((mode(&old), mode(&beside)), (0o640, 0o640));
        assert!(!directory.path().join("old.sqlite-shm").exists());
    }
}
