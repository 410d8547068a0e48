// SPDX-License-Identifier: Apache-2.0
//! Reads instances and their addresses from the text of a configuration.

use proptest::prelude::*;

use super::*;
use crate::keepalived::Impact;
use crate::keepalived::{AuthHmacMode, Source};

fn read(text: &str) -> (Configuration, Vec<String>) {
    read_as(Version::NEWEST, text)
}

fn read_as(version: Version, text: &str) -> (Configuration, Vec<String>) {
    let mut problems = Problems::default();
    let first = Source::alone(text.to_owned());
    let program = Program { config_id: "node1", version };
    let configuration = configuration(first, &mut (), program, &mut problems);
    let messages = problems
        .iter()
        .map(|problem| format!("{}: {}", problem.position.line, problem.message.text(true)));
    (configuration, messages.collect())
}

/// The text of an instance with these statements, which may be several lines.
fn instance(name: &str, statements: &str, addresses: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n interface eth0\n virtual_router_id 7\n {statements}\n \
         virtual_ipaddress {{\n{addresses}\n }}\n}}\n"
    )
}

fn links(configuration: &Configuration) -> Vec<String> {
    let addresses = configuration.instances.iter().flat_map(|instance| &instance.addresses);
    addresses.map(|address| format!("{} {}", address.cidr.addr(), address.link)).collect()
}

#[test]
fn an_instance_is_read_with_all_its_settings() {
    let (configuration, problems) = read(
        "net_namespace blue\n\
         vrrp_instance VI_1 {\n  state BACKUP\n  interface eth0\n  virtual_router_id 51\n  \
         priority 100\n  advert_int 0.5\n  virtual_ipaddress {\n    192.0.2.9\n    \
         192.0.2.10/24 brd + dev eth1 label eth1:1\n  }\n  \
         virtual_ipaddress_excluded {\n    2001:DB8::a/64 dev eth1 scope link no_track\n  }\n}\n",
    );
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(configuration.netns, Some("blue".parse().unwrap()));
    let instance = &configuration.instances[0];
    assert_eq!((instance.vrid, instance.priority), (Some(51), Some(100)));
    assert_eq!(
        instance.advert_interval,
        Some(Duration::from_secs(1)),
        "version 2 has whole seconds"
    );
    let addresses: Vec<String> = instance
        .addresses
        .iter()
        .map(|address| format!("{} {} {}", address.cidr, address.link, address.is_excluded))
        .collect();
    let expected =
        ["192.0.2.9/32 eth0 false", "192.0.2.10/24 eth1 false", "2001:db8::a/64 eth1 true"];
    assert_eq!(addresses, expected);
}

#[test]
fn version_authentication_and_unicast_decide_the_form_of_adverts() {
    let protocol = |globals: &str, statements: &str, address: &str| {
        let text = format!("global_defs {{\n{globals}\n}}\n{}", instance("a", statements, address));
        let protocol = read(&text).0.instances[0].protocol.unwrap();
        (protocol.version.number(), protocol.authentication.word(), protocol.is_unicast)
    };
    let password = "authentication {\n auth_type PASS\n auth_pass x\n }";
    assert_eq!(protocol("", "", "10.0.0.1"), (2, "none", false));
    assert_eq!(protocol("", "", "2001:db8::1"), (3, "none", false));
    assert_eq!(protocol("vrrp_version 3", "", "10.0.0.1"), (3, "none", false));
    assert_eq!(protocol("vrrp_version 3", "version 2", "10.0.0.1"), (2, "none", false));
    assert_eq!(protocol("", password, "10.0.0.1"), (2, "pass", false));
    let header = password.replace("PASS", "AH");
    assert_eq!(protocol("", &header, "10.0.0.1"), (2, "ah", false));
    assert_eq!(protocol("", "authentication {\n auth_type AH\n }", "10.0.0.1"), (2, "none", false));
    assert_eq!(protocol("", &format!("version 3\n {password}"), "10.0.0.1"), (3, "none", false));
    assert_eq!(protocol("vrrp_strict", password, "10.0.0.1"), (2, "none", false));
    assert_eq!(protocol("", "unicast_peer {\n 10.0.0.9\n }", "10.0.0.1"), (2, "none", true));
}

