// SPDX-License-Identifier: Apache-2.0
//! The files of each package: one list for all formats.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::DistInputs;
use crate::{TaskError, TaskResult, build};

/// A package of the distribution.
#[derive(PartialEq, Eq)]
pub struct Package {
    pub name: &'static str,
    /// The directories below `crates` of its programs, the main program first. The crate of `x` is `vipwatch-x`.
    pub crate_directories: &'static [&'static str],
    /// The first line of the description.
    pub summary: &'static str,
}

/// The command `vipwatch` and its services.
const VIPWATCH: Package = Package {
    name: "vipwatch",
    crate_directories: &["cli"],
    summary: "follows every virtual address of a machine",
};

/// The drop-in for Neutron.
const NEUTRON: Package = Package {
    name: "vipwatch-neutron",
    crate_directories: &["dropin", "switch"],
    summary: "native monitor for the HA routers of OpenStack Neutron",
};

pub const PACKAGES: [Package; 2] = [VIPWATCH, NEUTRON];

/// Where a format puts files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Debian 11 reads units only below /lib.
    Debian,
    /// Everything below /usr.
    Merged,
}

/// One file of a package.
pub struct PackagedFile {
    pub source: PathBuf,
    /// The path in the installed system, without the leading slash.
    pub destination: String,
    /// The permission bits.
    pub mode: u32,
}

impl PackagedFile {
    /// Programs and scripts stay executable.
    pub fn new(source: PathBuf, destination: impl Into<String>) -> Result<Self, TaskError> {
        let metadata = fs::metadata(&source)
            .map_err(|error| TaskError(format!("cannot read {}: {error}", source.display())))?;
        let is_executable = metadata.permissions().mode() & 0o100 != 0;
        let mode = if is_executable { 0o755 } else { 0o644 };
        Ok(Self { source, destination: destination.into(), mode })
    }
}

/// The installed configuration file, without the leading slash. It is short and rarely changes, because dpkg and rpm ask the
/// administrator, or write a second file, when a new version of it meets a changed one.
pub const CONFIG: &str = "etc/vipwatch/vipwatch.toml";
pub const CONFIG_SOURCE: &str = "packaging/etc/vipwatch.toml";

/// Files of the repository, and their places in the package.
const VIPWATCH_FILES: [(&str, &str); 6] = [
    (CONFIG_SOURCE, CONFIG),
    ("packaging/vipwatch.toml", "usr/share/doc/vipwatch/examples/vipwatch.toml"),
    ("packaging/examples/fewer-rights.conf", "usr/share/doc/vipwatch/examples/fewer-rights.conf"),
    ("packaging/sysusers.d/vipwatch.conf", "usr/lib/sysusers.d/vipwatch.conf"),
    ("packaging/tmpfiles.d/vipwatch.conf", "usr/lib/tmpfiles.d/vipwatch.conf"),
    ("docs/README.md", "usr/share/doc/vipwatch/README.md"),
];

const NEUTRON_FILES: [(&str, &str); 7] = [
    ("packaging/neutron/neutron-setup", "usr/lib/vipwatch/neutron-setup"),
    ("packaging/man/vipwatch-neutron-switch.8", "usr/share/man/man8/vipwatch-neutron-switch.8"),
    (
        "packaging/completions/vipwatch-neutron-switch.bash",
        "usr/share/bash-completion/completions/vipwatch-neutron-switch",
    ),
    ("packaging/logrotate/template", "usr/share/vipwatch-neutron/logrotate"),
    ("packaging/rootwrap/vipwatch.filters", "usr/share/vipwatch-neutron/vipwatch.filters"),
    (
        "packaging/kill-scripts/neutron-keepalived-state-change-monitor-kill",
        "usr/share/vipwatch-neutron/neutron-keepalived-state-change-monitor-kill",
    ),
    (
        "packaging/examples/neutron-keepalived-state-change.conf",
        "usr/share/doc/vipwatch-neutron/examples/neutron-keepalived-state-change.conf",
    ),
];

