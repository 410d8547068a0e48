//! The mutations of the product, each with the faults that reveal it.

/// One deliberate defect.
pub struct Mutation {
    pub name: &'static str,
    /// The file, relative to the root of the repository.
    pub file: &'static str,
    /// A text that the file has once.
    pub old: &'static str,
    pub new: &'static str,
    pub seed: u64,
    /// The faults that are injected, separated by commas.
    pub faults: &'static str,
    /// The kinds of failure that prove it.
    pub kinds: &'static [&'static str],
    /// A text that the failure has.
    pub text: &'static str,
}

const MISSING: &[&str] = &["finding-missing", "finding-late"];

/// Seed 6 is the simplest lab: two nodes, version 2, IPv4, multicast.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "address-left-not-named",
        file: "crates/core/src/keepalived_process.rs",
        old: "            name: \"keepalived-gone-address-left\",",
        new: "            name: \"keepalived-gone\",",
        seed: 6,
        faults: "kill-both",
        kinds: MISSING,
        text: "keepalived-gone-address-left",
    },
    Mutation {
        name: "second-primary-settles-long",
        file: "crates/core/src/audit/adverts.rs",
        old: "is_holding && overlap >= record.interval + SETTLE",
        new: "is_holding && overlap >= record.interval + SETTLE * 60",
        seed: 6,
        faults: "freeze-child",
        kinds: MISSING,
        text: "two-primaries",
    },
    Mutation {
        name: "silence-settles-long",
        file: "crates/core/src/audit/adverts.rs",
        old: "(silence >= self.down_interval + SETTLE)",
        new: "(silence >= self.down_interval + SETTLE * 60)",
        seed: 6,
        faults: "stop-all",
        kinds: MISSING,
        text: "no-primary",
    },
    Mutation {
        name: "stranger-not-recognised",
        file: "crates/core/src/audit/adverts.rs",
        old: "if question.is_stranger(record) {",
        new: "if question.is_stranger(record) && record.priority == 0 {",
        seed: 6,
        faults: "vrid-clash",
        kinds: MISSING,
        text: "vrid-clash-on-link",
    },
    Mutation {
        name: "grace-too-long",
        file: "crates/node/src/audit.rs",
        old: "pub const GRACE: Duration = Duration::from_secs(5);",
        new: "pub const GRACE: Duration = Duration::from_secs(25);",
        seed: 6,
        faults: "kill-parent",
        kinds: MISSING,
        text: "keepalived-gone",
    },
    Mutation {
        name: "carrier-ignored",
        file: "crates/core/src/role.rs",
        old: "LinkState::NoCarrier => Some(Fault::NoCarrier(link)),",
        new: "LinkState::NoCarrier => None,",
        seed: 6,
        faults: "carrier-loss",
        kinds: &["transition-missing"],
        text: "the kernel showed fault",
    },
    Mutation {
        name: "stopped-process-not-seen",
        file: "crates/node/src/processes/keepalived.rs",
        old: "RunState::Stopped => Some(Suspension::Signal),",
        new: "RunState::Stopped => None,",
        seed: 6,
        faults: "freeze-child",
        kinds: MISSING,
        text: "keepalived-frozen",
    },
    Mutation {
        name: "finding-never-closed",
        file: "crates/node/src/audit/open_findings.rs",
        old: "            self.changes.push(FindingChange { finding, state: FindingState::Closed });",
        new: "            let _ = finding;",
        seed: 6,
        faults: "stop",
        kinds: &["finding-not-closed"],
        text: "keepalived-gone",
    },
    Mutation {
        name: "missing-child-not-seen",
        file: "crates/core/src/keepalived_process.rs",
        old: "(self.vrrp_child == VrrpChild::Missing).then(|| Finding {",
        new: "(self.vrrp_child == VrrpChild::Unknown).then(|| Finding {",
        seed: 6,
        faults: "lose-child",
        kinds: MISSING,
        text: "keepalived-vrrp-child-missing",
    },
    Mutation {
        name: "outdated-configuration-not-seen",
        file: "crates/node/src/processes/keepalived.rs",
        old: "        if changed_at(file)? <= self.started {",
        new: "        if changed_at(file)? > self.started {",
        seed: 6,
        faults: "edit-only",
        kinds: MISSING,
        text: "keepalived-reload-pending",
    },
];
