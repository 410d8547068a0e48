// SPDX-License-Identifier: Apache-2.0
//! Lists of a limited length in texts.

use std::fmt::Display;

/// The first `limit` items with `between` between them, and the number of the others.
pub fn first_of(items: impl IntoIterator<Item: Display>, limit: usize, between: &str) -> String {
    let mut items = items.into_iter();
    let named: Vec<String> = items.by_ref().take(limit).map(|item| item.to_string()).collect();
    match items.count() {
        0 => named.join(between),
        more => format!("{} and {more} more", named.join(between)),
    }
}
