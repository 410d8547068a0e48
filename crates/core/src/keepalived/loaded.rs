// SPDX-License-Identifier: Apache-2.0
//! The copy that keepalived 2.2 and later keeps of its configuration: the text of all files in one memory file.
//!
//! A line `# PATH` begins a file, and a line `!` ends it. The lines of a file keep their numbers and have no comments. An
//! `include` has become an empty line, and its files follow it.

use std::sync::Arc;

use super::lines::Source;

/// LIMIT: number of files in a copy.
const MAX_FILES: usize = 10_000;
/// Deepest nesting of includes, as in the files themselves.
const MAX_DEPTH: usize = 64;
/// LIMIT: length of the path of a file, in bytes: the kernel opens no longer one (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4096;
/// LIMIT: bytes of all paths of a copy: a file in a deep directory needs two bytes of the copy, and has a long path.
const MAX_ALL_PATH_BYTES: usize = 4 << 20;

/// Splits a copy into parts, in the order in which keepalived reads them; each with the path of its file in place of the
/// directory. The first line of a part may be any line of its file. `None` if the copy is not complete: keepalived is
/// writing it, or has stopped doing so; or if it is beyond a limit.
pub fn loaded_parts(copy: &str) -> Option<Vec<Source>> {
    let mut parts: Vec<Source> = Vec::new();
    // The files that have not ended: where each one continues after the files that it includes.
    let mut open: Vec<Source> = Vec::new();
    let (mut files, mut path_bytes) = (0, 0);
    let mut lines = copy.split_inclusive('\n');
    for line in lines.by_ref() {
        if let Some(path) = line.strip_prefix("# ") {
            let path = path.strip_suffix('\n')?;
            let directory = open.last().and_then(|from| from.directory.rsplit_once('/'));
            let directory = match directory {
                Some((directory, _)) if !path.starts_with('/') => format!("{directory}/{path}"),
                _ => path.to_owned(),
            };
            parts.extend(open.last_mut().map(next_part));
            path_bytes += directory.len();
            let is_long = directory.len() >= MAX_PATH_BYTES || path_bytes > MAX_ALL_PATH_BYTES;
            if is_long || open.len() >= MAX_DEPTH {
                return None;
            }
            let directory = directory.into();
            open.push(Source { file: files, directory, text: String::new(), line: 1 });
            files += 1;
        } else if line == "!\n" {
            parts.push(next_part(open.last_mut()?));
            open.pop();
            if open.is_empty() {
                break;
            }
        } else if !line.starts_with("#!") {
            // A line `#!` is a message of keepalived about a file that it could not read.
            open.last_mut()?.text.push_str(line);
        }
        if files > MAX_FILES || parts.len() > 2 * MAX_FILES {
            return None;
        }
    }
    let is_complete = files > 0 && open.is_empty() && lines.next().is_none();
    is_complete.then_some(parts)
}

/// The lines of a file up to here; the rest begins with the next line.
fn next_part(open: &mut Source) -> Source {
    let count = open.text.matches('\n').count();
    let next = open.line.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    let (file, directory) = (open.file, Arc::clone(&open.directory));
    let rest = Source { file, directory, text: String::new(), line: next };
    std::mem::replace(open, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keepalived::{Configuration, Program, configuration};

    fn parts(copy: &str) -> Option<Vec<(usize, String, u32, String)>> {
        let parts = loaded_parts(copy)?.into_iter();
        Some(
            parts
                .map(|part| (part.file, part.directory.to_string(), part.line, part.text))
                .collect(),
        )
    }

    #[test]
    fn the_parts_of_a_copy_keep_the_numbers_of_their_lines() {
        let copy = "# /etc/k.conf\n$A=1\n\n# d/a.conf\n\na\n!\n# /x/b.conf\nb\n!\nlast\n!\n";
        let part = |file, path: &str, line, text: &str| (file, path.into(), line, text.into());
        let expected = vec![
            part(0, "/etc/k.conf", 1, "$A=1\n\n"),
            part(1, "/etc/d/a.conf", 1, "\na\n"),
            part(0, "/etc/k.conf", 3, ""),
            part(2, "/x/b.conf", 1, "b\n"),
            part(0, "/etc/k.conf", 3, "last\n"),
        ];
        assert_eq!(parts(copy), Some(expected));
    }

    #[test]
    fn a_copy_that_is_being_written_is_not_complete() {
        let copy = "# /etc/k.conf\na\n# b\nb\n!\n!\n";
        assert!(parts(copy).is_some());
        for end in copy.char_indices().map(|(end, _)| end) {
            assert_eq!(parts(&copy[..end]), None, "{end} bytes");
        }
        assert_eq!(parts(&format!("{copy}rest of a longer copy\n")), None);
        assert_eq!(parts("vrrp_instance A {\n"), None);
    }

    #[test]
    fn a_copy_with_deeply_nested_files_or_long_paths_is_refused() {
        let nested = |files: usize| format!("{}{}", "# d/a\n".repeat(files), "!\n".repeat(files));
        assert_eq!(loaded_parts(&nested(64)).map(|parts| parts.len()), Some(127));
        // The directory of each file is longer by one name.
        assert!(loaded_parts(&nested(65)).is_none());
        let long = |bytes: usize| format!("# /{}\n!\n", "d".repeat(bytes - 1));
        assert!(loaded_parts(&long(4095)).is_some());
        assert!(loaded_parts(&long(4096)).is_none());
        let deep = format!("# /{}/k\n", "d".repeat(4000));
        assert!(loaded_parts(&format!("{deep}{}!\n", "# a\n!\n".repeat(1_000))).is_some());
        assert!(loaded_parts(&format!("{deep}{}!\n", "# a\n!\n".repeat(2_000))).is_none());
        let name = "d".repeat(2048);
        assert!(loaded_parts(&format!("# /{name}/a\n# {name}/a\n!\n!\n")).is_none());
    }

    #[test]
    fn the_parts_of_a_file_share_its_directory() {
        let parts = loaded_parts("# /etc/k.conf\n# a\n!\n!\n").unwrap();
        assert!(Arc::ptr_eq(&parts[0].directory, &parts[2].directory));
    }

    /// The instances of a copy, parsed as keepalived's other processes do.
    fn read(copy: &str) -> (Configuration, crate::keepalived::Problems) {
        let mut problems = crate::keepalived::Problems::default();
        let parts = loaded_parts(copy).unwrap();
        let program = Program { config_id: "node", ..Program::default() };
        (configuration(parts, &mut (), program, &mut problems), problems)
    }

    #[test]
    fn definitions_repetitions_and_conditions_hold_from_one_part_to_the_next() {
        let copy = "# /etc/k.conf\n$LINK=eth0\n\n# a\n$VIP=10.0.0\n!\nvrrp_instance A {\ninterface $LINK\n\
             virtual_router_id 7\nvirtual_ipaddress {\n~SEQ(N,1,2) ${VIP}.$N\n@other 10.0.0.9\n@node 10.0.0.3\n}\n}\n!\n";
        let (configuration, problems) = read(copy);
        assert_eq!(*problems, []);
        let [instance] = &configuration.instances[..] else { panic!("{configuration:?}") };
        let addresses = instance.addresses.iter().map(|address| address.cidr.to_string());
        let expected = ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"];
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
        assert_eq!((instance.position.file, instance.position.line), (0, 3));
    }
}
