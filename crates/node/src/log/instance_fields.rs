// SPDX-License-Identifier: Apache-2.0
//! The fields `netns` and `address` of log lines about an instance.

use vipwatch_core::first_of;

use crate::discovery::InstanceConfig;

/// Maximum number of addresses in a line.
const MAX_ADDRESSES: usize = 4;

/// The name of the namespace; empty for the node's own.
pub(crate) fn netns_name(instance: &InstanceConfig) -> &str {
    instance.netns.as_ref().map_or("", |netns| netns.as_str())
}

/// The watched addresses; of many, the first ones and the number of the others.
pub(crate) fn addresses(instance: &InstanceConfig) -> String {
    first_of(instance.watched().iter().map(|(_, cidr)| cidr), MAX_ADDRESSES, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::example;

    #[test]
    fn many_addresses_are_counted() {
        let mut instance = example();
        assert_eq!(addresses(&instance), "192.0.2.1/32");
        let vrrp = std::sync::Arc::make_mut(&mut instance.vrrp);
        vrrp.addresses = std::iter::repeat_n(vrrp.addresses[0], 6).collect();
        assert!(addresses(&instance).ends_with("192.0.2.1/32 and 2 more"));
    }
}
