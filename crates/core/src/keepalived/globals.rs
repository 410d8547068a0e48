//! What keepalived's first process reads: `global_defs` and the namespace.

use super::blocks::{Statement, Visitor, Wanted};
use super::numbers::{Rest, number};
use super::problem::Problem;
use crate::NetnsName;

/// What concerns every instance.
#[derive(Debug, Default)]
pub(super) struct Globals {
    pub(super) netns: Option<NetnsName>,
    pub(super) is_strict: bool,
    /// Whether links that do not exist yet are waited for.
    pub(super) is_dynamic: bool,
    /// `vrrp_version`; 2 if it is not given.
    pub(super) version: Option<u8>,
    vmac_prefix: Option<String>,
    vmac_address_prefix: Option<String>,
    pub(super) problems: Vec<Problem>,
}

impl Globals {
    /// The beginning of the name of an instance's own link.
    pub(super) fn vmac_prefix(&self) -> &str {
        self.vmac_prefix.as_deref().unwrap_or("vrrp")
    }

    /// The beginning of the name of a link for one address.
    pub(super) fn vmac_address_prefix(&self) -> &str {
        self.vmac_address_prefix.as_deref().unwrap_or(self.vmac_prefix())
    }
}

impl Visitor for Globals {
    fn begin(&mut self, _statement: Statement<'_>) -> Wanted {
        Wanted::Yes
    }

    fn statement(&mut self, statement: Statement<'_>) {
        let text = statement.argument();
        match statement.words[0].as_str() {
            "net_namespace" if self.netns.is_none() => match text.parse() {
                Ok(netns) => self.netns = Some(netns),
                Err(error) => {
                    let text = format!("net_namespace cannot be {text:?}: {error}");
                    self.problems.push(Problem::new(statement.place, text));
                }
            },
            "dynamic_interfaces" => self.is_dynamic = true,
            "vrrp_strict" => self.is_strict = true,
            "vrrp_version" => {
                let version = number(text, 2, 3, Rest::Ignored);
                self.version =
                    version.and_then(|version| u8::try_from(version).ok()).or(self.version);
            }
            "vmac_prefix" => drop(self.vmac_prefix.get_or_insert_with(|| text.to_owned())),
            "vmac_addr_prefix" => {
                self.vmac_address_prefix.get_or_insert_with(|| text.to_owned());
            }
            _ => {}
        }
    }

    fn entry(&mut self, _keyword: &str, _entry: Statement<'_>) {}

    /// A block that keepalived does not know ends `global_defs`. What is read here is rarely behind one,
    /// and a newer keepalived may know it: that is not worth a problem.
    fn nesting(&mut self, _problem: Problem) {}

    fn refuse(&mut self, problem: Problem) {
        self.problems.push(problem);
    }
}
