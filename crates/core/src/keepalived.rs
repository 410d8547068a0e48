//! keepalived's configuration, as far as it says which addresses are virtual.
//!
//! [`tree`] turns text into statements and blocks; [`vrrp`] finds the instances in them. Neither
//! opens a file: whoever does resolves `include` and hands the statements over.

pub mod tree;
pub mod vrrp;

pub use tree::{Definitions, Place, Problem, Statement, Weight};
pub use vrrp::{Configuration, VirtualAddress, VrrpInstance, configuration};
