//! keepalived's configuration, read by keepalived and by discovery: both must say the same.
//!
//! Each case is a few small files. keepalived starts with them in a namespace of its own and dumps what
//! it understood.

#![expect(clippy::too_many_lines, reason = "tables of cases")]
#![expect(clippy::format_collect, reason = "a few hundred lines, once")]

use std::path::Path;

use vipwatch_node::discovery::{ConfigLocations, DiscoveryResult, discover};
use vipwatch_testkit::{Dump, DumpInstance, DumpLab};

/// The configuration id of all cases.
const CONFIG_ID: &str = "node1";

/// Files by name; the first is the one keepalived is started with.
struct Case {
    name: String,
    files: Vec<(String, String)>,
}

fn case(name: &str, text: impl Into<String>) -> Case {
    Case { name: name.to_owned(), files: vec![("keepalived.conf".to_owned(), text.into())] }
}

impl Case {
    fn with(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), text.into()));
        self
    }
}

/// An instance on `eth0` with these further statements, and these addresses.
fn instance(name: &str, statements: &str, addresses: &str) -> String {
    on("eth0", name, statements, addresses)
}

fn on(interface: &str, name: &str, statements: &str, addresses: &str) -> String {
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

fn ours(file: &Path, config_id: Option<&str>) -> DiscoveryResult {
    discover(&ConfigLocations {
        neutron: file.with_file_name("neutron"),
        keepalived: file.to_owned(),
        config_id: config_id.map(str::to_owned),
    })
}

/// What discovery found, in the words of the dump.
fn described(discovery: &DiscoveryResult) -> Vec<DumpInstance> {
    let mut found: Vec<_> = discovery.instances.iter().collect();
    found.sort_by_key(|found| (found.vrrp.position.line, found.vrrp.name.clone()));
    let number =
        |number: Option<u8>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let each = found.iter().map(|found| {
        let vrrp = &found.vrrp;
        let addresses = vrrp.addresses.iter().map(|address| {
            let excluded = if address.is_excluded { " excluded" } else { "" };
            format!("{} dev {}{excluded}", address.cidr, address.link)
        });
        DumpInstance {
            name: vrrp.name.clone(),
            vrid: number(vrrp.vrid),
            priority: number(vrrp.priority),
            interface: vrrp.interface.to_string(),
            addresses: addresses.collect(),
        }
    });
    each.collect()
}

fn sorted(mut instances: Vec<DumpInstance>) -> Vec<String> {
    instances.sort_by(|a, b| a.name.cmp(&b.name));
    instances.iter().map(ToString::to_string).collect()
}

/// Why both differ about the files in `directory`.
fn difference(lab: &DumpLab, file: &Path, config_id: Option<&str>) -> Option<String> {
    let discovery = ours(file, config_id);
    let problems: Vec<&str> =
        discovery.problems.iter().map(|problem| problem.text.as_str()).collect();
    let is_refused = problems.iter().any(|text| text.contains("keepalived does not start"));
    let ours = sorted(described(&discovery));
    match lab.dump(file, config_id) {
        Dump::Instances(theirs) => {
            // An instance without an address runs, and cannot be watched.
            let theirs = theirs.into_iter().filter(|theirs| !theirs.addresses.is_empty()).collect();
            let theirs = sorted(theirs);
            (theirs != ours || is_refused).then(|| {
                let (theirs, ours) = (theirs.join("\n  "), ours.join("\n  "));
                format!("keepalived:\n  {theirs}\ndiscovery:\n  {ours}\nproblems: {problems:#?}")
            })
        }
        Dump::Refused(why) => (!is_refused).then(|| {
            let ours = ours.join("\n  ");
            format!(
                "keepalived does not start:\n{why}\ndiscovery:\n  {ours}\nproblems: {problems:#?}"
            )
        }),
        Dump::Broken(why) => Some(format!("keepalived is broken by it: {why}")),
    }
}

/// Compares all cases, and names each that differs.
#[track_caller]
fn agree(cases: &[Case]) {
    let lab = DumpLab::new();
    let mut differences = Vec::new();
    for Case { name, files } in cases {
        let directory = lab.path().join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        for (file, text) in files {
            write(&directory, file, text);
        }
        let file = directory.join(&files[0].0);
        if let Some(difference) = difference(&lab, &file, Some(CONFIG_ID)) {
            differences.push(format!("── {name}\n{difference}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{} cases differ\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn keepalived_vmac() {
    let excluded = "virtual_ipaddress_excluded {\n fd00::9/64\n 10.0.0.9 dev eth1\n }";
    let global = "global_defs {\n    vmac_prefix own\n    vmac_addr_prefix other\n}\n";
    let long = "global_defs {\n    vmac_prefix longer_than_a_link\n}\n";
    agree(&[
        case("use_vmac", instance("A", "use_vmac", "10.0.0.1/24")),
        case(
            "use_vmac with an address on the base link",
            instance("A", "use_vmac", "10.0.0.1 dev eth0"),
        ),
        case(
            "use_vmac with an address on another link",
            instance("A", "use_vmac", "10.0.0.1 dev eth1"),
        ),
        case("use_vmac with a name", instance("A", "use_vmac mine", "10.0.0.1")),
        case(
            "use_vmac with a MAC address",
            instance("A", "use_vmac 02:00:00:00:00:01", "10.0.0.1"),
        ),
        case("use_vmac with five bytes", instance("A", "use_vmac 02:00:00:00:00", "10.0.0.1")),
        case("use_vmac with both", instance("A", "use_vmac mine 02:00:00:00:00:01", "10.0.0.1")),
        case(
            "use_vmac the other way round",
            instance("A", "use_vmac 02:00:00:00:00:01 mine", "10.0.0.1"),
        ),
        case(
            "use_vmac with a name that is too long",
            instance("A", "use_vmac a_name_of_16_byte", "10.0.0.1"),
        ),
        case("use_vmac and vmac_xmit_base", instance("A", "use_vmac\n vmac_xmit_base", "10.0.0.1")),
        case(
            "use_vmac after the addresses",
            instance("A", "", "10.0.0.1").replace("51", "51\n use_vmac"),
        ),
        case(
            "excluded addresses of a VMAC",
            instance("A", &format!("use_vmac\n {excluded}"), "10.0.0.1"),
        ),
        case(
            "use_vmac_addr",
            instance("A", "use_vmac_addr", "10.0.0.1\n 10.0.0.2 dev eth1\n 10.0.0.3 dev eth1"),
        ),
        case(
            "use_vmac and use_vmac_addr",
            instance(
                "A",
                &format!("use_vmac\n use_vmac_addr\n {excluded}"),
                "10.0.0.1\n 10.0.0.2 dev eth1",
            ),
        ),
        case(
            "use_vmac on one address",
            instance("A", "", "10.0.0.1 use_vmac\n 10.0.0.2\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "use_vmac on one address and the instance",
            instance("A", "use_vmac", "10.0.0.1 use_vmac\n 10.0.0.2\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "use_vmac_addr and use_vmac on an address",
            instance("A", "use_vmac_addr", "10.0.0.1 use_vmac\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "vmac_prefix",
            format!(
                "{global}{}",
                instance("A", "use_vmac\n use_vmac_addr", "10.0.0.1\n 10.0.0.2 dev eth1")
            ),
        ),
        case(
            "vmac_prefix that is too long",
            format!(
                "{long}{}{}",
                instance("A", "use_vmac", "10.0.0.1"),
                on("eth1", "B", "use_vmac", "10.0.0.2")
            ),
        ),
        case("use_ipvlan", instance("A", "use_ipvlan 198.18.0.5", "10.0.0.1\n 10.0.0.2 dev eth1")),
        case(
            "use_ipvlan with a name",
            instance("A", "use_ipvlan mine 198.18.0.5 bridge", "10.0.0.1"),
        ),
        case("use_vmac of IPv6", instance("A", "use_vmac", "fe80::1\n fd00::1/64")),
        case(
            "use_vmac with unicast",
            instance("A", "use_vmac\n unicast_peer {\n 198.18.0.2\n }", "10.0.0.1"),
        ),
        case(
            "a name that another instance has",
            format!(
                "{}{}",
                instance("A", "use_vmac x", "10.0.0.1"),
                on("eth1", "B", "use_vmac x", "10.0.0.2")
            ),
        ),
        case(
            "a default name that a later instance has",
            format!(
                "{}{}",
                instance("A", "use_vmac", "10.0.0.1"),
                on("eth1", "B", "use_vmac vrrp.51", "10.0.0.2")
            ),
        ),
        case(
            "one VMAC for an address and an instance",
            format!(
                "{}{}",
                instance("A", "use_vmac_addr", "10.0.0.1 dev eth1"),
                on("eth1", "B", "use_vmac", "10.0.0.2")
            ),
        ),
        case(
            "use_vmac, use_vmac_addr and use_vmac on addresses",
            instance(
                "A",
                "use_vmac\n use_vmac_addr",
                "10.0.0.1 use_vmac\n 10.0.0.2 use_vmac\n 10.0.0.3",
            ),
        ),
        case("a bad MAC address", instance("A", "use_vmac 01:00:00:00:00:01", "10.0.0.1")),
    ]);
}

#[test]
fn keepalived_vmac_names_of_one_virtual_router_id() {
    let all = |families: &[(&str, &str)]| {
        let each = families
            .iter()
            .enumerate()
            .map(|(number, (link, address))| on(link, &format!("I{number}"), "use_vmac", address));
        each.collect::<String>()
    };
    agree(&[
        case("IPv4 then IPv6", all(&[("eth0", "10.0.0.1"), ("eth0", "fd00::1")])),
        case("IPv6 then IPv4", all(&[("eth0", "fd00::1"), ("eth0", "10.0.0.1")])),
        case("IPv4 on two links", all(&[("eth0", "10.0.0.1"), ("eth1", "10.0.0.2")])),
        case(
            "IPv6 on three links",
            all(&[("eth0", "fd00::1"), ("eth1", "fd00::2"), ("eth2", "fd00::3")]),
        ),
        case(
            "all of them",
            all(&[
                ("eth0", "10.0.0.1"),
                ("eth0", "fd00::1"),
                ("eth1", "10.0.0.2"),
                ("eth1", "fd00::2"),
                ("eth2", "10.0.0.3"),
                ("eth2", "fd00::3"),
            ]),
        ),
    ]);
}

#[test]
fn keepalived_definitions() {
    let a =
        |definitions: &str, address: &str| format!("{definitions}\n{}", instance("A", "", address));
    let several = "$BODY=priority 50 \\\n    virtual_ipaddress { \\\n      10.0.0.7 \\\n    }\n";
    let interface = |text: &str| instance("A", "", "10.0.0.1").replace("eth0", text);
    agree(&[
        case("a trailing comment", format!("$IF=eth1 # nic\n{}", interface("$IF"))),
        case("a trailing ! comment", format!("$IF=eth1 ! nic\n{}", interface("${IF}"))),
        case("in quotes", format!("$IF=\"eth1\"\n{}", interface("$IF"))),
        case("nested", a("$NET=10.0.0\n$VIP=${NET}.9/24", "$VIP dev eth1")),
        case("nested before the inner one is defined", a("$VIP=${NET}.9/24\n$NET=10.0.0", "$VIP")),
        case("redefined", a("$V=10.0.0.1\n$V=10.0.0.2", "$V")),
        case("empty", a("$E=", "10.0.0.1${E}/24 $E")),
        case("empty before a comment", a("$E= # nothing", "10.0.0.1${E}/24")),
        case("undefined", a("", "10.0.0.1\n $B\n 10.0.0.2 $B")),
        case("undefined in braces", a("", "10.0.0.1\n ${B}\n 10.0.0.2")),
        case("undefined interface in braces", interface("${IFACE}")),
        case("a bare name before a dot", a("$NET=10.0.0", "$NET.9\n 10.0.0.1")),
        case("a bare name before a slash", a("$IP=10.0.0.9", "$IP/24\n 10.0.0.1")),
        case("a blank before the equals sign", a("$IP = 10.0.0.9", "$IP\n 10.0.0.1")),
        case("a blank behind the equals sign", a("$IP= 10.0.0.9", "$IP\n 10.0.0.1")),
        case("a name with digits", a("$IP_1=10.0.0.9\n$1=10.0.0.8", "$IP_1\n $1\n 10.0.0.1")),
        case("several lines", format!("{several}{}", instance("A", "$BODY", "10.0.0.1"))),
        case(
            "several lines with a comment between",
            format!(
                "{}{}",
                several.replace("10.0.0.7", "10.0.0.7 # seven"),
                instance("A", "$BODY", "10.0.0.1")
            ),
        ),
        case(
            "several lines with a comment line",
            format!(
                "{}{}",
                several.replace("      10.0.0.7", "# comment\n      10.0.0.7"),
                instance("A", "$BODY", "10.0.0.1")
            ),
        ),
        case(
            "several lines that begin with none",
            a("$V= \\\n   10.0.0.7 \\\n   10.0.0.8\n", "$V\n 10.0.0.1"),
        ),
        case("several lines, one of them", a("$V= \\\n   10.0.0.7\n", "$V\n 10.0.0.1")),
        case(
            "several lines that end with an empty one",
            a("$V=10.0.0.7 \\\n   10.0.0.8 \\\n\n", "$V\n 10.0.0.1"),
        ),
        case(
            "several lines in the middle of a line",
            a("$V=10.0.0.7 \\\n   10.0.0.8\n", "$V dev eth1\n 10.0.0.1"),
        ),
        case(
            "several lines within several lines",
            a(
                "$I=10.0.0.7 \\\n   10.0.0.8\n$O=10.0.0.5 \\\n  $I \\\n  10.0.0.6\n",
                "$O\n 10.0.0.1",
            ),
        ),
        case(
            "a block in a definition",
            format!(
                "$I=vrrp_instance B {{ \\\n interface eth1 \\\n virtual_router_id 9 \\\n virtual_ipaddress {{ \\\n 10.1.0.1 \\\n }} \\\n }}\n{}$I\n",
                instance("A", "", "10.0.0.1")
            ),
        ),
        case(
            "the directory",
            format!(
                "{}vrrp_instance ${{_PWD}} {{\n interface eth1\n virtual_router_id 3\n virtual_ipaddress {{\n 10.0.0.2\n }}\n}}\n",
                instance("A", "", "10.0.0.1")
            ),
        ),
        case("the configuration id", instance("${_INSTANCE}", "", "10.0.0.1")),
        case("a hash", a("", "10.0.0.1 ${_HASH} dev eth1")),
        case("a bang", a("", "10.0.0.1 ${_BANG} dev eth1")),
        case(
            "an overridden definition",
            instance("${_INSTANCE}", "", "10.0.0.1")
                .replace("vrrp_instance", "$_INSTANCE=other\nvrrp_instance"),
        ),
        case("a parameter of one that takes none", a("$V=10.0.0.9", "${V 1}\n 10.0.0.1")),
        case("a blank in braces", a("$V=10.0.0.9", "10.0.0.1\n ${V }\n 10.0.0.2")),
        case("a dollar at the end", a("$V=10.0.0.9", "10.0.0.1 $")),
        case("a definition within a block", instance("A", "$V=10.0.0.9", "$V")),
        case(
            "a password with a dollar",
            instance("A", "authentication {\n auth_type PASS\n auth_pass pa$word\n }", "10.0.0.1"),
        ),
        case(
            "a password with a dollar in braces",
            instance("A", "authentication {\n auth_type PASS\n auth_pass p${x}y\n }", "10.0.0.1"),
        ),
    ]);
}

#[test]
fn keepalived_sequences_and_lists() {
    let a = |addresses: &str| instance("A", "", addresses);
    let block = "~LST({NAME, LINK, ID}, {A, eth0, 1}, {B, eth1, 2}) $BLOCK\n";
    let defined = "$BLOCK=vrrp_instance $NAME \\\n { \\\n interface $LINK \\\n virtual_router_id $ID \\\n virtual_ipaddress { \\\n 10.0.0.${ID} \\\n } \\\n }\n";
    agree(&[
        case("counting to three", a("~SEQ(N, 3) 10.0.0.${N}")),
        case("from five to three", a("~SEQ(N, 5, 3) 10.0.0.${N}/24 dev eth1")),
        case("in steps", a("~SEQ(N, 1, 5, 20) 10.0.0.${N}")),
        case("steps that never end", a("10.0.0.1\n ~SEQ(N, 1, -5, 20) 10.0.0.${N}")),
        case("hexadecimal", a("~SEQx(N, 8, 12) fd00::${N}/64")),
        case("nested", a("~SEQ(A, 1, 2) ~SEQ(B, 3, 4) 10.0.${A}.${B}")),
        case(
            "with definitions",
            a("10.0.0.1")
                .replace("vrrp", "$TO=3\nvrrp")
                .replace("10.0.0.1", "~SEQ(N, $TO) 10.0.0.${N}"),
        ),
        case("without brackets", a("10.0.0.1\n ~SEQ N 10.0.0.${N}")),
        case(
            "in a definition",
            a("$S\n 10.0.0.1")
                .replace("vrrp_instance", "$S=~SEQ(N, 7, 8) 10.0.0.${N}\nvrrp_instance"),
        ),
        case("a list", a("~LST(N, 1, 3, 9) 10.0.0.${N}")),
        case("a list of pairs", a("~LST({N, L}, {1, eth0}, {2, eth1}) 10.0.0.${N} dev $L")),
        case("a list with values left out", a("~LST({N, L}, {1, 24}, {2}) 10.0.0.${N}/${L}")),
        case("a list with too many values", a("10.0.0.1\n ~LST({N}, {1, 24}) 10.0.0.${N}")),
        case("a list of instances", format!("{defined}{block}")),
        case(
            "a sequence of instances in one line",
            "~SEQ(N, 1, 3) vrrp_instance V${N} { interface eth0 }\n".to_owned() + &a("10.0.0.1"),
        ),
    ]);
}

#[test]
fn keepalived_conditional_lines() {
    let a = |addresses: &str| instance("A", "", addresses);
    agree(&[
        case("this node", a("@node1 10.0.0.1\n @node2 10.0.0.2")),
        case("not this node", a("@^node1 10.0.0.1\n @^node2 10.0.0.2")),
        case("a part of the id", a("@node 10.0.0.1\n @node11 10.0.0.2\n 10.0.0.3")),
        case("nothing behind it", a("@node1\n 10.0.0.3")),
        case(
            "a priority for each",
            instance("A", "@node1 priority 150\n @node2 priority 50", "10.0.0.1"),
        ),
        case(
            "a definition for each",
            format!("@node1 $IP=10.0.0.1\n@^node1 $IP=10.0.0.2\n{}", a("$IP")),
        ),
        case(
            "a condition in a definition",
            format!("$ON=@node1\n{}", a("${ON} 10.0.0.1\n 10.0.0.2")),
        ),
        case("a block", format!("@node2 vrrp_instance X {{\n{}", a("10.0.0.1"))),
        case(
            "behind a brace",
            "vrrp_instance A { @node1 interface eth1\n@node2 interface eth2\nvirtual_router_id 5\nvirtual_ipaddress { @node1 10.0.0.1\n @node2 10.0.0.2\n } }\n",
        ),
        case(
            "an include",
            format!(
                "@node1 include a.inc\n@node2 include b.inc\n{}",
                on("eth1", "Z", "", "10.0.0.9")
            ),
        )
        .with("a.inc", instance("A", "", "10.0.0.1"))
        .with("b.inc", instance("B", "", "10.0.0.2")),
    ]);
}

#[test]
fn keepalived_conditional_lines_default_to_the_host_name() {
    let lab = DumpLab::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let addresses = format!("@{host} 10.0.0.1\n @^{host} 10.0.0.2\n 10.0.0.3");
    write(lab.path(), "keepalived.conf", &instance("${_INSTANCE}", "", &addresses));
    let file = lab.path().join("keepalived.conf");
    assert_eq!(difference(&lab, &file, None), None);
    assert!(described(&ours(&file, None))[0].addresses.len() == 2);
}

#[test]
fn keepalived_includes() {
    let (a, b) = (instance("A", "", "10.0.0.1"), on("eth1", "B", "", "10.0.0.2"));
    let both = |include: &str| {
        case(include, format!("{include}\n{}", on("eth2", "Z", "", "10.0.0.9")))
            .with("conf.d/a.conf", a.clone())
            .with("conf.d/b.conf", b.clone())
            .with("conf.d/.hidden.conf", on("eth2", "H", "", "10.0.0.3"))
            .with("c.conf", "include conf.d/a.conf\n")
    };
    agree(&[
        both("include conf.d/*.conf"),
        both("include conf.d/{a,b}.conf"),
        both("include conf.d/{b,a}.conf"),
        both("include conf.d/{a,gone}.conf"),
        both("include {c.conf,conf.d/b.conf}"),
        both("include conf.d/[ab].conf # comment"),
        both("include conf.d/?.conf"),
        both("include c.conf"),
        both("include gone.conf"),
        both("include conf.d"),
        both("include \"c.conf\""),
        both("include"),
        both("includer conf.d/a.conf"),
        both("includer gone.conf"),
        both("includem gone.conf"),
        both("includem gone*.conf"),
        both("includew gone*.conf"),
        both("includeb conf.d/{a,gone}.conf"),
        both("includea conf.d/{a,b}.conf"),
        both("includea gone.conf"),
        both("includex conf.d/a.conf"),
        both("$I=include c.conf\n$I"),
        case(
            "within an instance",
            "vrrp_instance A {\n interface eth0\n include vips.inc\n virtual_router_id 3\n}\n",
        )
        .with("vips.inc", "virtual_ipaddress {\n 10.0.0.1\n}\n"),
        case("within a list", instance("A", "", "include vips.inc\n 10.0.0.9"))
            .with("vips.inc", "10.0.0.1\n10.0.0.2 dev eth1\n"),
        case("half of a block", "include head.inc\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n")
            .with("head.inc", "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n"),
        case(
            "behind a brace",
            "vrrp_instance A { include vips.inc\n interface eth0\n virtual_router_id 3\n}\n",
        )
        .with("vips.inc", "virtual_ipaddress {\n 10.0.0.1\n}\n"),
        case(
            "definitions of an included file",
            format!("include defs.inc\n{}", instance("A", "", "$IP")),
        )
        .with("defs.inc", "$IP=10.0.0.4"),
        case("the directory of an included file", "include conf.d/a.conf\n")
            .with("conf.d/a.conf", instance("${_PWD}", "", "10.0.0.1")),
        case("a name in a definition", format!("$DIR=conf.d\ninclude ${{DIR}}/a.conf\n{b}"))
            .with("conf.d/a.conf", a.clone()),
    ]);
}

#[test]
fn keepalived_quotes_comments_and_braces() {
    let auth = |pass: &str| {
        instance(
            "A",
            &format!("authentication {{\n auth_type PASS\n auth_pass {pass}\n }}"),
            "10.0.0.1",
        )
    };
    agree(&[
        case(
            "a brace in quotes behind a name",
            instance("A", "", "10.0.0.1").replace("A {", "A \"{\""),
        ),
        case("an escaped quote", auth("\"\\\"\"")),
        case("an escaped quote and a brace", auth("\"\\\"}\"")),
        case("a brace in quotes", auth("\"}{\"")),
        case("a comment in quotes", auth("\"a # b ! c\"")),
        case("a quote that is not closed", auth("\"abc")),
        case("a quote in a word", auth("a\"b c\"d")),
        case("single quotes", auth("'a # b'")),
        case("an escaped comment", instance("A", "", "10.0.0.1 \\# dev eth1")),
        case("a name in quotes", instance("\"A\"", "", "10.0.0.1")),
        case("a name with a blank", instance("\"A B\"", "", "10.0.0.1")),
        case("a name of two words", instance("A B", "", "10.0.0.1")),
        case("a name with a slash", instance("net/A", "", "10.0.0.1")),
        case("a name with other characters", instance("A:1@x%é~+,", "", "10.0.0.1")),
        case("no name", instance("", "", "10.0.0.1")),
        case(
            "words in quotes",
            instance("A", "\"priority\" \"7\"", "\"10.0.0.1/24\" \"dev\" \"eth1\""),
        ),
        case(
            "one line",
            "vrrp_instance A { interface eth0 \n virtual_router_id 3 \n virtual_ipaddress { 10.0.0.1 } }",
        ),
        case(
            "all in one line",
            "vrrp_instance A { interface eth0 virtual_router_id 3 virtual_ipaddress { 10.0.0.1 } }",
        ),
        case(
            "braces on their own lines",
            "vrrp_instance A\n{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n {\n 10.0.0.1\n }\n}\n",
        ),
        case(
            "no blank before a brace",
            "vrrp_instance A{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress{\n10.0.0.1}}\n",
        ),
        case(
            "empty lines before a brace",
            "vrrp_instance A\n\n# comment\n{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n\n\n{\n 10.0.0.1\n }\n}\n",
        ),
        case("CRLF", instance("A", "priority 7", "10.0.0.1/24\n10.0.0.2").replace('\n', "\r\n")),
        case("no newline at the end", instance("A", "", "10.0.0.1").trim_end()),
        case("tabs", instance("A", "priority\t7", "\t10.0.0.1/24\tdev\teth1")),
        case(
            "a brace too many",
            format!("{}}}\n{}", instance("A", "", "10.0.0.1"), on("eth1", "B", "", "10.0.0.2")),
        ),
        case(
            "a brace too few at the end",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {\n 10.0.0.1\n }\n",
        ),
        case(
            "a list that is not closed",
            format!(
                "vrrp_instance A {{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {{\n 10.0.0.1\n}}\n{}",
                on("eth1", "B", "", "10.0.0.2")
            ),
        ),
        case(
            "a list without a brace",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n 10.0.0.1\n 10.0.0.2\n }\n}\n",
        ),
        case(
            "an instance without a brace",
            "vrrp_instance A\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n",
        ),
        case(
            "a block that is not known",
            instance("A", "priority 7\n unknown_block {\n x 1\n }\n priority 8", "10.0.0.1"),
        ),
        case(
            "a list that is misspelt",
            instance("A", "virtual_ipadress {\n 10.0.0.8\n }", "10.0.0.1"),
        ),
        case(
            "an unknown block at the top",
            format!("unknown {{\n a b\n}}\n{}", instance("A", "", "10.0.0.1")),
        ),
        case(
            "an unknown block in global_defs",
            format!(
                "global_defs {{\n unknown {{\n a\n }}\n vmac_prefix x\n}}\n{}",
                instance("A", "use_vmac", "10.0.0.1")
            ),
        ),
        case("a template that is left", instance("A", "priority {{ priority }}", "10.0.0.1")),
        case(
            "a template of an interface",
            instance("A", "", "10.0.0.1").replace("eth0", "{{ interface }}"),
        ),
        case("a template of an address", instance("A", "", "{{ vip }}\n 10.0.0.1")),
        case(
            "a template of a block",
            instance("A", "{% if master %}\n state MASTER\n {% endif %}", "10.0.0.1"),
        ),
        case(
            "a long comment",
            format!("# {}\n{}", "x ".repeat(1500), instance("A", "", "10.0.0.1")),
        ),
        case(
            "a long line",
            instance("A", "", &format!("10.0.0.1 {} dev eth1", "no_track ".repeat(200))),
        ),
        case(
            "garbage between instances",
            format!(
                "{}garbage in here\n{}",
                instance("A", "", "10.0.0.1"),
                on("eth1", "B", "", "10.0.0.2")
            ),
        ),
    ]);
}

#[test]
fn keepalived_addresses() {
    let a = |addresses: &str| instance("A", "", addresses);
    let many: String = (1..=300).map(|n| format!("10.0.{}.{}\n", n / 250, n % 250 + 1)).collect();
    let many_v6: String = (1..=100).map(|n| format!("fd00::{n}\n")).collect();
    agree(&[
        case("both families", a("10.0.0.1\n fd00::1\n 10.0.0.2")),
        case("both families, IPv6 first", a("fd00::1\n 10.0.0.2")),
        case("native_ipv6", instance("A", "native_ipv6", "10.0.0.1\n fd00::1")),
        case(
            "a source address of the family",
            instance("A", "mcast_src_ip 198.18.0.1", "fd00::1\n 10.0.0.1"),
        ),
        case(
            "peers of the family",
            instance("A", "unicast_peer {\n 198.18.0.2\n }", "fd00::1\n 10.0.0.1"),
        ),
        case(
            "peers with a length",
            instance(
                "A",
                "unicast_src_ip 198.18.0.1/24\n unicast_peer {\n 198.18.0.2/24\n }",
                "10.0.0.1",
            ),
        ),
        case("dev without a name", a("10.0.0.1 dev\n 10.0.0.2")),
        case("dev in any order", a("10.0.0.1/24 label eth1:1 scope link dev eth1 brd 10.0.0.255")),
        case("dev twice", a("10.0.0.1 dev eth0 dev eth1\n 10.0.0.2")),
        case("a link that cannot be", a("10.0.0.1 dev eth0:1\n 10.0.0.2")),
        case(
            "options",
            a(
                "10.0.0.1/24 brd + dev eth0 scope global no_track\n 10.0.0.2/24 broadcast -\n 10.0.0.3 noprefixroute home -nodad",
            ),
        ),
        case("a broadcast that is none", a("10.0.0.1/24 brd x\n 10.0.0.2 brd")),
        case("a broadcast of IPv6", a("fd00::1/64 brd fd00::2\n fd00::3/64")),
        case(
            "a label that is too long",
            a("10.0.0.1 label a_label_of_16_byt\n 10.0.0.2 label a_label_of_15_b"),
        ),
        case("a label without a name", a("10.0.0.1 label\n 10.0.0.2")),
        case("a peer", a("10.0.0.1 peer 10.0.0.2\n 10.0.0.3/24 peer 10.0.0.4")),
        case("a length that is too long", a("10.0.0.1/33\n 10.0.0.2/24x\n 10.0.0.3/")),
        case("a length of IPv6", a("fd00::1/64\n fd00::2/129\n fd00::3")),
        case(
            "addresses that are none",
            a("10.0.0\n 10.0.0.256\n host\n 010.0.0.1\n fd00:::1\n fe80::1%eth0\n 10.0.0.1"),
        ),
        case("IPv6 in capital letters", a("FD00:0:0:0::00A1/64")),
        case("an IPv4 address in IPv6", a("::ffff:10.0.0.1")),
        case("two in one line", a("10.0.0.1 10.0.0.2")),
        case("a comma behind it", a("10.0.0.1,\n 10.0.0.2")),
        case("the same one twice", a("10.0.0.1\n 10.0.0.1")),
        case("300 addresses", a(&many)),
        case("100 addresses of IPv6", a(&many_v6)),
        case("no address", a("")),
        case("no address of version 3", instance("A", "version 3", "")),
        case(
            "excluded ones only",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress_excluded {\n 10.0.0.1\n fd00::1\n }\n}\n",
        ),
        case("two lists", instance("A", "virtual_ipaddress {\n 10.0.0.5\n }", "10.0.0.1")),
        case(
            "words before the list",
            instance("A", "", "10.0.0.1")
                .replace("virtual_ipaddress {", "virtual_ipaddress extra {"),
        ),
        case(
            "a preferred lifetime",
            a("fd00::1/64 preferred_lft 0\n fd00::2/64 preferred_lft forever"),
        ),
        case(
            "static addresses",
            format!("static_ipaddress {{\n 10.9.9.9/32 dev eth1\n}}\n{}", a("10.0.0.1")),
        ),
    ]);
}

#[test]
fn keepalived_statements_without_their_value() {
    let of_instance = [
        "notify",
        "notify_backup",
        "notify_fault",
        "notify_master",
        "notify_master_rx_lower_pri",
        "notify_stop",
        "lvs_sync_daemon_interface",
        "garp_master_refresh_repeat",
    ];
    let instance_with = |statement: &str| instance("A", statement, "10.0.0.1");
    let mut cases: Vec<Case> =
        of_instance.iter().map(|word| case(word, instance_with(word))).collect();
    let blocks = [
        ("vrrp_sync_group G", "notify_master"),
        ("vrrp_sync_group G", "notify"),
        ("vrrp_track_process P", "process"),
        ("vrrp_track_process P", "quorum"),
        ("vrrp_script S", "user"),
        ("global_defs", "vrrp_garp_interval"),
        ("global_defs", "smtp_server"),
    ];
    cases.extend(blocks.map(|(block, word)| {
        case(&format!("{block}: {word}"), format!("{block} {{\n {word}\n}}\n{}", instance_with("")))
    }));
    agree(&cases);
}

#[test]
fn keepalived_statements() {
    let a = |statements: &str| instance("A", statements, "10.0.0.1");
    let without = |line: &str| instance("A", "", "10.0.0.1").replace(line, "");
    let strict = "global_defs {\n vrrp_strict\n}\n";
    agree(&[
        case(
            "the same virtual_router_id of IPv6, once on a VMAC",
            format!("{}{}", instance("A", "", "fd00::1"), instance("B", "use_vmac", "fd00::2")),
        ),
        case("no priority", a("")),
        case("no priority of a MASTER", a("state MASTER")),
        case("priority 0", a("priority 0")),
        case("priority 0 of a MASTER", a("state MASTER\n priority 0")),
        case("priority 256", a("priority 256")),
        case("a priority that is no number", a("priority high")),
        case("a priority with text behind it", a("priority 50x")),
        case("a negative priority", a("priority -5")),
        case("a priority in quotes with blanks", a("priority \" 7\"")),
        case("two priorities", a("priority 7\n priority 8")),
        case("a priority and more words", a("priority 7 8")),
        case("priority without a value", a("priority")),
        case("states", a("state MASTER\n state BACKUP")),
        case("a state in small letters", a("state master")),
        case("a state that is none", a("state MASTER\n state FOO")),
        case("no virtual_router_id", without("virtual_router_id 51")),
        case("virtual_router_id 0", a("").replace("51", "0")),
        case("virtual_router_id 256", a("").replace("51", "256")),
        case("virtual_router_id of text", a("").replace("51", "5x")),
        case("two virtual_router_ids", a("virtual_router_id 52")),
        case("two virtual_router_ids, one wrong", a("virtual_router_id 0")),
        case(
            "virtual_router_id without a value",
            a("").replace("virtual_router_id 51", "virtual_router_id"),
        ),
        case("no interface", without("interface eth0")),
        case("interface without a value", a("").replace("interface eth0", "interface")),
        case("two interfaces", a("interface eth1")),
        case("an interface that is too long", a("interface a_name_of_16_byte")),
        case("an interface that cannot be", a("").replace("eth0", "eth0:1")),
        case("the loopback interface", a("").replace("eth0", "lo")),
        case("an interface in quotes", a("").replace("eth0", "\"eth1\"")),
        case(
            "a unicast instance without an interface",
            instance(
                "A",
                "unicast_src_ip 198.18.0.1\n unicast_peer {\n 198.18.0.2\n }",
                "10.0.0.1",
            )
            .replace("interface eth0", ""),
        ),
        case("advert_int", a("advert_int 0.5")),
        case("advert_int that is none", a("advert_int 1s")),
        case("the same name twice", format!("{}{}", a(""), on("eth1", "A", "", "10.0.0.2"))),
        case(
            "the same virtual_router_id twice",
            format!("{}{}", a(""), instance("B", "", "10.0.0.2")),
        ),
        case(
            "the same virtual_router_id of another family",
            format!("{}{}", a(""), instance("B", "", "fd00::1")),
        ),
        case(
            "the same virtual_router_id of another group",
            format!("{}{}", a(""), instance("B", "mcast_dst_ip 224.0.0.81", "10.0.0.2")),
        ),
        case("strict", format!("{strict}{}", a("priority 7"))),
        case("strict without addresses", format!("{strict}{}", instance("A", "", ""))),
        case("version 3", a("version 3\n advert_int 0.1")),
        case(
            "tracking",
            format!(
                "vrrp_script chk {{\n script \"/bin/true\"\n interval 2\n weight -20\n}}\n{}",
                a("track_script {\n chk\n }\n track_interface {\n eth1 weight -5\n eth2\n }")
            ),
        ),
        case(
            "a sync group",
            format!(
                "vrrp_sync_group G {{\n group {{\n A\n B\n }}\n notify_master /bin/true\n}}\n{}{}",
                a(""),
                on("eth1", "B", "", "10.0.0.2")
            ),
        ),
        case(
            "a virtual server",
            format!(
                "virtual_server 10.0.0.1 80 {{\n delay_loop 6\n real_server 10.0.0.5 80 {{\n TCP_CHECK {{\n connect_timeout 3\n }}\n }}\n}}\n{}",
                a("")
            ),
        ),
        case(
            "global definitions",
            format!(
                "global_defs {{\n router_id LVS\n notification_email {{\n a@example.org\n b@example.org\n }}\n smtp_server 127.0.0.1\n smtp_connect_timeout 30\n vrrp_skip_check_adv_addr\n vrrp_garp_interval 0\n}}\n{}",
                a("")
            ),
        ),
        case("notify scripts", a("notify_master \"/bin/true master {x}\"\n notify /bin/true")),
        case(
            "many statements",
            a(
                "state BACKUP\n nopreempt\n garp_master_delay 5\n smtp_alert\n dont_track_primary\n debug 1\n preempt_delay 300\n accept",
            ),
        ),
        case(
            "Neutron",
            "global_defs {\n    notification_email_from neutron@openstack.local\n    router_id neutron\n}\nvrrp_instance VR_1 {\n    state BACKUP\n    interface eth0\n    virtual_router_id 1\n    priority 50\n    garp_master_delay 60\n    nopreempt\n    advert_int 2\n    track_interface {\n        eth0\n    }\n    virtual_ipaddress {\n        169.254.0.1/24 dev eth0\n    }\n    virtual_ipaddress_excluded {\n        10.0.0.1/24 dev eth1\n        fe80::1/64 dev eth1 scope link\n        192.0.2.9/32 dev eth2\n    }\n    virtual_routes {\n        0.0.0.0/0 via 192.0.2.1 dev eth2\n    }\n}",
        ),
        case("no instance", "global_defs {\n router_id x\n}\n"),
        case("nothing", ""),
    ]);
}

/// keepalived takes another number each time it starts.
#[test]
fn keepalived_random_values_are_unknown() {
    let lab = DumpLab::new();
    write(lab.path(), "keepalived.conf", &instance("A", "priority ${_RANDOM 1 1}", "10.0.0.1"));
    let file = lab.path().join("keepalived.conf");
    let Dump::Instances(theirs) = lab.dump(&file, None) else {
        panic!("keepalived does not start")
    };
    let discovery = ours(&file, None);
    let [ours] = described(&discovery).try_into().unwrap();
    assert_eq!(theirs[0], DumpInstance { priority: "1".to_owned(), ..ours.clone() });
    assert_eq!(ours.priority, "unknown");
    assert_eq!(discovery.problems[0].text, "priority of A is random, and cannot be known");
}
