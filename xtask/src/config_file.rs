// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask config-file`: writes the example of a configuration file in the packages.

use std::path::PathBuf;

use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build};

pub const HELP: &str = "\
Write packaging/vipwatch.toml, which the packages install as /usr/share/doc/vipwatch/examples/vipwatch.toml: the text of
`vipwatch config example` with every setting commented out, so that the defaults apply.

Usage: cargo xtask config-file

`cargo xtask check` fails if the file differs from the example.
";

pub fn run(args: &[&str]) -> TaskResult {
    Arguments::new(args).finish()?;
    build::write(&path(), generate()?.as_bytes())
}

/// Fails if the committed file differs from the example.
pub fn check() -> TaskResult {
    if std::fs::read_to_string(path()).unwrap_or_default() == generate()? {
        return Ok(());
    }
    Err(TaskError(
        "packaging/vipwatch.toml differs from crates/node/src/config/example.toml\n  hint: cargo xtask config-file".to_owned(),
    ))
}

fn path() -> PathBuf {
    build::root().join("packaging/vipwatch.toml")
}

fn generate() -> Result<String, TaskError> {
    let example = build::root().join("crates/node/src/config/example.toml");
    Ok(commented(&std::fs::read_to_string(example)?))
}

/// The example with every setting commented out. A comment begins with `# `, a setting with `#`.
fn commented(example: &str) -> String {
    let mut text = "# All settings are commented out, so the defaults apply. Remove the # before a table and its keys to use them.\n#\n"
        .to_owned();
    for line in example.lines() {
        if !line.is_empty() && !line.starts_with('#') {
            text.push('#');
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_the_file_sets_anything() {
        let text = generate().map_err(|error| error.0).unwrap();
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
        assert!(text.contains("\n#[node]\n") && text.contains("\n#state_dir = "), "{text}");
    }
}
