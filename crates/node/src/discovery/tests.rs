// SPDX-License-Identifier: Apache-2.0
//! From files and directories to instances.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use vipwatch_linux::process_table::ProcessId;

use super::*;
use crate::processes::{ProcessNetns, ProcessSource};

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn instance(name: &str, vip: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n interface eth0\n virtual_router_id 1\n \
         virtual_ipaddress {{\n  {vip} dev ha-1\n }}\n virtual_ipaddress_excluded {{\n  \
         10.9.9.9/32 dev qg-1\n }}\n}}\n"
    )
}

fn temporary_locations() -> (tempfile::TempDir, ConfigLocations) {
    let directory = tempfile::tempdir().unwrap();
    let locations = ConfigLocations {
        neutron: directory.path().join("neutron"),
        keepalived: vec![directory.path().join("etc/keepalived.conf")],
        ..ConfigLocations::default()
    };
    (directory, locations)
}

fn problem_lines(discovery: &DiscoveryResult) -> Vec<String> {
    let show = |problem: &ConfigProblem| {
        let name = problem.file.file_name().unwrap().to_string_lossy().into_owned();
        format!("{name}:{}: {}", problem.line.unwrap_or(0), problem.text)
    };
    discovery.problems.iter().map(show).collect()
}

#[test]
fn a_host_without_keepalived_has_no_instances_and_no_problems() {
    let (_directory, locations) = temporary_locations();
    let discovery = discover(&locations);
    assert!(discovery.instances.is_empty() && discovery.problems.is_empty());
}

#[test]
fn routers_and_ordinary_instances_are_found_side_by_side() {
    let (_directory, locations) = temporary_locations();
    for id in ["5c7d", "0a1b"] {
        let file = locations.neutron.join("ha_confs").join(id).join("keepalived.conf");
        write(&file, &instance("VR_1", "169.254.0.1/24"));
    }
    write(
        &locations.keepalived[0],
        &format!("net_namespace blue\n{}", instance("VI_1", "192.0.2.9")),
    );
    let discovery = discover(&locations);
    assert_eq!(problem_lines(&discovery), Vec::<String>::new());
    let instances: Vec<String> = discovery
        .instances
        .iter()
        .map(|one| {
            let netns = one.netns.as_ref().unwrap();
            format!("{} {} {netns} {}", one.id, one.origin.word(), one.watched().len())
        })
        .collect();
    let expected =
        ["0a1b neutron qrouter-0a1b 1", "5c7d neutron qrouter-5c7d 1", "VI_1 keepalived blue 2"];
    assert_eq!(instances, expected, "a router's floating addresses do not make it primary");
}

#[test]
fn included_files_are_read_and_problems_have_their_file_and_line() {
    let (_directory, locations) = temporary_locations();
    let etc = locations.keepalived[0].parent().unwrap();
    write(&locations.keepalived[0], "include conf.d/*.conf\ninclude gone.conf\n$X=1\n");
    write(&etc.join("conf.d/a.conf"), &instance("A", "192.0.2.1"));
    write(&etc.join("conf.d/b.conf"), &format!("\n{}", instance("A", "192.0.2.2")));
    write(&etc.join("conf.d/c.conf"), "include c.conf\nvrrp_instance C {\n");
    write(&etc.join("conf.d/d.other"), &instance("D", "192.0.2.4"));
    let discovery = discover(&locations);
    let ids: Vec<&str> = discovery.instances.iter().map(|instance| instance.id.as_str()).collect();
    assert_eq!(ids, ["A"]);
    let lines = problem_lines(&discovery);
    for expected in [
        "b.conf:2: vrrp_instance A is already defined in line 1",
        "c.conf:1: include c.conf: the file includes itself",
        "c.conf:2: vrrp_instance C is not closed",
        "keepalived.conf:2: include gone.conf: no such file",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected}: {lines:#?}");
    }
}

