// SPDX-License-Identifier: Apache-2.0
//! One name, one type: a public type name must be declared in one place of the workspace only.

use std::collections::BTreeMap;

use crate::source::SourceFile;
use crate::source::lexer::{code, line_number};

/// The keywords that declare a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// One message for each name with more than one declaration. Private types and test code do not count.
pub(super) fn homonyms(files: &[SourceFile]) -> Vec<String> {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_checked(file)) {
        for (name, line) in public_types(&file.text) {
            declared.entry(name).or_default().push(format!("{}:{line}", file.path));
        }
    }
    declared.retain(|_, places| places.len() > 1);
    let message = |(name, places): (String, Vec<String>)| {
        format!("public type {name} is declared more than once: {}", places.join(", "))
    };
    declared.into_iter().map(message).collect()
}

fn is_checked(file: &SourceFile) -> bool {
    let is_member = file.path.starts_with("crates/") || file.path.starts_with("xtask/");
    file.is_rust() && is_member && !file.is_test()
}

/// The public types of a file with their lines. `pub(crate)` and `pub(super)` are public too.
fn public_types(text: &str) -> Vec<(String, usize)> {
    let code = code(text);
    let starts = code.match_indices("pub").map(|(at, _)| at);
    let declaration = |at: usize| Some((type_name(&code, at)?, line_number(&code, at)));
    starts.filter_map(declaration).collect()
}

/// The name of the type that the `pub` at byte `at` declares; `None` if it declares something else.
fn type_name(code: &str, at: usize) -> Option<String> {
    if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
        return None;
    }
    let mut rest = code[at + "pub".len()..].trim_start();
    if let Some(restricted) = rest.strip_prefix('(') {
        rest = restricted.split_once(')')?.1.trim_start();
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (KEYWORDS.contains(&keyword) && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn two_public_types_with_one_name_are_found() {
        let files = [
            file("crates/a/src/lib.rs", "//! A.\n\npub struct Report;\n"),
            file("crates/b/src/lib.rs", "mod x {\n    pub(super) enum Report<T> { A(T) }\n}\n"),
            file("xtask/src/main.rs", "pub(crate) type Other = u8;\npub unsafe trait Once {}\n"),
        ];
        assert_eq!(
            homonyms(&files),
            [
                "public type Report is declared more than once: crates/a/src/lib.rs:3, crates/b/src/lib.rs:2"
            ]
        );
    }

    #[test]
    fn private_types_and_test_code_are_ignored() {
        let files = [
            file("crates/a/src/lib.rs", "pub struct Report;\n"),
            file("crates/b/src/lib.rs", "struct Report;\n// pub struct Report;\n"),
            file("crates/c/src/lib.rs", "#[cfg(test)]\nmod tests {\n    pub struct Report;\n}\n"),
            file("crates/c/src/lib/tests.rs", "pub struct Report;\n"),
            file("crates/c/tests/netns/main.rs", "pub struct Report;\n"),
            file("fuzz/targets/a.rs", "pub struct Report;\n"),
        ];
        assert_eq!(homonyms(&files), [""; 0]);
    }

    #[test]
    fn fields_functions_and_literals_are_no_types() {
        let text =
            "pub fn report() {}\npub use a::Report;\nconst A: &str = \"pub struct Report\";\n";
        assert_eq!(public_types(text), []);
    }
}
