// SPDX-License-Identifier: Apache-2.0
//! Reads a configuration file of keepalived and every file that it includes. [`vipwatch_core::keepalived`] parses
//! the text.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::keepalived::{
    Configuration, FilePosition, Files, Include, Message, Problem, Problems, Program, Source,
    configuration, loaded_parts,
};
use vipwatch_linux::file::TextFile;
use vipwatch_linux::process_table::{self as processes, ProcessId};
use vipwatch_linux::root_directory::RootDirectory;

use super::include_pattern::{PatternError, PatternWalk, alternatives};

/// Size of the largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// LIMIT: size of all files of one configuration together, in bytes.
const MAX_TOTAL_BYTES: u64 = 16 << 20;
/// Deepest nesting of includes.
const MAX_DEPTH: usize = 64;
/// Largest number of files in one configuration.
const MAX_FILES: usize = 10_000;
/// LIMIT: number of directory entries that the patterns of one configuration may examine.
const MAX_ENTRIES: usize = 20_000;

/// The byte order mark, with which some editors begin a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A configuration to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConfigRequest<'a> {
    /// The directory below which all files are opened.
    pub(super) root: &'a RootDirectory,
    /// The file, as a path below `root`.
    pub(super) file: &'a Path,
    /// The keepalived that reads the file.
    pub(super) program: Program<'a>,
    /// Its process; `None` if it is not known.
    pub(super) process: Option<ProcessId>,
    pub(super) author: Author,
}

/// The program or person that writes a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// An operator of this machine.
    Operator,
    /// Neutron's agent, which writes one file without includes.
    Neutron,
    /// A container. Its files are not those of this machine's users.
    Container,
}

/// A parsed configuration.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) configuration: Configuration,
    pub(super) problems: Problems,
    /// The files that were read, as they are shown; the index is the file number in a [`FilePosition`].
    pub(super) files: Vec<PathBuf>,
    /// The files that could not be read, as they are shown.
    pub(super) unread: Vec<(PathBuf, io::Error)>,
    /// When the youngest of the files was written.
    pub(super) written: Option<SystemTime>,
    /// Whether the first file includes others. They can change while the first file does not.
    pub(super) has_includes: bool,
    /// Whether messages may contain words of the files: every local user may read all of them. A definition in one file
    /// can stand in a line of another, so they are judged together.
    pub(super) may_quote: bool,
}

/// The files of one configuration, and how much of its limits is left.
struct OpenedFiles<'a> {
    request: ConfigRequest<'a>,
    /// The files that were read, as paths below the root.
    files: Vec<PathBuf>,
    unread: Vec<(PathBuf, io::Error)>,
    written: Option<SystemTime>,
    has_includes: bool,
    /// Whether every file has the permission for all users to read it.
    is_readable_by_all: bool,
    /// Device and inode of the files that were read: a link to one may lead elsewhere by now.
    identities: Vec<(u64, u64)>,
    bytes_left: u64,
    entries_left: usize,
    /// The environment of the process: read for the first variable. `None` if it is not known.
    environment: OnceCell<Option<HashMap<String, String>>>,
}

/// Reads a file and the files that it includes.
pub(super) fn load(request: ConfigRequest<'_>) -> Loaded {
    let mut opened = OpenedFiles::new(request);
    let mut problems = Problems::default();
    let configuration = opened.read(request.file, &mut problems).map(|(first, metadata)| {
        if is_executable(&metadata) {
            problems.push(Problem::refused(start_of(first.file), "the file is executable"));
        }
        configuration(first, &mut opened, request.program, &mut problems)
    });
    let may_quote = !problems.is_empty() && opened.may_quote();
    let OpenedFiles { files, unread, written, has_includes, .. } = opened;
    Loaded {
        configuration: configuration.unwrap_or_default(),
        problems,
        files: files.iter().map(|file| request.root.shown(file)).collect(),
        unread,
        written,
        has_includes,
        may_quote,
    }
}