#[test]
fn conditional_lines_are_decided_by_the_configuration_id_also_when_it_changes() {
    let (_directory, mut locations) = temporary_locations();
    let text =
        instance("A", "192.0.2.1").replace("192.0.2.1", "@left 192.0.2.1\n  @right 192.0.2.2");
    write(&locations.keepalived[0], &text);
    // Old enough to count as complete.
    let file = File::options().write(true).open(&locations.keepalived[0]).unwrap();
    file.set_modified(SystemTime::now() - 10 * SETTLE).unwrap();
    let first_address =
        |discovery: &DiscoveryResult| discovery.instances[0].watched()[0].1.to_string();
    locations.config_id = Some("left".to_owned());
    let mut scanner = ConfigScanner::new(locations.clone(), Vec::new());
    assert_eq!(first_address(&scanner.scan()), "192.0.2.1/32");
    locations.config_id = Some("right".to_owned());
    scanner.set_locations(locations, Vec::new());
    assert_eq!(first_address(&scanner.scan()), "192.0.2.2/32");
}

#[test]
fn a_name_with_special_characters_is_escaped_in_the_id() {
    let (_directory, locations) = temporary_locations();
    write(&locations.keepalived[0], &instance("net/A", "192.0.2.1"));
    let discovery = discover(&locations);
    assert_eq!(problem_lines(&discovery), Vec::<String>::new());
    assert_eq!(discovery.instances[0].id.as_str(), "net~2FA");
    assert_eq!(discovery.instances[0].vrrp.name, "net/A");
}

#[test]
fn an_included_file_that_is_missing_for_a_moment_keeps_its_instances() {
    let (_directory, locations) = temporary_locations();
    let included = locations.keepalived[0].parent().unwrap().join("conf.d/a.conf");
    write(&locations.keepalived[0], "include conf.d/*.conf\n");
    write(&included, &instance("A", "192.0.2.1"));
    let ids = |discovery: &DiscoveryResult| -> Vec<String> {
        discovery.instances.iter().map(|instance| instance.id.to_string()).collect()
    };
    let keepalived = locations.keepalived[0].clone();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    assert_eq!(ids(&scanner.scan()), ["A"]);
    std::fs::remove_file(&included).unwrap();
    let discovery = scanner.scan();
    assert_eq!(ids(&discovery), ["A"]);
    assert_eq!(
        problem_lines(&discovery),
        ["a.conf:0: the file is missing; its instances are kept for 5 s"]
    );
    write(&included, &instance("A", "192.0.2.1"));
    // Old enough to count as complete.
    let written = SystemTime::now() - SETTLE * 2;
    File::options().write(true).open(&included).unwrap().set_modified(written).unwrap();
    File::options().write(true).open(&keepalived).unwrap().set_modified(written).unwrap();
    let discovery = scanner.scan();
    assert_eq!((ids(&discovery), problem_lines(&discovery)), (vec!["A".to_owned()], Vec::new()));
}

#[test]
fn a_named_pipe_instead_of_a_file_does_not_block_the_scan() {
    let (_directory, locations) = temporary_locations();
    std::fs::create_dir_all(locations.keepalived[0].parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&locations.keepalived[0]).status().unwrap();
    assert!(made.success());
    assert_eq!(
        problem_lines(&discover(&locations)),
        ["keepalived.conf:0: cannot read the file: it is not a regular file"]
    );
}

#[test]
fn only_a_problem_that_leaves_instances_unknown_may_hide_some() {
    let (directory, locations) = temporary_locations();
    write(&directory.path().join("etc/binary.conf"), "\0");
    let valid = instance("A", "192.0.2.9");
    let with = |line: &str| valid.replace("interface", &format!("{line}\n interface"));
    let without = |line: &str| valid.replace(line, "");
    let address = |more: &str| instance("A", &format!("192.0.2.9 dev ha-1\n  {more}"));
    for (text, may_hide) in [
        (address("2001:db8::1"), false),
        (address("192.0.2.300"), false),
        (address("192.0.2.8 brd x"), false),
        (instance("A", "192.0.2.300"), false),
        (with("priority 300"), false),
        (with("advert_int 999"), false),
        (format!("{valid}{valid}"), false),
        (format!("{valid}include gone.conf\n"), false),
        (format!("{valid}include binary.conf\n"), true),
        (format!("{valid}include /*/*/*/*/*/*\n"), true),
        (instance("A", "192.0.2.300").replace("10.9.9.9", "10.9.9.300"), true),
        (without("virtual_router_id 1"), true),
        (without("interface eth0"), true),
        (without("A {"), true),
        (format!("{valid}}}\n"), true),
        (format!("{valid}vrrp_instance B {{\n"), true),
    ] {
        write(&locations.keepalived[0], &text);
        let discovery = discover(&locations);
        assert!(!discovery.problems.is_empty(), "{text}");
        assert_eq!(discovery.may_hide_instances, may_hide, "{text}\n{:?}", discovery.problems);
    }
    write(&locations.keepalived[0], &valid);
    let router = locations.neutron.join("ha_confs/r1/keepalived.conf");
    write(&router, &instance("VR_1", "192.0.2.300"));
    assert!(discover(&locations).may_hide_instances, "no address decides the role");
}

