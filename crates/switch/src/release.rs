// SPDX-License-Identifier: Apache-2.0
//! The release of the installed Neutron, by the metadata that Python keeps beside its code.

use std::path::{Path, PathBuf};

/// The major number of the Neutron to which `program` belongs; `None` if no metadata is found.
///
/// The directories are those of the program's installation, then those of the system: `/usr/bin/PROGRAM` and
/// `/VENV/bin/PROGRAM` have their code in `lib/python*` beside `bin`.
pub(crate) fn neutron_release(program: &Path) -> Option<u32> {
    let resolved = std::fs::canonicalize(program).ok();
    let mut prefixes: Vec<PathBuf> =
        [Some(program), resolved.as_deref()].into_iter().flatten().filter_map(prefix_of).collect();
    prefixes.extend(["/usr", "/usr/local"].map(PathBuf::from));
    prefixes.iter().find_map(|prefix| release_below(prefix))
}

fn prefix_of(program: &Path) -> Option<PathBuf> {
    program.parent()?.parent().map(Path::to_owned)
}

/// The highest release with metadata below `prefix`. While a package manager upgrades Neutron there may be two.
fn release_below(prefix: &Path) -> Option<u32> {
    let mut found = None;
    for python in entries(&["lib", "lib64"].map(|name| prefix.join(name)))
        .into_iter()
        .filter(|path| name_of(path).starts_with("python"))
    {
        let packages = ["dist-packages", "site-packages"].map(|name| python.join(name));
        let releases = entries(&packages);
        found = found.max(releases.iter().filter_map(|path| release_in_name(name_of(path))).max());
    }
    found
}

fn entries(directories: &[PathBuf]) -> Vec<PathBuf> {
    let readable = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    readable.flatten().flatten().map(|entry| entry.path()).collect()
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The major number in a name such as `neutron-28.0.2.dist-info`.
fn release_in_name(name: &str) -> Option<u32> {
    let version = name.strip_prefix("neutron-")?;
    let version = version.strip_suffix("-info")?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_from_the_names_of_pythons_metadata() {
        assert_eq!(release_in_name("neutron-28.0.2.dist-info"), Some(28));
        assert_eq!(release_in_name("neutron-21.0.0.egg-info"), Some(21));
        assert_eq!(release_in_name("neutron-29.0.0-py3.12.egg-info"), Some(29));
        assert_eq!(release_in_name("neutron-lib-3.0.0.dist-info"), None);
        assert_eq!(release_in_name("neutron-28.0.2"), None);
    }
}