/// Parses the copy that a keepalived keeps of its configuration; `None` if the copy is not complete. Its problems
/// are left out: they are those of an earlier content of the files.
pub(super) fn load_copy(request: ConfigRequest<'_>, copy: &str) -> Option<Configuration> {
    let mut parts = loaded_parts(copy)?;
    let mut opened = OpenedFiles::new(request);
    opened.bytes_left = MAX_TOTAL_BYTES.saturating_sub(copy.len() as u64);
    let mut directories: Vec<Arc<str>> = Vec::new();
    for part in &mut parts {
        if part.file == opened.files.len() {
            let file = PathBuf::from(&*part.directory);
            directories.push(opened.directory_of(&file).to_string_lossy().into());
            opened.files.push(file);
        }
        part.directory = Arc::clone(&directories[part.file]);
    }
    Some(configuration(parts, &mut opened, request.program, &mut Problems::default()))
}

impl<'a> OpenedFiles<'a> {
    fn new(request: ConfigRequest<'a>) -> Self {
        Self {
            request,
            files: Vec::new(),
            unread: Vec::new(),
            written: None,
            has_includes: false,
            is_readable_by_all: request.author != Author::Container,
            identities: Vec::new(),
            bytes_left: MAX_TOTAL_BYTES,
            entries_left: MAX_ENTRIES,
            environment: OnceCell::new(),
        }
    }

    fn read(&mut self, file: &Path, problems: &mut Problems) -> Option<(Source, Metadata)> {
        let root = self.request.root;
        let limit = MAX_BYTES.min(self.bytes_left);
        let TextFile { text, metadata } = match text_of(root, file, limit) {
            Ok(read) => read,
            Err(error) => {
                self.unread.push((root.shown(file), error));
                return None;
            }
        };
        self.bytes_left = self.bytes_left.saturating_sub(metadata.len());
        let is_own = root.shown(file) == file;
        self.is_readable_by_all &= is_own && metadata.permissions().mode() & 0o004 != 0;
        self.identities.push((metadata.dev(), metadata.ino()));
        self.written = self.written.max(metadata.modified().ok());
        let number = self.files.len();
        self.files.push(file.to_owned());
        if text.starts_with(BYTE_ORDER_MARK) {
            let text = "the file begins with a byte order mark, which keepalived takes for a part of \
                        the first word";
            problems.push(Problem::new(start_of(number), text));
        }
        let directory = self.directory_of(file).to_string_lossy().into();
        Some((Source { file: number, directory, text, line: 1 }, metadata))
    }

    /// The directory that `$_PWD` stands for.
    fn directory_of(&self, file: &Path) -> PathBuf {
        let directory = file.parent().unwrap_or(Path::new("/"));
        let is_own = self.request.root.shown(directory) == directory;
        let canonical = is_own.then(|| directory.canonicalize().ok()).flatten();
        canonical.unwrap_or_else(|| directory.to_owned())
    }

    /// Whether every user of this machine may read all files: by their own permissions, and those of the directories.
    fn may_quote(&self) -> bool {
        let mut files = self.files.iter().zip(&self.identities);
        self.is_readable_by_all
            && files.all(|(file, identity)| is_reachable_by_all(file, *identity))
    }

    fn matches(&mut self, from: &Path, pattern: &str) -> Result<Vec<PathBuf>, PatternError> {
        let directory = from.parent().unwrap_or(Path::new("/"));
        PatternWalk::new(self.request.root, &mut self.entries_left).run(directory, pattern)
    }
}

/// Whether `file` still leads to the file with this device and inode, and every user may enter its directories.
fn is_reachable_by_all(file: &Path, identity: (u64, u64)) -> bool {
    let Ok(place) = file.canonicalize() else { return false };
    let is_same = |metadata: Metadata| (metadata.dev(), metadata.ino()) == identity;
    if !place.symlink_metadata().is_ok_and(is_same) {
        return false;
    }
    place.ancestors().skip(1).all(|directory| {
        let metadata = directory.metadata();
        metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    })
}

/// The environment with which a process was started; `None` if it cannot be read.
fn environment(id: ProcessId) -> Option<HashMap<String, String>> {
    let words = processes::environment(id.pid).ok()?;
    // The first one of two with the same name counts.
    let words = words.iter().rev().filter_map(|word| word.split_once('='));
    let environment = words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    // ORDER: the pid may have been given to another process before the read, but not after this check.
    processes::is_alive(id).then_some(environment)
}

