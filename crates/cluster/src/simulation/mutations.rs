// SPDX-License-Identifier: Apache-2.0
//! The mutations of the simulation fit the source. `examples/simulation_mutations.rs` builds and runs each of them.

mod list;

use std::path::Path;

use self::list::MUTATIONS;
use super::fault::FaultKind;

#[test]
fn each_mutation_fits_the_source() {
    for mutation in &MUTATIONS {
        mutation.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        if !mutation.faults.is_empty() {
            assert!(!FaultKind::parse(mutation.faults).is_empty(), "{}", mutation.name);
        }
    }
}
