// SPDX-License-Identifier: Apache-2.0
//! The packages as they are shipped, on other systems and with faults: `cargo xtask test packages --full`.

mod ansible;
mod faults;
mod systems;