#[test]
fn unusual_numbers_do_not_panic() {
    for statement in
        ["advert_int 1.00000\u{e9}", "~SEQ(X, -0x-8000000000000000) x", "~SEQ(X, --5) x"]
    {
        read(&instance("a", statement, "10.0.0.1"));
    }
}

#[test]
fn an_endless_configuration_is_read_up_to_a_limit() {
    let recursive = "$A=\\\n@zz foo\\\n$A\n\n$A\n";
    let recursive_after_brace = "$X=a { $X\n$X\n";
    let long = format!("~SEQ(A, 1, 600000) {}\n", "x".repeat(900));
    for text in ["~SEQ(A, 1, 2000000000)\n", recursive, recursive_after_brace, &long] {
        let (_, problems) = read(&format!("{text}{}", instance("a", "", "10.0.0.1")));
        let is_cut = problems.iter().any(|problem| problem.contains("the rest is not read"));
        let is_rejected = problems.iter().any(|problem| problem.contains("refers to itself"));
        assert!(is_cut || is_rejected, "{text:.20}: {problems:?}");
    }
}

#[test]
fn a_list_without_a_brace_is_a_problem() {
    let (_, problems) = read(&instance("a", "track_interface eth1", "10.0.0.1"));
    assert!(
        problems.contains(&"5: track_interface needs a { before this line".to_owned()),
        "{problems:?}"
    );
}

#[test]
fn an_instance_belongs_to_the_sync_group_that_names_it() {
    let names = ["a", "b", "c", "d"].map(|name| instance(name, "", "10.0.0.1")).concat();
    let text = format!(
        "track_group T {{\n group {{\n d\n }}\n}}\n\
         vrrp_sync_group G {{\n group {{\n  a\n  missing b\n }}\n notify_master /bin/true\n}}\n{names}\
         vrrp_sync_group H {{\n group {{ c b }}\n}}\nvrrp_sync_group H {{\n group {{\n d\n }}\n}}\n"
    );
    let (configuration, _) = read(&text.replace("virtual_router_id 7", "virtual_router_id 8"));
    let groups: Vec<Option<&str>> =
        configuration.instances.iter().map(|instance| instance.sync_group.as_deref()).collect();
    assert_eq!(groups, [Some("G"), Some("G"), Some("H"), None]);
}

#[test]
fn an_ipv6_gateway_is_the_gateway_of_a_default_route() {
    let has_gateway = |route: &str| {
        let text = instance("a", &format!("virtual_routes {{ \n {route} \n }}"), "10.0.0.1");
        read(&text).0.instances[0].has_ipv6_gateway
    };
    assert!(has_gateway("::/0 via fe80::1 dev qg-1 no_track protocol static"));
    assert!(!has_gateway("0.0.0.0/0 via 10.0.0.254 dev qg-1"));
    assert!(!has_gateway("2001:db8::/64 via fe80::1 dev qg-1"));
    assert!(!has_gateway("::/0 dev qg-1 scope link"));
}

#[test]
fn the_addresses_of_an_instance_are_on_its_vmac() {
    for (vmac, link) in [
        ("use_vmac", "vrrp.7"),
        ("use_vmac mine", "mine"),
        ("use_vmac mine 02:00:00:00:00:01", "mine"),
        ("use_vmac 02:00:00:00:00:01", "vrrp.7"),
        ("use_ipvlan 10.0.0.5", "eth0"),
        ("", "eth0"),
    ] {
        let (configuration, problems) = read(&instance("A", vmac, "10.0.0.1 dev eth0"));
        assert_eq!(links(&configuration), [format!("10.0.0.1 {link}")], "{vmac}: {problems:?}");
    }
}

