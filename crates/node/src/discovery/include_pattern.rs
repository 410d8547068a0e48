// SPDX-License-Identifier: Apache-2.0
//! The patterns of keepalived's `include`: `{A,B}`, `*`, `?` and `[…]`, matched below a root directory.
//!
//! BOUND: a pattern stands for at most [`MAX_ALTERNATIVES`] others, and examines at most as many directory entries as its
//! configuration has left. It never lists `/proc` or `/sys`.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};
use vipwatch_linux::root_directory::RootDirectory;

/// LIMIT: `{a,b}` twenty times in one line stands for a million patterns.
const MAX_ALTERNATIVES: usize = 256;

/// The same rules as in keepalived: a wildcard matches no `/`, and no `.` at the beginning of a name.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Why a pattern is not followed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum PatternError {
    #[error("the pattern stands for more than {MAX_ALTERNATIVES} others")]
    Alternatives,
    #[error("the patterns of this configuration match too many directory entries")]
    Entries,
}

/// The patterns that a pattern with `{A,B}` stands for, in order.
pub(super) fn alternatives(pattern: &str) -> Result<Vec<String>, PatternError> {
    let mut done = Vec::new();
    // The next one last.
    let mut open = vec![pattern.to_owned()];
    while let Some(pattern) = open.pop() {
        let Some(Braces { start, commas, end }) = first_braces(&pattern) else {
            done.push(pattern);
            continue;
        };
        if done.len() + open.len() + commas.len() >= MAX_ALTERNATIVES {
            return Err(PatternError::Alternatives);
        }
        let starts = [start].into_iter().chain(commas.iter().copied());
        let ends = commas.iter().copied().chain([end]);
        let whole = |(from, to): (usize, usize)| {
            format!("{}{}{}", &pattern[..start], &pattern[from + 1..to], &pattern[end + 1..])
        };
        let mut expanded: Vec<String> = starts.zip(ends).map(whole).collect();
        expanded.reverse();
        open.extend(expanded);
    }
    Ok(done)
}

/// The first braces of a pattern, as byte offsets.
struct Braces {
    start: usize,
    /// The commas between the alternatives, without those of nested braces.
    commas: Vec<usize>,
    end: usize,
}

fn first_braces(pattern: &str) -> Option<Braces> {
    let start = pattern.find('{').filter(|start| !pattern[*start..].starts_with("{}"))?;
    let mut commas = Vec::new();
    let mut depth = 0;
    for (at, c) in pattern.char_indices().skip_while(|(at, _)| *at < start) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(Braces { start, commas, end: at }),
            '}' => depth -= 1,
            ',' if depth == 1 => commas.push(at),
            _ => {}
        }
    }
    None
}

/// Finds the files that a pattern without braces matches.
pub(super) struct PatternWalk<'a> {
    root: &'a RootDirectory,
    /// The number of directory entries that may still be examined.
    entries_left: &'a mut usize,
    found: Vec<PathBuf>,
}

impl<'a> PatternWalk<'a> {
    pub(super) fn new(root: &'a RootDirectory, entries_left: &'a mut usize) -> Self {
        Self { root, entries_left, found: Vec::new() }
    }

    /// The files that `pattern` matches, sorted. A relative pattern starts in `directory`.
    pub(super) fn run(
        mut self,
        directory: &Path,
        pattern: &str,
    ) -> Result<Vec<PathBuf>, PatternError> {
        let from = if pattern.starts_with('/') { Path::new("/") } else { directory };
        let parts: Vec<&OsStr> = Path::new(pattern)
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .map(Component::as_os_str)
            .collect();
        self.visit(from, &parts)?;
        Ok(self.found)
    }

    fn visit(&mut self, directory: &Path, parts: &[&OsStr]) -> Result<(), PatternError> {
        let Some((part, rest)) = parts.split_first() else { return Ok(()) };
        let pattern = part.to_str().filter(|part| part.contains(['*', '?', '[']));
        let Some(pattern) = pattern else { return self.descend(&directory.join(part), rest) };
        // `**` is the same as `*` for keepalived; for the crate it would match across directories.
        let mut pattern = pattern.to_owned();
        while pattern.contains("**") {
            pattern = pattern.replace("**", "*");
        }
        let Ok(pattern) = Pattern::new(&pattern) else { return Ok(()) };
        let mut names = match self.root.names(directory, *self.entries_left) {
            Ok(names) => names.ok_or(PatternError::Entries)?,
            // It does not exist, or is no directory.
            Err(_) => return Ok(()),
        };
        *self.entries_left -= names.len();
        names.retain(|name| pattern.matches_path_with(Path::new(name), MATCHING));
        names.sort();
        for name in names {
            self.descend(&directory.join(name), rest)?;
        }
        Ok(())
    }

    fn descend(&mut self, path: &Path, rest: &[&OsStr]) -> Result<(), PatternError> {
        if !rest.is_empty() {
            return self.visit(path, rest);
        }
        *self.entries_left = self.entries_left.checked_sub(1).ok_or(PatternError::Entries)?;
        if self.root.metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
            self.found.push(path.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(pattern: &str) -> Vec<String> {
        alternatives(pattern).unwrap()
    }

    #[test]
    fn braces_stand_for_alternatives() {
        assert_eq!(expand("a.conf"), ["a.conf"]);
        assert_eq!(expand("{a,b}.conf"), ["a.conf", "b.conf"]);
        assert_eq!(expand("{a,b{1,2}}"), ["a", "b1", "b2"]);
        assert_eq!(expand("{a"), ["{a"]);
        assert_eq!(expand("{a,b}{c,d}"), ["ac", "ad", "bc", "bd"]);
    }

    #[test]
    fn a_line_of_braces_is_refused_before_it_is_expanded() {
        for count in [9, 26, 200] {
            assert_eq!(alternatives(&"{a,b}".repeat(count)), Err(PatternError::Alternatives));
        }
        assert_eq!(expand(&"{a,b}".repeat(8)).len(), MAX_ALTERNATIVES);
    }

    #[test]
    fn a_pattern_examines_no_more_entries_than_its_configuration_has_left() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a/1.conf", "a/2.conf", "b/3.conf", "b/.4.conf"] {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(path).unwrap();
        }
        let root = RootDirectory::own().unwrap();
        let run = |mut entries_left: usize, pattern: &str| {
            let walk = PatternWalk::new(&root, &mut entries_left);
            let found = walk.run(directory.path(), pattern);
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            found.map(|found| found.iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(run(9, "*/*.conf").unwrap(), ["1.conf", "2.conf", "3.conf"]);
        assert_eq!(run(8, "*/*.conf"), Err(PatternError::Entries));
        assert_eq!(run(9, "[b]/**").unwrap(), ["3.conf"]);
        assert_eq!(run(1, "a/1.conf").unwrap(), ["1.conf"]);
        assert_eq!(run(0, "a/1.conf"), Err(PatternError::Entries));
        assert_eq!(run(1 << 20, "/proc/*/fd/*").unwrap(), [""; 0], "/proc is not listed");
    }
}