fn source(file: &Path, netns: ProcessNetns) -> ProcessSource {
    let process = Some(ProcessId { pid: 7, started: 1 });
    ProcessSource {
        file: file.into(),
        netns,
        config_id: None,
        version: None,
        process,
        is_foreign: false,
    }
}

/// A version as an executable has it.
fn version(number: &str) -> Version {
    Version::in_executable(format!("Keepalived v{number} (").as_bytes()).unwrap()
}

fn ids(discovery: &DiscoveryResult) -> Vec<String> {
    let id = |one: &Arc<InstanceConfig>| {
        let netns = one.netns.as_ref().map(|netns| format!(" in {netns}"));
        format!("{}{}", one.id, netns.unwrap_or_default())
    };
    discovery.instances.iter().map(id).collect()
}

#[test]
fn patterns_name_several_files_and_exclude_leaves_some_out() {
    let (directory, mut locations) = temporary_locations();
    for (file, name) in [("a.conf", "A"), ("b.conf", "B"), ("c.txt", "C")] {
        write(&directory.path().join("etc").join(file), &instance(name, "192.0.2.9"));
    }
    locations.keepalived = vec![directory.path().join("etc/*.conf")];
    let mut scanner = ConfigScanner::new(locations.clone(), Vec::new());
    assert_eq!(ids(&scanner.scan()), ["A", "B"]);
    assert!(scanner.directories().contains(&directory.path().join("etc")));
    locations.exclude = vec![directory.path().join("etc/b*")];
    scanner.set_locations(locations, Vec::new());
    assert_eq!(ids(&scanner.scan()), ["A"]);
    std::fs::remove_file(directory.path().join("etc/a.conf")).unwrap();
    let held = scanner.scan();
    assert_eq!(ids(&held), ["A"], "a file that disappears is kept for a while");
    assert!(held.hold_ends_in.is_some());
}

#[test]
fn files_of_processes_are_read_in_the_namespace_of_their_process() {
    let (directory, mut locations) = temporary_locations();
    write(&locations.keepalived[0], &instance("A", "192.0.2.9"));
    let [one, two] = ["one.conf", "two.conf"].map(|name| directory.path().join(name));
    write(&one, &instance("A", "192.0.2.9"));
    write(&two, &format!("net_namespace red\n{}", instance("A", "192.0.2.9")));
    let blue = || ProcessNetns::Named("blue".parse().unwrap());
    let sources = vec![
        source(&one, blue()),
        source(&two, ProcessNetns::Own),
        source(&locations.neutron.join("ha_confs/r/keepalived.conf"), blue()),
    ];
    let mut scanner = ConfigScanner::new(locations.clone(), Vec::new());
    scanner.set_sources(sources.clone());
    let first = scanner.scan();
    assert_eq!(ids(&first), ["A", "A.blue in blue", "A.red in red"]);
    let second = scanner.scan();
    let is_same = |(a, b): (&Arc<InstanceConfig>, &Arc<InstanceConfig>)| Arc::ptr_eq(a, b);
    assert!(first.instances.iter().zip(&second.instances).all(is_same), "nothing has changed");
    locations.exclude = vec![two];
    scanner.set_locations(locations.clone(), Vec::new());
    assert_eq!(ids(&scanner.scan()), ["A", "A.blue in blue"]);
    // A process may use a file that the configuration names.
    scanner.set_sources(vec![source(&locations.keepalived[0], blue())]);
    assert_eq!(ids(&scanner.scan()), ["A in blue"]);
}

#[test]
fn a_process_in_a_namespace_without_a_name_is_followed_through_the_process() {
    let (directory, locations) = temporary_locations();
    let file = directory.path().join("one.conf");
    write(&file, &instance("A", "192.0.2.9"));
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    scanner.set_sources(vec![source(&file, ProcessNetns::Unnamed)]);
    assert_eq!(ids(&scanner.scan()), ["A in pid:7"]);
}