#[test]
fn an_address_on_a_vmac_requires_the_link_below_it() {
    let statements = "use_vmac\n use_vmac_addr";
    let addresses = "10.0.0.1\n 10.0.0.2 use_vmac\n 10.0.0.3 dev eth1";
    let (configuration, _) = read(&instance("A", statements, addresses));
    let required = |address: &VirtualAddress| address.required_link().to_string();
    let of = |configuration: &Configuration| -> Vec<String> {
        configuration.instances[0].addresses.iter().map(required).collect()
    };
    assert_eq!(links(&configuration), ["10.0.0.1 vrrp.7", "10.0.0.2 vrrp1.7", "10.0.0.3 vrrp2.7"]);
    assert_eq!(of(&configuration), ["eth0", "eth0", "eth1"], "also of a VMAC over a VMAC");
    let (configuration, _) = read(&instance("A", "use_ipvlan 10.0.0.5", "10.0.0.1"));
    assert_eq!(of(&configuration), ["eth0"]);
}

#[test]
fn default_names_of_vmacs_depend_on_the_order_and_family_of_the_instances() {
    let vmac_instance = |name: &str, interface: &str, address: &str| {
        format!(
            "vrrp_instance {name} {{\n interface {interface}\n virtual_router_id 51\n use_vmac\n \
             virtual_ipaddress {{\n {address}\n }}\n}}\n"
        )
    };
    let text = [
        vmac_instance("A", "eth0", "10.0.0.1"),
        vmac_instance("B", "eth0", "fd00::1"),
        vmac_instance("C", "eth1", "10.0.1.1"),
        vmac_instance("D", "eth1", "fd00::2"),
    ];
    let (configuration, _) = read(&text.concat());
    let expected =
        ["10.0.0.1 vrrp.51", "fd00::1 vrrp6.51", "10.0.1.1 vrrp1.51", "fd00::2 vrrp2.51"];
    assert_eq!(links(&configuration), expected);
}

