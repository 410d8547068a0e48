// SPDX-License-Identifier: Apache-2.0
//! Ordered maps with thousands of entries, in little memory.

use std::collections::BTreeMap;

/// Moves the entries of `map` into full nodes. A map that was filled in ascending order has half-empty nodes, because
/// the map splits a full node in the middle and the lower half never grows again.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}
