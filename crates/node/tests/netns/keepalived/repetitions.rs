// SPDX-License-Identifier: Apache-2.0
//! Lines that keepalived repeats: `~SEQ` and `~LST`.

use super::{assert_same_result, case, instance};

#[test]
fn sequences_and_lists_expand_as_in_keepalived() {
    let with_addresses = |addresses: &str| instance("A", "", addresses);
    let block = "~LST({NAME, LINK, ID}, {A, eth0, 1}, {B, eth1, 2}) $BLOCK\n";
    let defined = "$BLOCK=vrrp_instance $NAME \\\n { \\\n interface $LINK \\\n virtual_router_id $ID \\\n virtual_ipaddress { \\\n 10.0.0.${ID} \\\n } \\\n }\n";
    assert_same_result(&[
        case("a sequence to three", with_addresses("~SEQ(N, 3) 10.0.0.${N}")),
        case(
            "a sequence from five down to three",
            with_addresses("~SEQ(N, 5, 3) 10.0.0.${N}/24 dev eth1"),
        ),
        case("a sequence in steps", with_addresses("~SEQ(N, 1, 5, 20) 10.0.0.${N}")),
        case(
            "a sequence whose steps never reach the end",
            with_addresses("10.0.0.1\n ~SEQ(N, 1, -5, 20) 10.0.0.${N}"),
        ),
        case("a hexadecimal sequence", with_addresses("~SEQx(N, 8, 12) fd00::${N}/64")),
        case("a nested use", with_addresses("~SEQ(A, 1, 2) ~SEQ(B, 3, 4) 10.0.${A}.${B}")),
        case(
            "a sequence whose end is a definition",
            with_addresses("10.0.0.1")
                .replace("vrrp", "$TO=3\nvrrp")
                .replace("10.0.0.1", "~SEQ(N, $TO) 10.0.0.${N}"),
        ),
        case("a sequence without brackets", with_addresses("10.0.0.1\n ~SEQ N 10.0.0.${N}")),
        case(
            "a sequence in a definition",
            with_addresses("$S\n 10.0.0.1")
                .replace("vrrp_instance", "$S=~SEQ(N, 7, 8) 10.0.0.${N}\nvrrp_instance"),
        ),
        case("a list", with_addresses("~LST(N, 1, 3, 9) 10.0.0.${N}")),
        case(
            "a list of pairs",
            with_addresses("~LST({N, L}, {1, eth0}, {2, eth1}) 10.0.0.${N} dev $L"),
        ),
        case(
            "a list with values left out",
            with_addresses("~LST({N, L}, {1, 24}, {2}) 10.0.0.${N}/${L}"),
        ),
        case(
            "a list with too many values",
            with_addresses("10.0.0.1\n ~LST({N}, {1, 24}) 10.0.0.${N}"),
        ),
        case("a list of instances", format!("{defined}{block}")),
        case(
            "a sequence of instances in one line",
            "~SEQ(N, 1, 3) vrrp_instance V${N} { interface eth0 }\n".to_owned()
                + &with_addresses("10.0.0.1"),
        ),
    ]);
}
