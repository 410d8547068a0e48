// SPDX-License-Identifier: Apache-2.0
//! What some versions of keepalived read in another way than discovery, which knows their words, and else follows 2.2.7.

/// The beginning of a version, and the names of its cases.
const DIFFERENT: [(&str, &[&str]); 2] = [
    (
        "2.1.",
        &[
            // Words on the line of an include, an address or a VMAC that this version does not know yet.
            "includea conf.d/{a,b}.conf",
            "includea gone.conf",
            "includeb conf.d/{a,gone}.conf",
            "includem gone.conf",
            "includer conf.d/a.conf",
            "includew gone*.conf",
            "use_vmac_addr and use_vmac on an address",
            "use_vmac and use_vmac_addr",
            "use_vmac on one address",
            "use_vmac on one address and the instance",
            "use_vmac with a MAC address before the name",
            "use_vmac with an address on the base link",
            // Links with other names or of another family.
            "a default VMAC name that a later instance names explicitly",
            "excluded addresses of a VMAC",
            "the same VMAC name in two instances",
            "the same virtual_router_id of IPv6, once on a VMAC",
            "use_ipvlan",
            "use_ipvlan with a name",
            "use_ipvlan with the word name",
            "use_vmac with unicast",
            // Long lists, comments and braces.
            "100 addresses of IPv6",
            "300 addresses",
            "a brace too few at the end",
            "a label that is too long",
            "a list with values left out",
            "an escaped comment",
            "an include after a brace",
            "several lines with a comment line",
        ],
    ),
    (
        "2.3.",
        &["a condition in a definition", "an include after a brace", "the same address twice"],
    ),
];

/// Whether a version is known to read a case in another way.
pub(super) fn difference(version: &str, case: &str) -> bool {
    DIFFERENT.iter().any(|(start, cases)| version.starts_with(start) && cases.contains(&case))
}
