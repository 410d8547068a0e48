// SPDX-License-Identifier: Apache-2.0
//! Compares discovery with real keepalived: both must read the same instances from the same files.
//!
//! Each case consists of a few small files. keepalived starts with them in its own namespace and dumps
//! the configuration that it has read. Several versions of keepalived read each case. The cases are in one module for each subject; this file holds the
//! comparison.

mod addresses;
mod conditionals;
mod definitions;
mod includes;
mod repetitions;
mod statements;
mod syntax;
mod versions;
mod vmac;

use std::path::Path;

use vipwatch_core::keepalived::Version;
use vipwatch_node::discovery::{ConfigLocations, DiscoveryResult, discover};
use vipwatch_testkit::{Dump, DumpInstance, DumpLab};

/// The configuration id (`keepalived -i`) of all cases.
const CONFIG_ID: &str = "node1";

/// One configuration: pairs of file name and content. keepalived is started with the first file.
struct Case {
    name: String,
    files: Vec<(String, String)>,
}

/// A case with this content of `keepalived.conf`.
fn case(name: &str, text: impl Into<String>) -> Case {
    Case { name: name.to_owned(), files: vec![("keepalived.conf".to_owned(), text.into())] }
}

impl Case {
    /// Adds a file that `keepalived.conf` may include.
    fn with(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), text.into()));
        self
    }
}

/// The text of an instance on `eth0` with these additional statements and these addresses.
fn instance(name: &str, statements: &str, addresses: &str) -> String {
    instance_on("eth0", name, statements, addresses)
}

/// As [`instance`], on another link.
fn instance_on(interface: &str, name: &str, statements: &str, addresses: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n    interface {interface}\n    virtual_router_id 51\n    \
         {statements}\n    virtual_ipaddress {{\n        {addresses}\n    }}\n}}\n"
    )
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .unwrap();
}

/// The version of a program, as discovery finds it in the executable of a process.
fn parse(version: &str) -> Version {
    Version::in_executable(format!("Keepalived v{version} ").as_bytes()).unwrap()
}

fn discover_file(file: &Path, config_id: Option<&str>, version: Version) -> DiscoveryResult {
    discover(&ConfigLocations {
        neutron: file.with_file_name("neutron"),
        keepalived: vec![file.to_owned()],
        config_id: config_id.map(str::to_owned),
        version,
        ..ConfigLocations::default()
    })
}

/// The instances that discovery has read, in the form of keepalived's dump.
fn as_dump(discovery: &DiscoveryResult) -> Vec<DumpInstance> {
    let mut instances: Vec<_> = discovery.instances.iter().collect();
    instances.sort_by_key(|instance| (instance.vrrp.position.line, instance.vrrp.name.clone()));
    let number =
        |number: Option<u8>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let dumped = instances.iter().map(|instance| {
        let vrrp = &instance.vrrp;
        let addresses = vrrp.addresses.iter().map(|address| {
            let excluded = if address.is_excluded { " excluded" } else { "" };
            format!("{} dev {}{excluded}", address.cidr, address.link)
        });
        DumpInstance {
            name: vrrp.name.clone(),
            vrid: number(vrrp.vrid),
            priority: number(vrrp.priority),
            interface: vrrp
                .interface
                .map_or_else(|| "not configured".to_owned(), |it| it.to_string()),
            addresses: addresses.collect(),
        }
    });
    dumped.collect()
}

fn sorted_by_name(mut instances: Vec<DumpInstance>) -> Vec<String> {
    instances.sort_by(|a, b| a.name.cmp(&b.name));
    instances.iter().map(ToString::to_string).collect()
}

/// The difference between keepalived and discovery for one file; `None` if both agree.
fn difference(
    lab: &DumpLab,
    file: &Path,
    config_id: Option<&str>,
    version: Version,
) -> Option<String> {
    let discovery = discover_file(file, config_id, version);
    let problems: Vec<&str> =
        discovery.problems.iter().map(|problem| problem.text.as_str()).collect();
    let is_refused = problems.iter().any(|text| text.contains("keepalived does not start"));
    let ours = sorted_by_name(as_dump(&discovery));
    match lab.dump(file, config_id) {
        Dump::Instances(theirs) => {
            // keepalived runs an instance without addresses, discovery only one with `no_virtual_ipaddress`.
            let is_followed = |name: &str| discovery.instances.iter().any(|one| one.vrrp.name == name);
            let is_compared =
                |theirs: &DumpInstance| !theirs.addresses.is_empty() || is_followed(&theirs.name);
            let theirs = theirs.into_iter().filter(is_compared).collect();
            let theirs = sorted_by_name(theirs);
            (theirs != ours || is_refused).then(|| {
                let (theirs, ours) = (theirs.join("\n  "), ours.join("\n  "));
                format!("keepalived:\n  {theirs}\ndiscovery:\n  {ours}\nproblems: {problems:#?}")
            })
        }
        Dump::Refused(reason) => (!is_refused).then(|| {
            let ours = ours.join("\n  ");
            format!(
                "keepalived does not start:\n{reason}\ndiscovery:\n  {ours}\nproblems: {problems:#?}"
            )
        }),
        Dump::Broken(reason) => Some(format!("keepalived crashes or hangs: {reason}")),
    }
}

/// Compares each case with each keepalived. Fails with the name and the difference of each case in which discovery and
/// keepalived disagree, unless the version is known to differ; and if such a version does not differ any more.
#[track_caller]
fn assert_same_result(cases: &[Case]) {
    let mut differences = Vec::new();
    for program in vipwatch_testkit::keepalived::programs() {
        let version = vipwatch_testkit::keepalived::version(&program);
        let lab = DumpLab::running(program);
        for Case { name, files } in cases {
            let directory =
                lab.path().join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
            for (file, text) in files {
                write(&directory, file, text);
            }
            let file = directory.join(&files[0].0);
            let known = versions::difference(&version, name);
            match (difference(&lab, &file, Some(CONFIG_ID), parse(&version)), known) {
                (Some(difference), false) => {
                    differences.push(format!("── {name}, {version}\n{difference}"));
                }
                (None, true) => differences.push(format!("── {name}, {version}: no difference")),
                _ => {}
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} cases differ\n{}",
        differences.len(),
        differences.join("\n")
    );
}
