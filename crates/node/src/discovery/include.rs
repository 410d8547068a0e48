// SPDX-License-Identifier: Apache-2.0
//! Reads a configuration file of keepalived and every file that it includes. [`vipwatch_core::keepalived`] parses
//! the text.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use glob::{MatchOptions, Pattern, glob_with};
use vipwatch_core::keepalived::{
    Configuration, FilePosition, Files, Include, Problem, Source, configuration,
};
use vipwatch_linux::file::read_text;

/// Size of the largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Deepest nesting of includes.
const MAX_DEPTH: usize = 64;
/// Largest number of files in one configuration.
const MAX_FILES: usize = 10_000;

/// The byte order mark, with which some editors begin a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The same rules as in keepalived: a wildcard matches no `/`, and no `.` at the beginning of a name.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A parsed configuration.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) configuration: Configuration,
    pub(super) problems: Vec<Problem>,
    pub(super) opened: OpenedFiles,
}

/// The files of one configuration.
#[derive(Debug, Default)]
pub(super) struct OpenedFiles {
    /// The files that were read; the index is the file number in a [`FilePosition`].
    pub(super) files: Vec<PathBuf>,
    /// The files that could not be read.
    pub(super) unread: Vec<(PathBuf, io::Error)>,
    /// When the youngest of the files was written.
    pub(super) written: Option<SystemTime>,
    /// Whether the first file includes others. They can change while the first file does not.
    pub(super) has_includes: bool,
}

/// Reads `file` and the files that it includes. `config_id` decides keepalived's conditional lines.
pub(super) fn load(file: &Path, config_id: &str) -> Loaded {
    let mut opened = OpenedFiles::default();
    let mut problems = Vec::new();
    let Some(first) = opened.read(file, &mut problems) else {
        return Loaded { problems, opened, ..Loaded::default() };
    };
    if is_executable(file) {
        problems.push(Problem::refused(start_of(first.file), "the file is executable"));
    }
    let configuration = configuration(first, &mut opened, config_id, &mut problems);
    Loaded { configuration, problems, opened }
}

impl OpenedFiles {
    fn read(&mut self, file: &Path, problems: &mut Vec<Problem>) -> Option<Source> {
        let text = match text_of(file) {
            Ok(text) => text,
            Err(error) => {
                self.unread.push((file.to_owned(), error));
                return None;
            }
        };
        let written = std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        self.written = self.written.max(written);
        let number = self.files.len();
        self.files.push(file.to_owned());
        if text.starts_with(BYTE_ORDER_MARK) {
            let text = "the file begins with a byte order mark, which keepalived takes for a part of \
                        the first word";
            problems.push(Problem::new(start_of(number), text));
        }
        let directory = file.parent().unwrap_or(Path::new("/"));
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        Some(Source { file: number, directory: directory.to_string_lossy().into_owned(), text })
    }
}

impl Files for OpenedFiles {
    fn open(&mut self, include: Include<'_>, problems: &mut Vec<Problem>) -> Vec<Source> {
        let Include { pattern, letter, position: place, parents: above } = include;
        self.has_includes = true;
        let from = above.last().and_then(|number| self.files.get(*number)).cloned();
        let directory = from.as_deref().and_then(Path::parent).unwrap_or(Path::new("/"));
        let alternatives = alternatives(pattern);
        let found: Vec<Vec<PathBuf>> =
            alternatives.iter().map(|pattern| matches(directory, pattern)).collect();
        let is_any_missing = found.iter().any(Vec::is_empty);
        let is_all_missing = found.iter().all(Vec::is_empty);
        let has_wildcard = pattern.contains(['*', '?', '[']);
        let is_refused = match letter {
            Some('a') => is_any_missing,
            Some('b') => is_any_missing && alternatives.len() > 1,
            Some('m') => is_all_missing && !has_wildcard,
            Some('w') => is_all_missing,
            _ => false,
        };
        if is_refused {
            let text = format!("include {pattern}: no such file");
            problems.push(Problem::refused(place, text));
            return Vec::new();
        }
        // A wildcard that matches no file is normal: it includes an empty directory.
        if is_all_missing && !has_wildcard {
            let text = format!("include {pattern}: no such file");
            problems.push(Problem::note(place, text));
        }
        let mut sources = Vec::new();
        for file in found.into_iter().flatten() {
            let is_above =
                above.iter().any(|number| self.files.get(*number).is_some_and(|one| *one == file));
            if is_above || above.len() >= MAX_DEPTH {
                let text = format!(
                    "include {pattern}: the file includes itself, or includes are nested more than \
                     {MAX_DEPTH} deep"
                );
                problems.push(Problem::new(place, text));
            } else if self.files.len() >= MAX_FILES {
                let text = format!("include {pattern}: more than {MAX_FILES} files");
                problems.push(Problem::new(place, text));
                break;
            } else if is_executable(&file) {
                let text = format!("keepalived skips {}: it is executable", file.display());
                problems.push(match letter {
                    Some(_) => Problem::refused(place, text),
                    None => Problem::note(place, text),
                });
            } else {
                sources.extend(self.read(&file, problems));
            }
        }
        sources
    }
}

/// The text of `file`; a file with a zero byte is not a text file.
fn text_of(file: &Path) -> io::Result<String> {
    let text = read_text(file, MAX_BYTES)?;
    if text.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a text file"));
    }
    Ok(text)
}

/// Checks that `file` can be a configuration file of keepalived.
pub(super) fn check(file: &Path) -> io::Result<()> {
    if text_of(file)?.starts_with(BYTE_ORDER_MARK) {
        let text =
            "it begins with a byte order mark, which keepalived takes for a part of the first word";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(())
}

fn start_of(file: usize) -> FilePosition {
    FilePosition { file, line: 1 }
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// The files that a pattern without braces matches, sorted. Relative patterns start in `directory`.
fn matches(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let whole = if pattern.starts_with('/') {
        pattern.to_owned()
    } else {
        format!("{}/{pattern}", Pattern::escape(&directory.to_string_lossy()))
    };
    let Ok(paths) = glob_with(&whole, MATCHING) else { return Vec::new() };
    paths.flatten().filter(|path| !path.is_dir()).collect()
}

/// The patterns that a pattern with `{A,B}` stands for, in order.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some(Braces { open, commas, close }) = first_braces(pattern) else {
        return vec![pattern.to_owned()];
    };
    let mut from = open + 1;
    let mut all = Vec::new();
    for end in commas.into_iter().chain([close]) {
        let one = format!("{}{}{}", &pattern[..open], &pattern[from..end], &pattern[close + 1..]);
        all.extend(alternatives(&one));
        from = end + 1;
    }
    all
}

/// The first braces of a pattern, as byte offsets.
struct Braces {
    open: usize,
    /// The commas between the alternatives, without those of nested braces.
    commas: Vec<usize>,
    close: usize,
}

fn first_braces(pattern: &str) -> Option<Braces> {
    let open = pattern.find('{').filter(|open| !pattern[*open..].starts_with("{}"))?;
    let mut commas = Vec::new();
    let mut depth = 0;
    for (at, c) in pattern.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(Braces { open, commas, close: at }),
            '}' => depth -= 1,
            ',' if depth == 1 => commas.push(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_alternatives() {
        assert_eq!(alternatives("a.conf"), ["a.conf"]);
        assert_eq!(alternatives("{a,b}.conf"), ["a.conf", "b.conf"]);
        assert_eq!(alternatives("{a,b{1,2}}"), ["a", "b1", "b2"]);
        assert_eq!(alternatives("{a"), ["{a"]);
    }
}
