// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask openapi`: writes the OpenAPI document of the API, which is generated from its types.

use std::path::PathBuf;
use std::process::Command;

use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build, process};

pub const HELP: &str = "\
Write docs/reference/openapi.json, the OpenAPI document of the HTTP API. It is generated from crates/api.

Usage: cargo xtask openapi

`cargo xtask check` fails if the file differs from the types. `cargo xtask test netns schemathesis` compares it with a
running node.
";

pub fn run(args: &[&str]) -> TaskResult {
    Arguments::new(args).finish()?;
    build::write(&path(), &generate()?)
}

/// Fails if the committed document differs from the types.
pub fn check() -> TaskResult {
    if std::fs::read(path()).unwrap_or_default() == generate()? {
        return Ok(());
    }
    Err(TaskError(
        "docs/reference/openapi.json differs from crates/api\n  hint: cargo xtask openapi"
            .to_owned(),
    ))
}

pub fn path() -> PathBuf {
    build::root().join("docs/reference/openapi.json")
}

fn generate() -> Result<Vec<u8>, TaskError> {
    process::output(&mut Command::new(build::openapi()?))
}