#[test]
fn random_values_are_reported_as_unknown() {
    let (configuration, problems) =
        read(&instance("A", "priority ${_RANDOM 1 100}", "10.0.0.1\n10.0.0.${_RANDOM 2 9}"));
    assert_eq!(configuration.instances[0].priority, None);
    assert_eq!(links(&configuration), ["10.0.0.1 eth0"]);
    let expected = [
        "7: the address cannot be known: keepalived chooses it when it starts",
        "1: priority of A cannot be known: keepalived chooses it when it starts",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn each_mistake_is_one_problem_and_valid_instances_are_read() {
    let (configuration, problems) = read(
        "vrrp_instance {\n}\n\
         vrrp_instance A {\n virtual_router_id 1\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n\
         vrrp_instance B {\n interface eth0\n virtual_router_id 0\n virtual_ipaddress {\n 10.0.0.2\n }\n}\n\
         vrrp_instance C {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {\n \
         10.0.0.300\n 10.0.0.3\n }\n}\n\
         vrrp_instance C {\n interface eth0\n virtual_ipaddress {\n 10.0.0.3\n }\n}\n\
         vrrp_instance D {\n interface eth0\n virtual_router_id 4\n}\n\
         vrrp_instance E {\n interface eth0:1\n virtual_router_id 5\n}\n",
    );
    let names: Vec<&str> =
        configuration.instances.iter().map(|instance| instance.name.as_str()).collect();
    assert_eq!(names, ["C"]);
    let expected = [
        "1: vrrp_instance needs a name",
        "20: \"10.0.0.300\" is not an address",
        "24: vrrp_instance C is already defined in line 16",
        "3: A has no interface: keepalived does not start with this file",
        "11: virtual_router_id of B must be 1 to 255, not \"0\": keepalived does not start with this file",
        "30: D has no virtual address to watch",
        "35: E has no valid interface: \"eth0:1\" (invalid character ':'): keepalived does \
         not start with this file",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn braces_that_do_not_match_are_one_problem() {
    let (_, problems) =
        read("vrrp_instance C {\n interface eth0\n virtual_ipaddress {\n 10.0.0.1\n");
    assert_eq!(problems[0], "1: vrrp_instance C is not closed: the file ends inside it");
    let (_, problems) = read("}\n}\n");
    assert_eq!(problems, ["1: } without a { before it"]);
}

#[test]
fn an_unknown_block_in_an_instance_is_skipped_and_its_addresses_stay() {
    for block in ["unknown {\n x {\n } virtual_router_id 9\n}", "unknown\n{\n}", "unknown { }"] {
        let (configuration, problems) =
            read(&instance("A", &format!("{block}\n priority 9"), "10.0.0.1"));
        assert_eq!(links(&configuration), ["10.0.0.1 eth0"], "{block}");
        assert_eq!(configuration.instances[0].priority, Some(9));
        assert_eq!(problems.len(), 1);
        let note = "keepalived 2.4.3 does not know the block \"unknown\" in vrrp_instance A: it is skipped here";
        assert!(problems[0].contains(note), "{problems:?}");
    }
    let (_, problems) = read(&instance("A", "unknown {\n x", "10.0.0.1"));
    assert!(problems[0].contains("is not closed"), "{problems:?}");
}

#[test]
fn a_block_that_an_older_keepalived_does_not_know_loses_the_addresses_behind_it() {
    let lost = |version, before: &str, behind: &str| {
        let text = instance("A", before, "10.0.0.1\n 10.0.0.2").replacen("\n }\n}", behind, 1);
        let (configuration, problems) = read_as(version, &text);
        assert_eq!(configuration.instances[0].addresses.len(), 2);
        problems.iter().filter(|problem| problem.contains("A loses these addresses")).count()
    };
    let block = "auth_hmac {\n key 1 x\n}";
    let older = Version::new(2, 2, 7);
    assert_eq!(lost(older, block, "\n }\n}"), 1);
    assert_eq!(lost(older, "", &format!("\n }}\n {block}\n}}")), 0);
    assert_eq!(lost(Version::NEWEST, "unknown {\n}", "\n }\n}"), 0, "a newer one may know it");
}

#[test]
fn a_signed_instance_keeps_its_addresses_and_shows_no_key() {
    let block = "auth_hmac {\n key 1 hex:0011\n key 7 \"a } b\"\n key 7 file:/x\n key 300 x\n key 8\n \
                 active_key 7\n mode permissive\n }";
    let hmac = |statements: &str| {
        let (configuration, problems) = read(&instance("A", statements, "10.0.0.1"));
        assert_eq!(links(&configuration), ["10.0.0.1 eth0"], "{problems:?}");
        assert_eq!(problems, Vec::<String>::new());
        configuration.instances[0].auth_hmac.as_deref().cloned()
    };
    let signed = AuthHmac {
        mode: AuthHmacMode::Permissive,
        key_ids: [1, 7].into(),
        active_key: 7,
        time_window: Some(Duration::from_secs(5)),
    };
    assert_eq!(hmac(block), Some(signed.clone()));
    let window = |text: &str| hmac(&format!("{block}\n {text}")).unwrap().time_window;
    assert_eq!(window("advert_int 3.9"), Some(Duration::from_secs(9)));
    assert_eq!(window("advert_int 200"), Some(Duration::from_mins(5)));
    let with = |text: &str| hmac(&block.replace("mode permissive", text)).unwrap();
    assert_eq!(with("time_window 20").time_window, Some(Duration::from_secs(20)));
    assert_eq!(with("anti_replay monotonic\n time_window 20").time_window, None);
    assert_eq!(with("mode receive-only").mode, AuthHmacMode::ReceiveOnly);
    assert_eq!(hmac(&format!("{block}\n strict_mode")).unwrap().mode, AuthHmacMode::Enforce);
    assert_eq!(hmac(&block.replace("active_key 7", "active_key 2")), None);
    assert_eq!(hmac(""), None);
}

#[test]
fn no_message_quotes_a_password_or_a_key() {
    for text in [
        "vrrp_instance A {\n authentication {\n auth_pass secret {\n",
        "vrrp_instance A {\n authentication {\n auth_pass x{secret {\n secret\n",
        "vrrp_instance A {\n auth_hmac {\n key 1 secret {\n }\n key 2 x{secret{\n",
        "vrrp_instance A {\n key 1 {secret {\n }\n virtual_ipaddress {\n",
        "auth_pass {secret {\n",
        "vrrp_instance A {\n ~SEQ(N,x) auth_pass secret\n ~LST auth_pass secret\n",
    ] {
        let (configuration, problems) = read(text);
        assert!(!format!("{configuration:?}{problems:?}").contains("secret"), "{problems:?}");
    }
}

#[test]
fn a_word_of_a_newer_keepalived_is_ignored_by_an_older_one() {
    let old = Version::new(2, 2, 7);
    let signed = instance("A", "auth_hmac {\n key 1 x\n active_key 1\n }", "10.0.0.1");
    let (configuration, problems) = read_as(old, &signed);
    assert_eq!(configuration.instances[0].auth_hmac, None);
    assert_eq!(links(&configuration), ["10.0.0.1 eth0"]);
    assert!(
        problems[0]
            .contains("keepalived 2.2.7 does not know the block \"auth_hmac\" in vrrp_instance A")
            && problems[0].contains("may not load what follows it")
    );
    let named = instance("A", "use_vmac name vmac10", "10.0.0.1");
    assert_eq!(links(&read_as(old, &named).0), ["10.0.0.1 name"]);
    assert_eq!(links(&read(&named).0), ["10.0.0.1 vmac10"]);
    let adverts = instance("A", "down_timer_adverts 9", "10.0.0.1");
    assert_eq!(read_as(Version::new(2, 2, 3), &adverts).0.instances[0].down_timer_adverts, 3);
    let variable = instance("A", "priority ${_ENV X}", "10.0.0.1");
    let (_, problems) = read_as(old, &variable);
    assert!(problems.iter().any(|text| text.contains("a { without a keyword")), "{problems:?}");
}

#[test]
fn options_of_a_vmac_and_an_ipvlan_are_not_its_name() {
    for (statement, link) in [
        ("use_vmac name name", "name"),
        ("use_vmac group 7 mine 02:00:00:00:00:01", "mine"),
        ("use_vmac netlink_notify_msg group web name bridge", "bridge"),
        ("use_vmac name", "vrrp.7"),
        ("use_vmac name 02:00:00:00:00:01", "vrrp.7"),
        ("use_ipvlan name private 10.0.0.5 group 3", "eth0"),
    ] {
        let (configuration, problems) = read(&instance("A", statement, "10.0.0.1"));
        assert_eq!(
            links(&configuration),
            [format!("10.0.0.1 {link}")],
            "{statement}: {problems:?}"
        );
    }
}

/// An environment with one variable.
struct Environment(&'static str, &'static str);

impl Files for Environment {
    fn open(&mut self, _: super::super::Include<'_>, _: &mut Problems) -> Vec<Source> {
        Vec::new()
    }

    fn variable(&mut self, name: &str) -> Option<String> {
        Some(if name == self.0 { self.1.to_owned() } else { String::new() })
    }
}

#[test]
fn millions_of_problems_are_counted_and_not_kept() {
    let words = "\u{1} ".repeat(400);
    let text = instance("A", &format!("use_vmac {words}\n").repeat(5_000), "10.0.0.1");
    let mut problems = Problems::default();
    let first = Source::alone(format!("{text}vrrp_instance B {{\n}}\n"));
    let configuration = configuration(first, &mut (), Program::default(), &mut problems);
    assert_eq!((problems.len(), problems.left_out()), (1_001, 400 * 5_000 - 1_000));
    assert!(configuration.is_refused() && problems.last().unwrap().impact == Impact::Refused);
}

#[test]
fn a_variable_that_contains_itself_ends_the_reading() {
    let reference = "${_ENV X}";
    let text = format!("{}\n", reference.repeat(100)).repeat(4_000);
    let mut problems = Problems::default();
    let mut environment = Environment("X", reference);
    let first = Source::alone(text);
    configuration(first, &mut environment, Program::default(), &mut problems);
    let is_end = |problem: &Problem| problem.message.text(true).contains("the rest is not read");
    assert!(problems.iter().any(is_end), "{:?}", problems.last());
}

#[test]
fn variables_of_the_environment_are_replaced_and_never_quoted() {
    let read_in = |mut environment: Environment, text: &str| {
        let (program, mut problems) = (Program::default(), Problems::default());
        let first = Source::alone(text.to_owned());
        let configuration = configuration(first, &mut environment, program, &mut problems);
        let texts: Vec<_> = problems.iter().map(|it| it.message.text(true).to_owned()).collect();
        (configuration, texts)
    };
    let text = instance("A", "use_vmac ${_ENV LINK}${_ENV  OTHER }", "10.0.0.1");
    for text in [text.clone(), format!("$L=${{_ENV LINK}}\n{}", text.replace("${_ENV LINK}", "$L"))]
    {
        let (configuration, problems) = read_in(Environment("LINK", "vmac10"), &text);
        assert_eq!(links(&configuration), ["10.0.0.1 vmac10"], "{problems:?}");
        assert!(configuration.uses_environment);
    }
    let (_, problems) = read_in(Environment("VIP", "secret"), &instance("A", "", "${_ENV VIP}"));
    assert!(!problems.is_empty() && !format!("{problems:?}").contains("secret"), "{problems:?}");
    let itself = Environment("LINK", "${_ENV LINK}${_ENV LINK}");
    assert_eq!(
        links(&read_in(itself, &instance("A", "", "${_ENV LINK}\n10.0.0.1")).0),
        ["10.0.0.1 eth0"]
    );
    let (configuration, problems) = read(&instance("A", "priority ${_ENV X}", "10.0.0.1"));
    assert_eq!(configuration.instances[0].priority, None, "{problems:?}");
}

#[test]
fn a_unicast_instance_needs_no_interface() {
    let text = instance(
        "A",
        "unicast_src_ip 192.0.2.1\n unicast_peer {\n 192.0.2.2\n }",
        "10.0.0.1 dev eth1\n10.0.0.2",
    );
    let text = text.replace("interface eth0", "");
    let (configuration, problems) = read(&text);
    assert_eq!((configuration.instances[0].interface, configuration.is_refused()), (None, false));
    assert_eq!(links(&configuration), ["10.0.0.1 eth1"]);
    assert!(problems[0].contains("keepalived ignores 10.0.0.2/32"), "{problems:?}");
    let old = Version::new(2, 1, 5);
    assert_eq!(links(&read_as(old, &text).0), ["10.0.0.1 eth1", "10.0.0.2 eth0"]);
    let with_default = format!("global_defs {{\n default_interface eth2\n}}\n{text}");
    assert_eq!(links(&read_as(old, &with_default).0), ["10.0.0.1 eth1", "10.0.0.2 eth2"]);
    assert!(read_as(Version::new(2, 2, 7), &text).0.is_refused());
    for refused in [
        "unicast_src_ip fe80::1\n unicast_peer {\n fe80::2\n }",
        "unicast_peer {\n 192.0.2.2\n }",
        "",
    ] {
        let text = instance("A", refused, "10.0.0.1 dev eth1").replace("interface eth0", "");
        assert!(read(&text).0.is_refused(), "{refused}");
    }
}

#[test]
fn an_instance_without_addresses_on_purpose_is_no_fault_of_the_file() {
    let text = "vrrp_instance A {\n interface eth0\n virtual_router_id 7\n version 3\n no_virtual_ipaddress\n}\n";
    let mut problems = Problems::default();
    let read = |program, problems: &mut Problems| {
        configuration(Source::alone(text.to_owned()), &mut (), program, problems)
    };
    let followed = read(Program::default(), &mut problems).instances.remove(0);
    assert_eq!((followed.addresses.len(), followed.family), (0, VrrpFamily::V4));
    assert!(problems.is_empty(), "{problems:?}");
    let v6 = text.replace("version 3", "native_ipv6");
    assert_eq!(self::read(&v6).0.instances[0].family, VrrpFamily::V6);
    let plain = text.replace("version 3\n no_virtual_ipaddress", "");
    assert!(self::read(&plain).0.instances.is_empty(), "keepalived warns of it");
    assert!(
        read(Program { version: Version::new(2, 2, 7), ..Program::default() }, &mut problems)
            .is_refused()
    );
    let strict = text.replace("version 3", "strict_mode");
    assert!(self::read(&strict).0.is_refused());
}

#[test]
fn intervals_and_delays_are_those_that_keepalived_uses() {
    let interval = |statements: &str| {
        let interval = read(&instance("A", statements, "10.0.0.1")).0.instances[0].advert_interval;
        interval.map(|interval| interval.as_millis())
    };
    assert_eq!(interval(""), None);
    for (written, v2, v3) in [
        ("0.125", 1000, 130),
        ("0.333", 1000, 330),
        ("1.5", 2000, 1500),
        ("0.01", 1000, 10),
        ("41", 41_000, 40_950),
        ("255", 255_000, 40_950),
    ] {
        assert_eq!(interval(&format!("advert_int {written}")), Some(v2), "{written}");
        assert_eq!(interval(&format!("version 3\n advert_int {written}")), Some(v3), "{written}");
    }
    let global = "global_defs {\n vrrp_down_timer_adverts 5\n vrrp_startup_delay 5.5\n \
                  vrrp_delay_after_boot 60\n}\n";
    let of = |statements: &str| {
        read(&format!("{global}{}", instance("A", statements, "10.0.0.1"))).0.instances.remove(0)
    };
    assert_eq!(of("").down_timer_adverts, 5);
    assert_eq!(of("down_timer_adverts 10").down_timer_adverts, 10);
    assert_eq!(of("down_timer_adverts 101").down_timer_adverts, 5);
    assert_eq!(of("down_timer_adverts 10\n strict_mode").down_timer_adverts, 3);
    let StartupDelay { after_start, after_boot } = of("").startup_delay;
    assert_eq!((after_start.as_millis(), after_boot.as_secs()), (5500, 60));
}

#[test]
fn an_owner_ignores_adverts_if_it_or_all_are_told_to_or_are_strict() {
    let read_at = |version, global: &str, statements: &str| {
        let text = instance("A", statements, "10.0.0.1");
        let text = format!("global_defs {{\n {global}\n}}\n{text}");
        read_as(version, &text).0.instances.remove(0).ignores_adverts
    };
    let is_ignoring = |global: &str, statements: &str| {
        read_at(Version::NEWEST, global, &format!("priority 255\n {statements}"))
    };
    assert!(is_ignoring("", "owner_ignore_adverts") && is_ignoring("", "owner_ignore_adverts on"));
    assert!(is_ignoring("vrrp_owner_ignore_adverts", ""));
    assert!(is_ignoring("vrrp_owner_ignore_adverts", "owner_ignore_adverts x"));
    assert!(is_ignoring("", "owner_ignore_adverts no"), "keepalived 2.3.4 does, too");
    assert!(is_ignoring("", "strict_mode") && is_ignoring("vrrp_strict", ""));
    assert!(!is_ignoring("vrrp_strict", "strict_mode no") && !is_ignoring("vrrp_strict no", ""));
    assert!(!is_ignoring("", "") && !is_ignoring("", "owner_ignore_adverts x"));
    assert!(!is_ignoring("vrrp_owner_ignore_adverts no", ""));
    let own = "priority 254\n owner_ignore_adverts\n strict_mode";
    assert!(!read_at(Version::NEWEST, "vrrp_owner_ignore_adverts", own), "it is not the owner");
    let own = "priority 255\n owner_ignore_adverts\n strict_mode";
    assert!(read_at(Version::new(2, 3, 3), "", own));
    assert!(!read_at(Version::new(2, 3, 2), "", own));
}

#[test]
fn a_file_stays_readable_when_its_keepalived_is_upgraded_and_downgraded() {
    let text = instance(
        "A",
        "use_vmac name vmac10\n no_virtual_ipaddress\n auth_hmac {\n key 1 x\n active_key 1\n }\n \
         future {\n a { b }\n }\n down_timer_adverts 5",
        "10.0.0.1",
    );
    for version in [(2, 1, 5), (2, 2, 7), (2, 3, 4), (2, 4, 3), (2, 2, 8), (2, 5, 0)] {
        let version = Version::new(version.0, version.1, version.2);
        let (configuration, problems) = read_as(version, &text);
        assert_eq!(configuration.instances[0].addresses.len(), 1, "{version}: {problems:?}");
        assert!(!configuration.is_refused(), "{version}: {problems:?}");
    }
}

#[test]
fn the_value_of_vrrp_strict_counts_from_2_3_0_on() {
    let is_strict = |version, value: &str| {
        let text = instance("A", "down_timer_adverts 10", "10.0.0.1");
        let text = format!("global_defs {{\n vrrp_strict {value}\n}}\n{text}");
        read_as(version, &text).0.instances[0].down_timer_adverts == 3
    };
    for value in ["", "on"] {
        assert!(is_strict(Version::new(2, 2, 8), value) && is_strict(Version::NEWEST, value));
    }
    for value in ["no", "x"] {
        assert!(is_strict(Version::new(2, 2, 8), value));
        assert!(!is_strict(Version::new(2, 3, 0), value), "{value}");
    }
}

#[test]
fn words_since_2_1_that_nothing_reads_change_nothing() {
    let global = [
        "dbus_no_interface_name",
        "iproute_etc_dir",
        "iproute_usr_dir",
        "json_dump_file",
        "json_version",
        "state_dump_file",
        "stats_dump_file",
        "use_symlink_paths",
        "v3_checksum_as_v2",
    ];
    let own = ["thread_timer_expired", "timer_expired_backup", "v3_checksum_as_v2"];
    for separator in ["\n", " 1\n"] {
        let global = global.join(separator) + separator;
        let text = instance("A", &(own.join(separator) + separator), "10.0.0.1");
        let text = format!("global_defs {{\n{global}}}\n{text}");
        for version in [Version::new(2, 1, 5), Version::NEWEST] {
            let (configuration, problems) = read_as(version, &text);
            assert_eq!(links(&configuration), ["10.0.0.1 eth0"], "{version}");
            assert_eq!(problems, [""; 0], "{version}");
        }
    }
}

#[test]
fn keepalived_does_not_start_without_a_value_that_a_word_needs() {
    let is_refused = |version, text: &str| {
        let text = format!("{text}\n{}", instance("A", "", "10.0.0.1"));
        read_as(version, &text).0.is_refused()
    };
    for text in [
        "child_wait_time",
        "garp_group {\n garp_interval\n}",
        "garp_group {\n gna_interval\n}",
        "garp_group {\n interface\n}",
        "global_defs {\n process_name\n}",
        "track_file {\n}",
        "vrrp_track_file {\n}",
    ] {
        assert!(is_refused(Version::new(2, 1, 5), text), "{text}");
    }
    for word in ["snmp_rs_stats_update_interval", "snmp_vs_stats_update_interval"] {
        let text = format!("global_defs {{\n {word}\n}}");
        assert!(is_refused(Version::new(2, 3, 0), &text), "{word}");
        assert!(!is_refused(Version::new(2, 2, 8), &text), "{word}");
        assert!(!is_refused(Version::NEWEST, &text.replace(word, &format!("{word} 5"))), "{word}");
    }
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(text: String) {
        read(&text);
    }

    #[test]
    fn no_almost_valid_text_causes_a_panic(
        text in "(vrrp_instance|virtual_ipaddress|~SEQ\\(A,|~LST\\(|include|[{}#!@$\"'\\\\= \n]|\\$A=|10\\.0\\.0\\.1/24|dev){0,60}"
    ) {
        read(&text);
    }
}
