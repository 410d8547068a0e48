// SPDX-License-Identifier: Apache-2.0
//! Which files configure ordinary keepalived: those of `[find]`, and those that processes use.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::{MatchOptions, Pattern, glob_with};

use super::ConfigLocations;
use crate::processes::ProcessSource;

/// A wildcard matches no `/`, and no `.` at the beginning of a name, as in a shell.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A file of ordinary keepalived.
#[derive(Debug, Clone)]
pub(super) struct OrdinaryFile {
    pub(super) file: Arc<Path>,
    /// The process that uses the file; `None` for a file that no process is known to use.
    pub(super) source: Option<ProcessSource>,
}

/// The files that `locations` name, sorted, then those that only processes use, in the order of `sources`. A file of a
/// Neutron router, below `ha_confs`, is not one of them.
pub(super) fn ordinary_files(
    locations: &ConfigLocations,
    sources: &[ProcessSource],
    ha_confs: &Path,
) -> Vec<OrdinaryFile> {
    // There may be thousands of routers.
    let is_ordinary = |source: &&ProcessSource| {
        let is_wanted = locations.has_containers || !source.is_foreign;
        is_wanted && !source.file.starts_with(ha_confs)
    };
    let sources: Vec<&ProcessSource> = sources.iter().filter(is_ordinary).collect();
    let mut sources_left: Vec<Option<&ProcessSource>> = sources.iter().copied().map(Some).collect();
    let canonical: HashMap<PathBuf, usize> = sources
        .iter()
        .enumerate()
        // A path through the root directory of a process would lead to a file of this machine.
        .filter(|(_, source)| !is_in_process_root(&source.file))
        .filter_map(|(index, source)| Some((source.file.canonicalize().ok()?, index)))
        .collect();
    let mut files = Vec::new();
    for path in named_files(locations) {
        let index = sources
            .iter()
            .position(|source| *source.file == *path)
            .or_else(|| path.canonicalize().ok().and_then(|path| canonical.get(&path).copied()));
        let source = index.and_then(|index| sources_left[index].take()).cloned();
        files.push(OrdinaryFile { file: path.into(), source });
    }
    let others = sources_left.into_iter().flatten();
    let others = others.filter(|source| !is_excluded(locations, &source.file));
    files.extend(others.map(|source| OrdinaryFile {
        file: Arc::clone(&source.file),
        source: Some(source.clone()),
    }));
    files
}

/// The files that the paths and patterns name. A path without a wildcard is returned also if the file does not exist.
fn named_files(locations: &ConfigLocations) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for path in &locations.keepalived {
        match path.to_str().filter(|text| has_wildcard(text)) {
            Some(pattern) => {
                let matches = glob_with(pattern, MATCHING).into_iter().flatten().flatten();
                files.extend(matches.filter(|path| !path.is_dir()));
            }
            None => drop(files.insert(path.clone())),
        }
    }
    files.retain(|file| !is_excluded(locations, file));
    files
}

/// Whether a file is left out by request.
pub(super) fn is_excluded(locations: &ConfigLocations, file: &Path) -> bool {
    locations.exclude.iter().any(|exclude| {
        let pattern = exclude.to_str().and_then(|text| Pattern::new(text).ok());
        exclude == file || pattern.is_some_and(|pattern| pattern.matches_path_with(file, MATCHING))
    })
}

/// The directories in which a new file can match: of each path, or of the part of a pattern before its first wildcard.
pub(super) fn directories(locations: &ConfigLocations) -> impl Iterator<Item = PathBuf> {
    locations.keepalived.iter().filter_map(|path| {
        let is_plain = |part: &&std::ffi::OsStr| !part.to_str().is_some_and(has_wildcard);
        let parts: PathBuf = path.iter().take_while(is_plain).collect();
        if parts == *path { Some(path.parent()?.to_owned()) } else { Some(parts) }
    })
}

/// Whether a file can be read only through the root directory of a process, and so only while that runs.
pub(super) fn is_in_process_root(file: &Path) -> bool {
    file.starts_with("/proc")
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?', '['])
}
