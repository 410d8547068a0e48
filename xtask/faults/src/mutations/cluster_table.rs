// SPDX-License-Identifier: Apache-2.0
//! The mutations of the product's cluster view, each with the faults that reveal it.

use super::table::Mutation;

pub const CLUSTER_MUTATIONS: &[Mutation] = &[];
