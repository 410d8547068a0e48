//! Routing netlink: [`decode`] turns bytes into messages, [`socket`] moves the bytes.

pub mod decode;
pub mod socket;