impl Files for OpenedFiles<'_> {
    fn variable(&mut self, name: &str) -> Option<String> {
        let read = || self.request.process.and_then(environment);
        let environment = self.environment.get_or_init(read).as_ref()?;
        Some(environment.get(name).cloned().unwrap_or_default())
    }

    fn open(&mut self, include: Include<'_>, problems: &mut Problems) -> Vec<Source> {
        let Include { pattern, letter, position: place, parents: above } = include;
        let quoting = |text: &str| {
            Message::quoting(format!("include: {text}"), format!("include {pattern}: {text}"))
        };
        if self.request.author == Author::Neutron {
            let text = "Neutron writes no include: the line is ignored";
            problems.push(Problem::note(place, quoting(text)));
            return Vec::new();
        }
        self.has_includes = true;
        let from = above.last().and_then(|number| self.files.get(*number)).cloned();
        let from = from.unwrap_or_default();
        let found = alternatives(pattern).and_then(|alternatives| {
            alternatives.iter().map(|pattern| self.matches(&from, pattern)).collect()
        });
        let found: Vec<Vec<PathBuf>> = match found {
            Ok(found) => found,
            Err(error) => {
                problems.push(Problem::new(place, quoting(&error.to_string())));
                return Vec::new();
            }
        };
        let is_any_missing = found.iter().any(Vec::is_empty);
        let is_all_missing = found.iter().all(Vec::is_empty);
        let has_wildcard = pattern.contains(['*', '?', '[']);
        let is_refused = match letter {
            Some('a') => is_any_missing,
            Some('b') => is_any_missing && found.len() > 1,
            Some('m') => is_all_missing && !has_wildcard,
            Some('w') => is_all_missing,
            _ => false,
        };
        if is_refused {
            problems.push(Problem::refused(place, quoting("no such file")));
            return Vec::new();
        }
        // A wildcard that matches no file is normal: it includes an empty directory.
        if is_all_missing && !has_wildcard {
            problems.push(Problem::note(place, quoting("no such file")));
        }
        let mut sources = Vec::new();
        for file in found.into_iter().flatten() {
            let is_above =
                above.iter().any(|number| self.files.get(*number).is_some_and(|one| *one == file));
            if is_above || above.len() >= MAX_DEPTH {
                let text = format!(
                    "the file includes itself, or includes are nested more than {MAX_DEPTH} deep"
                );
                problems.push(Problem::new(place, quoting(&text)));
                continue;
            }
            if self.files.len() + self.unread.len() >= MAX_FILES || self.bytes_left == 0 {
                let text = format!(
                    "the configuration has more than {MAX_FILES} files or {} MiB: the rest is not read",
                    MAX_TOTAL_BYTES >> 20
                );
                problems.push(Problem::new(place, quoting(&text)));
                break;
            }
            let metadata = self.request.root.metadata(&file);
            if metadata.is_ok_and(|metadata| is_executable(&metadata)) {
                let message = Message::quoting(
                    "keepalived skips an included file: it is executable",
                    format!("keepalived skips {}: it is executable", file.display()),
                );
                problems.push(match letter {
                    Some(_) => Problem::refused(place, message),
                    None => Problem::note(place, message),
                });
                continue;
            }
            sources.extend(self.read(&file, problems).map(|(source, _)| source));
        }
        sources
    }
}

/// The text of `file`; a file with a zero byte is not a text file.
fn text_of(root: &RootDirectory, file: &Path, limit: u64) -> io::Result<TextFile> {
    let read = root.read_text_file(file, limit)?;
    if read.text.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a text file"));
    }
    Ok(read)
}

/// Checks that `file` can be a configuration file of keepalived.
pub(super) fn check(file: &Path) -> io::Result<()> {
    let root = RootDirectory::own()?;
    if text_of(&root, file, MAX_BYTES)?.text.starts_with(BYTE_ORDER_MARK) {
        let text =
            "it begins with a byte order mark, which keepalived takes for a part of the first word";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(())
}

fn start_of(file: usize) -> FilePosition {
    FilePosition { file, line: 1 }
}

fn is_executable(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o111 != 0
}
