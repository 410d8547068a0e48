// SPDX-License-Identifier: Apache-2.0
//! The files of each package: one list for all formats.

use std::path::{Path, PathBuf};

use crate::{TaskError, build};

/// A package of the distribution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Package {
    /// The command `vipwatch` and its services.
    Vipwatch,
    /// The drop-in for Neutron.
    Neutron,
}

impl Package {
    pub const ALL: [Self; 2] = [Self::Vipwatch, Self::Neutron];

    pub fn name(self) -> &'static str {
        match self {
            Self::Vipwatch => "vipwatch",
            Self::Neutron => "vipwatch-neutron",
        }
    }

    /// The directories below `crates` of its programs, the main program first. The crate of `x` is `vipwatch-x`.
    pub fn crate_directories(self) -> &'static [&'static str] {
        match self {
            Self::Vipwatch => &["cli"],
            Self::Neutron => &["dropin", "switch"],
        }
    }

    /// The first line of the description.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Vipwatch => "follows every virtual address of a machine",
            Self::Neutron => "native monitor for the HA routers of OpenStack Neutron",
        }
    }
}

/// Where a format puts files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Debian 11 reads units only below /lib.
    Debian,
    /// Everything below /usr.
    Merged,
}

impl Layout {
    fn units(self) -> &'static str {
        match self {
            Self::Debian => "lib/systemd/system",
            Self::Merged => "usr/lib/systemd/system",
        }
    }

    /// The directory of zsh's completions of packages.
    fn zsh(self) -> &'static str {
        match self {
            Self::Debian => "usr/share/zsh/vendor-completions",
            Self::Merged => "usr/share/zsh/site-functions",
        }
    }
}

/// The programs and generated files that go into the packages.
pub struct Inputs {
    pub vipwatch: PathBuf,
    pub dropin: PathBuf,
    pub switch: PathBuf,
    /// The directory with completions, manual pages and documents; see [`super::generated`].
    pub generated: PathBuf,
}

/// One file of a package.
pub struct PackagedFile {
    pub source: PathBuf,
    /// The path in the installed system, without the leading slash.
    pub destination: String,
    /// The permission bits.
    pub mode: u32,
}

/// The path of the configuration file, without the leading slash.
pub const CONFIG: &str = "etc/vipwatch/vipwatch.toml";

/// Lists the files of a package, sorted by destination.
pub fn files(
    package: Package,
    layout: Layout,
    inputs: &Inputs,
) -> Result<Vec<PackagedFile>, TaskError> {
    let mut list = List { files: Vec::new() };
    match package {
        Package::Vipwatch => vipwatch(&mut list, layout, inputs)?,
        Package::Neutron => neutron(&mut list, inputs),
    }
    manual_pages(&mut list, package, inputs)?;
    documents(&mut list, package, layout, inputs);
    list.files.sort_by(|a, b| a.destination.cmp(&b.destination));
    Ok(list.files)
}

/// Collects files.
struct List {
    files: Vec<PackagedFile>,
}

impl List {
    fn add(&mut self, source: impl Into<PathBuf>, destination: impl Into<String>, mode: u32) {
        let (source, destination) = (source.into(), destination.into());
        self.files.push(PackagedFile { source, destination, mode });
    }
}

fn packaging() -> PathBuf {
    build::root().join("packaging")
}

/// The installed configuration file. It is short and rarely changes, because dpkg and rpm ask the administrator, or write a
/// second file, when a new version of it meets a changed one.
pub fn config() -> PathBuf {
    packaging().join("etc/vipwatch.toml")
}

fn vipwatch(list: &mut List, layout: Layout, inputs: &Inputs) -> Result<(), TaskError> {
    list.add(&inputs.vipwatch, "usr/bin/vipwatch", 0o755);
    for unit in entries(&packaging().join("systemd"))? {
        list.add(
            packaging().join("systemd").join(&unit),
            format!("{}/{unit}", layout.units()),
            0o644,
        );
    }
    list.add(config(), CONFIG, 0o644);
    let examples = "usr/share/doc/vipwatch/examples";
    list.add(packaging().join("vipwatch.toml"), format!("{examples}/vipwatch.toml"), 0o644);
    let rights = packaging().join("examples/fewer-rights.conf");
    list.add(rights, format!("{examples}/fewer-rights.conf"), 0o644);
    guides(list)?;
    let conf = "vipwatch.conf";
    for directory in ["sysusers.d", "tmpfiles.d"] {
        let source = packaging().join(directory).join(conf);
        list.add(source, format!("usr/lib/{directory}/{conf}"), 0o644);
    }
    let completions = [
        ("bash", "usr/share/bash-completion/completions/vipwatch".to_owned()),
        ("zsh", format!("{}/_vipwatch", layout.zsh())),
        ("fish", "usr/share/fish/vendor_completions.d/vipwatch.fish".to_owned()),
    ];
    for (shell, destination) in completions {
        list.add(inputs.generated.join("completions").join(shell), destination, 0o644);
    }
    Ok(())
}