#[test]
fn the_file_of_a_container_cannot_choose_a_namespace_and_has_an_origin_of_its_own() {
    let (directory, mut locations) = temporary_locations();
    let file = directory.path().join("one.conf");
    write(&file, &format!("net_namespace red\n{}", instance("A", "192.0.2.9")));
    let container = ProcessSource { is_foreign: true, ..source(&file, ProcessNetns::Own) };
    let scan = |locations: &ConfigLocations| {
        let mut scanner = ConfigScanner::new(locations.clone(), Vec::new());
        scanner.set_sources(vec![container.clone()]);
        scanner.scan()
    };
    assert_eq!(ids(&scan(&locations)), [""; 0], "containers are left out");
    locations.has_containers = true;
    let discovery = scan(&locations);
    assert_eq!(ids(&discovery), ["A"], "in the namespace of the process");
    assert_eq!(discovery.instances[0].origin, Origin::Container);
}

/// The problems of a file of ordinary keepalived with these permissions.
fn problems_of(text: &str, mode: u32) -> Vec<String> {
    let (_directory, locations) = temporary_locations();
    let file = &locations.keepalived[0];
    write(file, text);
    std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
    for directory in file.ancestors().skip(1).take(2) {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
    problem_lines(&discover(&locations))
}

#[test]
fn words_of_a_file_are_quoted_only_if_every_user_may_read_it() {
    let text = instance("A", "192.0.2.9").replace("192.0.2.9", "root:$y$secret:1::");
    let readable = problems_of(&text, 0o644).join("\n");
    assert!(readable.contains("\"root:$y$secret:1::\" is not an address"), "{readable}");
    let private = problems_of(&text, 0o640).join("\n");
    assert!(private.contains(": expected an address"), "{private}");
    assert!(!private.contains("secret"), "{private}");
}

#[test]
fn words_of_a_file_in_a_closed_directory_are_not_quoted_through_a_link() {
    let (directory, locations) = temporary_locations();
    let closed = directory.path().join("closed");
    write(&closed.join("secret"), &instance("secret", "192.0.2.9").replace("interface", "x"));
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let file = &locations.keepalived[0];
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(closed.join("secret"), file).unwrap();
    for directory in file.ancestors().skip(1).take(2) {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let problems = problem_lines(&discover(&locations)).join("\n");
    assert!(problems.contains("this vrrp_instance has no interface"), "{problems}");
}

#[test]
fn the_file_of_a_router_includes_no_other_file() {
    let (directory, locations) = temporary_locations();
    let other = directory.path().join("other.conf");
    write(&other, "}\n}\n");
    let router = locations.neutron.join("ha_confs/r1/keepalived.conf");
    write(&router, &format!("{}include {}\n", instance("VR_1", "192.0.2.9"), other.display()));
    let discovery = discover(&locations);
    assert_eq!(ids(&discovery), ["r1 in qrouter-r1"]);
    let problems = problem_lines(&discovery);
    assert!(problems[0].contains("Neutron writes no include"), "{problems:?}");
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn a_file_beyond_a_limit_is_one_problem_and_its_last_good_content_stays_in_use() {
    let (_directory, locations) = temporary_locations();
    let file = locations.keepalived[0].clone();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    let mut scan = |text: &str| {
        write(&file, text);
        File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let discovery = scanner.scan();
        (ids(&discovery), problem_lines(&discovery))
    };
    let valid = instance("A", "192.0.2.9");
    assert_eq!(scan(&valid), (vec!["A".to_owned()], Vec::new()));
    let blocks = (0..11_000).map(|one| format!("vrrp_instance I{one} {{\n}}\n"));
    let many = blocks.collect::<Vec<_>>().concat();
    let braces = format!("{valid}include {}\n", "{a,b}".repeat(26));
    let mistakes = format!("{valid}{}", "vrrp_instance {\n}\n".repeat(5_000));
    let star = format!("{valid}include /*/*/*/*/*/*\n");
    for (text, expected) in [
        (&many, "more than 10000 vrrp_instance blocks"),
        (&braces, "stands for more than 256 others"),
        (&mistakes, "more problems are not listed"),
        (&star, "match too many directory entries"),
    ] {
        let (ids, problems) = scan(text);
        assert_eq!(ids, ["A"], "{expected}");
        assert!(problems.iter().any(|one| one.contains(expected)), "{expected}: {problems:?}");
        assert!(problems.len() <= 101, "{expected}: {}", problems.len());
    }
}

#[test]
fn a_problem_says_whether_this_version_of_the_file_is_in_use() {
    let (_directory, locations) = temporary_locations();
    let file = locations.keepalived[0].clone();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    let mut contents = |text: &str| {
        write(&file, text);
        // A file that was written just now counts as incomplete.
        File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let problems = scanner.scan().problems;
        problems.into_iter().map(|problem| problem.content).collect::<Vec<_>>()
    };
    let valid = instance("VI_1", "192.0.2.9");
    let ignored = valid.replace("10.9.9.9/32 dev qg-1", "2001:db8::300000/64");
    assert_eq!(contents(&ignored), [ContentInUse::Rest]);
    assert_eq!(contents(&valid), []);
    assert_eq!(contents("include gone.conf\n}\n").first(), Some(&ContentInUse::LastValid));
}

#[test]
fn a_file_that_changes_together_with_the_version_of_its_keepalived_is_read_for_that_version() {
    let (_directory, locations) = temporary_locations();
    let file = locations.keepalived[0].clone();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    let signed = "auth_hmac {\n key 1 x\n active_key 1\n }\n virtual_ipaddress {";
    let text = |vip| instance("A", vip).replacen("virtual_ipaddress {", signed, 1);
    let edit = |vip| {
        write(&file, &text(vip));
        File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    let mut scan = |version| {
        let version = Some(version);
        scanner.set_sources(vec![ProcessSource { version, ..source(&file, ProcessNetns::Own) }]);
        let discovery = scanner.scan();
        let watched = discovery.instances[0].watched();
        (watched[0].1.to_string(), !discovery.problems.is_empty())
    };
    let (old, new) = (version("2.2.7"), version("2.4.3"));
    edit("192.0.2.1");
    assert_eq!(scan(old), ("192.0.2.1/32".to_owned(), true));
    assert_eq!(scan(new), ("192.0.2.1/32".to_owned(), false), "only the version has changed");
    edit("192.0.2.2");
    assert_eq!(scan(old), ("192.0.2.2/32".to_owned(), true));
    edit("192.0.2.3");
    assert_eq!(scan(new), ("192.0.2.3/32".to_owned(), false));
}

#[test]
fn a_process_that_has_vanished_leaves_its_file_readable_and_its_environment_unknown() {
    let (_directory, locations) = temporary_locations();
    let file = locations.keepalived[0].clone();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let id = vipwatch_linux::process_table::stat(child.id()).unwrap().id;
    child.wait().unwrap();
    let vanished = ProcessSource {
        process: Some(id),
        version: Some(version("2.4.3")),
        ..source(&file, ProcessNetns::Own)
    };
    assert!(!vanished.is_running() && !matches!(vanished.loaded_config(), Ok(Some(_))));
    let text = format!(
        "{}{}",
        instance("A", "192.0.2.1"),
        instance("B", "${_ENV VIP}").replace("_id 1", "_id 2")
    );
    write(&file, &text);
    File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    scanner.set_sources(vec![vanished]);
    let discovery = scanner.scan();
    assert_eq!(ids(&discovery), ["A", "B"]);
    let unknown = "the address cannot be known: keepalived chooses it when it starts";
    assert_eq!(problem_lines(&discovery), [format!("keepalived.conf:15: {unknown}")]);
}

#[test]
fn the_instances_of_a_keepalived_without_a_copy_stay_while_its_file_is_missing() {
    let (_directory, locations) = temporary_locations();
    let file = locations.keepalived[0].clone();
    // This process runs, and has no copy of a configuration.
    let process = vipwatch_linux::process_table::stat(std::process::id()).unwrap().id;
    let running = ProcessSource { process: Some(process), ..source(&file, ProcessNetns::Own) };
    // keepalived ignores the priority.
    write(&file, &instance("A", "192.0.2.1").replace("_id 1", "_id 1\n priority 300"));
    File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let mut scanner = ConfigScanner::new(locations, Vec::new());
    scanner.set_sources(vec![running]);
    assert_eq!(ids(&scanner.scan()), ["A"]);
    std::fs::remove_file(&file).unwrap();
    let discovery = scanner.scan();
    assert_eq!(ids(&discovery), ["A"], "{:?}", discovery.problems);
    let problem = &discovery.problems[0];
    assert!(problem.text.contains("still runs with it"), "{problem:?}");
}
