// SPDX-License-Identifier: Apache-2.0
//! Every source file names its licence in its first lines, in the form of SPDX.

use crate::source::{SourceFile, tracked_files};
use crate::{TaskResult, build};

const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0";

/// One message for each source file without the line.
pub(super) fn check(files: &[SourceFile], broken: &mut Vec<String>) {
    let mut count = 0;
    for (file, line) in files.iter().filter_map(|file| Some((file, line_of(file)?))) {
        count += 1;
        if !has_line(&file.text, &line) {
            broken.push(format!(
                "{}: the first line must be `{line}`; `cargo xtask check --add-spdx` adds it",
                file.path
            ));
        }
    }
    if count < 500 {
        broken.push(format!("tidy finds only {count} source files; adapt `tidy/spdx.rs`"));
    }
}

/// Adds the line to every source file that lacks it, and prints the number of changed files.
pub fn add() -> TaskResult {
    let mut count = 0;
    for file in tracked_files()? {
        let Some(line) = line_of(&file) else { continue };
        if !has_line(&file.text, &line) {
            build::write(&build::root().join(&file.path), with_line(&file.text, &line).as_bytes())?;
            count += 1;
        }
    }
    println!("the licence was added to {count} files");
    Ok(())
}

/// The line for this file; `None` for a file that needs none: a document, data, or a file that cannot have a comment.
fn line_of(file: &SourceFile) -> Option<String> {
    let has =
        |extensions: &[&str]| extensions.iter().any(|extension| file.has_extension(extension));
    if has(&["rs", "js", "c"]) {
        Some(format!("// {LICENCE}"))
    } else if has(&["css"]) {
        Some(format!("/* {LICENCE} */"))
    } else if has(&["py", "sh"]) || file.text.starts_with("#!") {
        Some(format!("# {LICENCE}"))
    } else {
        None
    }
}

/// Whether the first line is `line`, or the second one after `#!`.
fn has_line(text: &str, line: &str) -> bool {
    let lines = text.lines().skip_while(|first| is_interpreter(first));
    lines.take(1).any(|first| first == line)
}

fn with_line(text: &str, line: &str) -> String {
    match text.split_once('\n') {
        Some((first, rest)) if is_interpreter(first) => format!("{first}\n{line}\n{rest}"),
        _ => format!("{line}\n{text}"),
    }
}

/// Whether the line names the program that runs the file. `#![…]` is an attribute of Rust.
fn is_interpreter(line: &str) -> bool {
    line.starts_with("#!/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_first_or_after_the_interpreter() {
        let file =
            |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        for (path, text, expected) in [
            ("a.rs", "//! A.\n", "// SPDX-License-Identifier: Apache-2.0\n//! A.\n"),
            ("a.css", "a {}\n", "/* SPDX-License-Identifier: Apache-2.0 */\na {}\n"),
            (
                "kill",
                "#!/bin/sh\nset -e\n",
                "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nset -e\n",
            ),
        ] {
            let line = line_of(&file(path, text)).unwrap();
            assert!(!has_line(text, &line), "{path}");
            assert_eq!(with_line(text, &line), expected);
            assert!(has_line(expected, &line), "{path}");
        }
        assert_eq!(line_of(&file("a.md", "# A\n")), None);
    }
}
