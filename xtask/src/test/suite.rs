// SPDX-License-Identifier: Apache-2.0
//! The suites: what each of them needs, how it runs, and its budget.

use crate::build::TestProgram;
use crate::provision::{self, Need};

/// A suite of tests or checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    Check,
    Unit,
    Netns,
    Contract,
    Neutron,
    Browser,
    Faults,
    Packages,
    Deployment,
    Fuzz,
}

impl Suite {
    pub const ALL: [Self; 10] = [
        Self::Check,
        Self::Unit,
        Self::Netns,
        Self::Contract,
        Self::Neutron,
        Self::Browser,
        Self::Faults,
        Self::Packages,
        Self::Deployment,
        Self::Fuzz,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Unit => "unit",
            Self::Netns => "netns",
            Self::Contract => "contract",
            Self::Neutron => "neutron",
            Self::Browser => "browser",
            Self::Faults => "faults",
            Self::Packages => "packages",
            Self::Deployment => "deployment",
            Self::Fuzz => "fuzz",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// An integration test has the name of its suite; every other test program has unit tests.
    pub fn of(program: &TestProgram) -> Self {
        match program.target.as_str() {
            "netns" => Self::Netns,
            "contract" => Self::Contract,
            "neutron" => Self::Neutron,
            "browser" => Self::Browser,
            "packages" | "packages-full" => Self::Packages,
            _ => Self::Unit,
        }
    }

    /// Number of concurrent tests in a test program. Tests in namespaces mostly wait for other processes; tests with
    /// Neutron's own agents or with a browser need the processors themselves.
    pub fn threads(self) -> usize {
        match self {
            Self::Netns | Self::Contract => 8,
            Self::Neutron | Self::Browser => 1,
            _ => 2,
        }
    }

    /// Whether its tests start programs of other projects and depend on the machine. In CI, a failed test of such a suite
    /// runs once more, alone.
    pub fn has_real_programs(self) -> bool {
        matches!(self, Self::Netns | Self::Neutron | Self::Browser | Self::Faults | Self::Packages)
    }

    /// Whether `--repeat` runs it if no suite is named.
    pub fn is_repeated(self) -> bool {
        self.has_real_programs() || self == Self::Contract
    }

    /// The programs that it starts.
    pub fn needs(self) -> &'static [&'static [Need]] {
        use provision::{
            ARPING, BASIC, C_COMPILER, CHROMIUM, CONNTRACKD, CPP_COMPILER, ETCD, FAKETIME,
            KEEPALIVED, MANDOC, PACKING, PEERS, PROMETHEUS, ROOTS, RPM, SHELLCHECK, SHELLS,
            SQLITE_OPENSSL, STRACE, TCPDUMP,
        };
        match self {
            Self::Unit => &[],
            Self::Check => &[MANDOC, SHELLCHECK],
            Self::Netns => &[
                BASIC,
                C_COMPILER,
                TCPDUMP,
                ARPING,
                KEEPALIVED,
                SQLITE_OPENSSL,
                PEERS,
                PROMETHEUS,
                ETCD,
                SHELLS,
                STRACE,
            ],
            Self::Contract => &[BASIC, TCPDUMP, ARPING, KEEPALIVED, CONNTRACKD, PEERS],
            Self::Neutron => &[BASIC, KEEPALIVED, CONNTRACKD, PEERS, ETCD, SQLITE_OPENSSL],
            Self::Browser => &[BASIC, KEEPALIVED, CHROMIUM, PEERS],
            Self::Faults => &[BASIC, KEEPALIVED, TCPDUMP, ETCD, FAKETIME],
            Self::Packages => &[BASIC, ROOTS, RPM, PACKING],
            Self::Deployment => &[PEERS],
            Self::Fuzz => &[CPP_COMPILER],
        }
    }

    /// Whether a filter can choose some of its tests.
    pub fn has_named_tests(self) -> bool {
        self == Self::Unit || self.targets().is_some()
    }

    /// The names of cargo's test targets; `None` for unit tests.
    pub fn targets(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Netns => Some(&["netns"]),
            Self::Contract => Some(&["contract"]),
            Self::Neutron => Some(&["neutron"]),
            Self::Browser => Some(&["browser"]),
            Self::Packages => Some(&["packages"]),
            _ => None,
        }
    }

    /// Wall time in a whole run on two processors, in seconds; CONTRIBUTING.md has the same table.
    pub fn budget(self) -> u64 {
        match self {
            Self::Unit => 30,
            Self::Contract => 60,
            Self::Faults => 180,
            Self::Browser => 240,
            Self::Deployment => 300,
            Self::Packages => 360,
            Self::Netns | Self::Neutron => 420,
            Self::Check => 480,
            Self::Fuzz => 600,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budgets_are_those_in_contributing_md() {
        let text = std::fs::read_to_string(crate::build::root().join("CONTRIBUTING.md")).unwrap();
        for suite in Suite::ALL {
            let is_row = |line: &&str| {
                line.contains(&format!("`{}`", suite.name())) && line.ends_with(" s |")
            };
            let row = text.lines().find(is_row).unwrap_or_default();
            assert!(row.ends_with(&format!("| {} s |", suite.budget())), "{suite:?}: {row:?}");
        }
    }

    #[test]
    fn every_suite_has_a_name_of_its_own() {
        for suite in Suite::ALL {
            assert_eq!(Suite::named(suite.name()), Some(suite));
        }
    }
}
