// SPDX-License-Identifier: Apache-2.0
//! Prints the OpenAPI document. `cargo xtask openapi` runs it.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::io::Write;
    std::io::stdout().write_all(vipwatch_api::openapi::json()?.as_bytes())?;
    Ok(())
}
