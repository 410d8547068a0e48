// SPDX-License-Identifier: Apache-2.0
//! `include` and its variants.

use super::{assert_same_result, case, instance, instance_on};

#[test]
fn includes_are_read_as_by_keepalived() {
    let (a, b) = (instance("A", "", "10.0.0.1"), instance_on("eth1", "B", "", "10.0.0.2"));
    let both = |include: &str| {
        case(include, format!("{include}\n{}", instance_on("eth2", "Z", "", "10.0.0.9")))
            .with("conf.d/a.conf", a.clone())
            .with("conf.d/b.conf", b.clone())
            .with("conf.d/.hidden.conf", instance_on("eth2", "H", "", "10.0.0.3"))
            .with("c.conf", "include conf.d/a.conf\n")
    };
    assert_same_result(&[
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
            "an include within an instance",
            "vrrp_instance A {\n interface eth0\n include vips.inc\n virtual_router_id 3\n}\n",
        )
        .with("vips.inc", "virtual_ipaddress {\n 10.0.0.1\n}\n"),
        case("an include within a list", instance("A", "", "include vips.inc\n 10.0.0.9"))
            .with("vips.inc", "10.0.0.1\n10.0.0.2 dev eth1\n"),
        case(
            "an included file with half of a block",
            "include head.inc\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n",
        )
        .with("head.inc", "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n"),
        case(
            "an include after a brace",
            "vrrp_instance A { include vips.inc\n interface eth0\n virtual_router_id 3\n}\n",
        )
        .with("vips.inc", "virtual_ipaddress {\n 10.0.0.1\n}\n"),
        case(
            "definitions of an included file",
            format!("include defs.inc\n{}", instance("A", "", "$IP")),
        )
        .with("defs.inc", "$IP=10.0.0.4"),
        case("an included directory", "include conf.d/a.conf\n")
            .with("conf.d/a.conf", instance("${_PWD}", "", "10.0.0.1")),
        case("a name in a definition", format!("$DIR=conf.d\ninclude ${{DIR}}/a.conf\n{b}"))
            .with("conf.d/a.conf", a.clone()),
    ]);
}
