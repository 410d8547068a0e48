//! Files and directories into instances.

use std::fs::File;
use std::io::Write;

use super::*;

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

fn stage() -> (tempfile::TempDir, ConfigLocations) {
    let directory = tempfile::tempdir().unwrap();
    let places = ConfigLocations {
        neutron: directory.path().join("neutron"),
        keepalived: directory.path().join("etc/keepalived.conf"),
        config_id: None,
    };
    (directory, places)
}

fn said(discovery: &DiscoveryResult) -> Vec<String> {
    let show = |problem: &ConfigProblem| {
        let name = problem.file.file_name().unwrap().to_string_lossy().into_owned();
        format!("{name}:{}: {}", problem.line.unwrap_or(0), problem.text)
    };
    discovery.problems.iter().map(show).collect()
}

#[test]
fn a_node_without_anything_has_nothing_and_no_trouble() {
    let (_directory, places) = stage();
    let discovery = discover(&places);
    assert!(discovery.instances.is_empty() && discovery.problems.is_empty());
}

#[test]
fn routers_and_ordinary_instances_are_found_side_by_side() {
    let (_directory, places) = stage();
    for id in ["5c7d", "0a1b"] {
        let file = places.neutron.join("ha_confs").join(id).join("keepalived.conf");
        write(&file, &instance("VR_1", "169.254.0.1/24"));
    }
    write(&places.keepalived, &format!("net_namespace blue\n{}", instance("VI_1", "192.0.2.9")));
    let discovery = discover(&places);
    assert_eq!(said(&discovery), Vec::<String>::new());
    let found: Vec<String> = discovery
        .instances
        .iter()
        .map(|found| {
            let netns = found.netns.as_ref().unwrap();
            format!("{} {} {netns} {}", found.id, found.origin.word(), found.watched().len())
        })
        .collect();
    let expected =
        ["0a1b neutron qrouter-0a1b 1", "5c7d neutron qrouter-5c7d 1", "VI_1 keepalived blue 2"];
    assert_eq!(found, expected, "a router's floating addresses do not make it primary");
}

#[test]
fn includes_are_followed_and_what_is_wrong_is_named_with_file_and_line() {
    let (_directory, places) = stage();
    let etc = places.keepalived.parent().unwrap();
    write(&places.keepalived, "include conf.d/*.conf\ninclude gone.conf\n$X=1\n");
    write(&etc.join("conf.d/a.conf"), &instance("A", "192.0.2.1"));
    write(&etc.join("conf.d/b.conf"), &format!("\n{}", instance("A", "192.0.2.2")));
    write(&etc.join("conf.d/c.conf"), "include c.conf\nvrrp_instance C {\n");
    write(&etc.join("conf.d/d.other"), &instance("D", "192.0.2.4"));
    let discovery = discover(&places);
    let ids: Vec<&str> = discovery.instances.iter().map(|found| found.id.as_str()).collect();
    assert_eq!(ids, ["A"]);
    let said = said(&discovery);
    for expected in [
        "b.conf:2: vrrp_instance A is already defined",
        "c.conf:1: include c.conf goes round in a circle",
        "c.conf:2: vrrp_instance C is not closed",
        "keepalived.conf:2: include gone.conf: there is no such file",
    ] {
        assert!(said.iter().any(|said| said.starts_with(expected)), "{expected}: {said:#?}");
    }
}

#[test]
fn conditional_lines_are_decided_by_the_configuration_id_also_when_it_changes() {
    let (_directory, mut places) = stage();
    let text =
        instance("A", "192.0.2.1").replace("192.0.2.1", "@left 192.0.2.1\n  @right 192.0.2.2");
    write(&places.keepalived, &text);
    // Long enough ago that the file counts as complete.
    let file = File::options().write(true).open(&places.keepalived).unwrap();
    file.set_modified(SystemTime::now() - 10 * SETTLE).unwrap();
    let first = |discovery: &DiscoveryResult| discovery.instances[0].watched()[0].1.to_string();
    places.config_id = Some("left".to_owned());
    let mut scanner = ConfigScanner::new(places.clone(), Vec::new());
    assert_eq!(first(&scanner.look()), "192.0.2.1/32");
    places.config_id = Some("right".to_owned());
    scanner.redirect(places, Vec::new());
    assert_eq!(first(&scanner.look()), "192.0.2.2/32");
}

#[test]
fn an_instance_with_any_name_has_an_id() {
    let (_directory, places) = stage();
    write(&places.keepalived, &instance("net/A", "192.0.2.1"));
    let discovery = discover(&places);
    assert_eq!(said(&discovery), Vec::<String>::new());
    assert_eq!(discovery.instances[0].id.as_str(), "net~2FA");
    assert_eq!(discovery.instances[0].vrrp.name, "net/A");
}

#[test]
fn an_included_file_that_is_missing_for_a_moment_keeps_its_instances() {
    let (_directory, places) = stage();
    let included = places.keepalived.parent().unwrap().join("conf.d/a.conf");
    write(&places.keepalived, "include conf.d/*.conf\n");
    write(&included, &instance("A", "192.0.2.1"));
    let ids = |discovery: &DiscoveryResult| -> Vec<String> {
        discovery.instances.iter().map(|found| found.id.to_string()).collect()
    };
    let mut scanner = ConfigScanner::new(places, Vec::new());
    assert_eq!(ids(&scanner.look()), ["A"]);
    std::fs::remove_file(&included).unwrap();
    let discovery = scanner.look();
    assert_eq!(ids(&discovery), ["A"]);
    assert_eq!(said(&discovery), ["a.conf:0: the file is missing; its instances are kept for 5 s"]);
    write(&included, &instance("A", "192.0.2.1"));
    // Long enough ago to be believed.
    let written = SystemTime::now() - SETTLE * 2;
    File::options().write(true).open(&included).unwrap().set_modified(written).unwrap();
    File::options()
        .write(true)
        .open(&scanner.places.keepalived)
        .unwrap()
        .set_modified(written)
        .unwrap();
    let discovery = scanner.look();
    assert_eq!((ids(&discovery), said(&discovery)), (vec!["A".to_owned()], Vec::new()));
}

#[test]
fn a_pipe_in_a_files_place_is_not_waited_for() {
    let (_directory, places) = stage();
    std::fs::create_dir_all(places.keepalived.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&places.keepalived).status().unwrap();
    assert!(made.success());
    assert_eq!(
        said(&discover(&places)),
        ["keepalived.conf:0: cannot read it: it is not a regular file"]
    );
}