/// Lists the files of a package, sorted by destination.
pub fn files(
    package: &Package,
    layout: Layout,
    inputs: &DistInputs,
) -> Result<Vec<PackagedFile>, TaskError> {
    let mut list = List(Vec::new());
    if *package == VIPWATCH {
        vipwatch(&mut list, layout, inputs)?;
    } else {
        list.add(&inputs.dropin, "usr/lib/vipwatch/neutron-keepalived-state-change")?;
        list.add(&inputs.switch, "usr/sbin/vipwatch-neutron-switch")?;
        list.add_tracked(&NEUTRON_FILES)?;
    }
    // A page belongs to the program that it describes.
    list.add_directory(&inputs.generated.join("man"), |page| {
        let is_neutron =
            page.starts_with("vipwatch-neutron") || page.starts_with("neutron-keepalived");
        let (_, section) = page.rsplit_once('.')?;
        let is_ours = is_neutron == (*package == NEUTRON);
        is_ours.then(|| format!("usr/share/man/man{section}/{page}"))
    })?;
    documents(&mut list, package, layout, inputs)?;
    list.0.sort_by(|a, b| a.destination.cmp(&b.destination));
    Ok(list.0)
}

/// Collects files.
struct List(Vec<PackagedFile>);

impl List {
    fn add(&mut self, source: &Path, destination: impl Into<String>) -> TaskResult {
        self.0.push(PackagedFile::new(source.to_owned(), destination)?);
        Ok(())
    }

    /// Adds files of the repository.
    fn add_tracked(&mut self, pairs: &[(&str, &str)]) -> TaskResult {
        pairs.iter().try_for_each(|(source, to)| self.add(&build::root().join(source), *to))
    }

    /// Adds the files of a directory for which `destination` returns a path.
    fn add_directory(
        &mut self,
        directory: &Path,
        destination: impl Fn(&str) -> Option<String>,
    ) -> TaskResult {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if let Some(destination) = destination(&entry.file_name().to_string_lossy()) {
                self.add(&entry.path(), destination)?;
            }
        }
        Ok(())
    }
}

fn vipwatch(list: &mut List, layout: Layout, inputs: &DistInputs) -> TaskResult {
    list.add(&inputs.vipwatch, "usr/bin/vipwatch")?;
    list.add_tracked(&VIPWATCH_FILES)?;
    let (units, zsh) = match layout {
        Layout::Debian => ("lib/systemd/system", "usr/share/zsh/vendor-completions"),
        Layout::Merged => ("usr/lib/systemd/system", "usr/share/zsh/site-functions"),
    };
    list.add_directory(&build::root().join("packaging/systemd"), |unit| {
        Some(format!("{units}/{unit}"))
    })?;
    let completions = inputs.generated.join("completions");
    list.add(&completions.join("bash"), "usr/share/bash-completion/completions/vipwatch")?;
    list.add(&completions.join("zsh"), format!("{zsh}/_vipwatch"))?;
    list.add(&completions.join("fish"), "usr/share/fish/vendor_completions.d/vipwatch.fish")?;
    // The documents for operators, so that the runbook is on the machine, in the directories of the repository.
    for directory in ["concepts", "guides", "operations", "reference"] {
        list.add_directory(&build::root().join("docs").join(directory), |name| {
            let is_document = Path::new(name).extension().is_some_and(|end| end == "md");
            is_document.then(|| format!("usr/share/doc/vipwatch/{directory}/{name}"))
        })?;
    }
    Ok(())
}

fn documents(
    list: &mut List,
    package: &Package,
    layout: Layout,
    inputs: &DistInputs,
) -> TaskResult {
    let name = package.name;
    let root = build::root();
    let licenses = inputs.generated.join(format!("{name}.licenses.gz"));
    list.add(&licenses, format!("usr/share/doc/{name}/third-party-licenses.gz"))?;
    list.add(&root.join("NOTICE"), format!("usr/share/doc/{name}/NOTICE"))?;
    if layout == Layout::Merged {
        return list.add(&root.join("LICENSE"), format!("usr/share/licenses/{name}/LICENSE"));
    }
    list.add(&root.join("packaging/deb/copyright"), format!("usr/share/doc/{name}/copyright"))?;
    let overrides = root.join(format!("packaging/deb/{name}/lintian-overrides"));
    list.add(&overrides, format!("usr/share/lintian/overrides/{name}"))
}