/// Adds the documents for operators, so that the runbook is on the machine, in the same directories as in the repository.
fn guides(list: &mut List) -> Result<(), TaskError> {
    let docs = build::root().join("docs");
    for directory in ["concepts", "guides", "operations", "reference"] {
        let names = entries(&docs.join(directory))?;
        for name in
            names.iter().filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
        {
            let destination = format!("usr/share/doc/vipwatch/{directory}/{name}");
            list.add(docs.join(directory).join(name), destination, 0o644);
        }
    }
    list.add(docs.join("README.md"), "usr/share/doc/vipwatch/README.md", 0o644);
    Ok(())
}

fn neutron(list: &mut List, inputs: &Inputs) {
    let name = "neutron-keepalived-state-change";
    list.add(&inputs.dropin, format!("usr/lib/vipwatch/{name}"), 0o755);
    list.add(packaging().join("neutron/neutron-setup"), "usr/lib/vipwatch/neutron-setup", 0o755);
    list.add(&inputs.switch, "usr/sbin/vipwatch-neutron-switch", 0o755);
    list.add(
        packaging().join("man/vipwatch-neutron-switch.8"),
        "usr/share/man/man8/vipwatch-neutron-switch.8",
        0o644,
    );
    list.add(
        packaging().join("completions/vipwatch-neutron-switch.bash"),
        "usr/share/bash-completion/completions/vipwatch-neutron-switch",
        0o644,
    );
    list.add(packaging().join("logrotate/template"), "usr/share/vipwatch-neutron/logrotate", 0o644);
    list.add(
        packaging().join("rootwrap/vipwatch.filters"),
        "usr/share/vipwatch-neutron/vipwatch.filters",
        0o644,
    );
    list.add(
        packaging().join("kill-scripts/neutron-keepalived-state-change-monitor-kill"),
        "usr/share/vipwatch-neutron/neutron-keepalived-state-change-monitor-kill",
        0o755,
    );
    list.add(
        packaging().join("examples/neutron-keepalived-state-change.conf"),
        "usr/share/doc/vipwatch-neutron/examples/neutron-keepalived-state-change.conf",
        0o644,
    );
}

/// Adds the manual pages of a package, by the name of the program that they describe.
fn manual_pages(list: &mut List, package: Package, inputs: &Inputs) -> Result<(), TaskError> {
    let directory = inputs.generated.join("man");
    for page in entries(&directory)? {
        let is_neutron =
            page.starts_with("vipwatch-neutron") || page.starts_with("neutron-keepalived");
        if is_neutron != (package == Package::Neutron) {
            continue;
        }
        let section = page.rsplit_once('.').map(|(_, section)| section).unwrap_or_default();
        list.add(directory.join(&page), format!("usr/share/man/man{section}/{page}"), 0o644);
    }
    Ok(())
}

fn documents(list: &mut List, package: Package, layout: Layout, inputs: &Inputs) {
    let name = package.name();
    let documents = format!("usr/share/doc/{name}");
    list.add(
        inputs.generated.join(format!("{name}.licenses.gz")),
        format!("{documents}/third-party-licenses.gz"),
        0o644,
    );
    list.add(build::root().join("NOTICE"), format!("{documents}/NOTICE"), 0o644);
    match layout {
        Layout::Debian => {
            list.add(packaging().join("deb/copyright"), format!("{documents}/copyright"), 0o644);
            list.add(
                packaging().join("deb").join(name).join("lintian-overrides"),
                format!("usr/share/lintian/overrides/{name}"),
                0o644,
            );
        }
        Layout::Merged => {
            list.add(
                build::root().join("LICENSE"),
                format!("usr/share/licenses/{name}/LICENSE"),
                0o644,
            );
        }
    }
}

/// The names in a directory, sorted.
fn entries(directory: &Path) -> Result<Vec<String>, TaskError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_has_the_runbook_and_the_documents_that_it_links_to() {
        let mut list = List { files: Vec::new() };
        assert!(guides(&mut list).is_ok());
        let has = |name: &str| {
            let path = format!("usr/share/doc/vipwatch/{name}");
            list.files.iter().any(|file| file.destination == path)
        };
        for name in ["operations/runbook.md", "guides/install.md", "reference/cli.md", "README.md"]
        {
            assert!(has(name), "{name}");
        }
    }
}
