// SPDX-License-Identifier: Apache-2.0
//! The documents agree with the repository: links lead to files and headings that exist, and the reference has every key of
//! the configuration and the format of the history.

use std::collections::{BTreeMap, BTreeSet};

use crate::build;
use crate::source::{SourceFile, text_of};

const EXAMPLE: &str = "crates/node/src/config/example.toml";
const NODE: &str = "docs/reference/node.md";
const SCHEMA: &str = "crates/history/src/schema.rs";
/// The pages that describe keys of the configuration.
const KEYS: &[&str] = &[NODE, "docs/reference/receiver.md", "docs/reference/announcements.md"];

/// One message for each link without a target, and for each fact that the reference lacks.
pub(super) fn check(files: &[SourceFile], broken: &mut Vec<String>) {
    links_lead_somewhere(files, broken);
    let text = |path: &str| text_of(files, path);
    let reference: Vec<&str> = KEYS.iter().map(|path| text(path)).collect();
    let keys = configuration_keys(text(EXAMPLE));
    if keys.len() < 60 {
        broken.push(format!(
            "{EXAMPLE}: tidy finds only {} keys; adapt `tidy/documents.rs`",
            keys.len()
        ));
    }
    for (table, key) in keys {
        let names = [format!("`{table}.{key}`"), format!("`{key}`"), format!("`{key} =")];
        if !reference.iter().any(|page| names.iter().any(|name| page.contains(name))) {
            broken.push(format!("{NODE}: the key {key} of [{table}] is missing"));
        }
    }
    let version = text(SCHEMA).split_once("const VERSION: i64 = ").map_or("", |(_, rest)| rest);
    let version = version.split(';').next().unwrap_or_default();
    if version.is_empty() || !text(NODE).contains(&format!("(format {version}, ")) {
        broken.push(format!("{NODE}: the format of the history is {version} ({SCHEMA})"));
    }
}

/// Tables and keys of the commented example, with those that are commented out: `# key = …`.
fn configuration_keys(example: &str) -> BTreeSet<(String, String)> {
    let mut keys = BTreeSet::new();
    let mut table = String::new();
    for line in example.lines() {
        let code = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = line.strip_prefix('[') {
            let name = name.trim_start_matches('[').split(']').next().unwrap_or_default();
            name.clone_into(&mut table);
        } else if let Some((key, _)) = code.split_once(" = ") {
            // A sentence of a comment with ` = ` in it has other characters before it.
            if key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                keys.insert((table.clone(), key.to_owned()));
            }
        }
    }
    keys
}

fn links_lead_somewhere(files: &[SourceFile], broken: &mut Vec<String>) {
    let documents = || files.iter().filter(|file| file.is_document());
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents().map(|file| (&*file.path, anchors(&file.text))).collect();
    for file in documents() {
        for (line, target) in links(&file.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path) };
            let has_anchor = || anchors.get(&*path).is_some_and(|known| known.contains(anchor));
            let missing = match anchor {
                _ if !build::root().join(&path).exists() => "file",
                anchor if !anchor.is_empty() && !has_anchor() => "heading",
                _ => continue,
            };
            broken.push(format!("{}:{line}: the link {target} leads to no {missing}", file.path));
        }
    }
}

/// The path of a link in a document, relative to the root of the repository.
fn resolve(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The lines outside of fenced blocks, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number, line))
    })
}

/// The targets of the links, each with its line. The text of a link may be code: `](` closes it in any case.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let parts = line.split("](").skip(1);
        parts.filter_map(move |part| Some((number, part.split_once(')')?.0)))
    })
}

/// The names that a link to a part of the document can use: its headings in the form of GitHub, and `<a id="…">`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        if line.starts_with('#') {
            let slug = slug(line.trim_start_matches('#').trim());
            let mut name = slug.clone();
            let mut count = 0;
            while !anchors.insert(name) {
                count += 1;
                name = format!("{slug}-{count}");
            }
        }
        let ids = line.split("<a id=\"").skip(1).filter_map(|part| part.split('"').next());
        anchors.extend(ids.map(str::to_owned));
    }
    anchors
}

/// A heading as the name of an anchor: lower case, without punctuation, with `-` for spaces.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_link_needs_a_file_and_a_heading() {
        let files = [
            document(
                "docs/guides/install.md",
                "# Install it\n[a](../../README.md#use-it) [b](#install-it)\n",
            ),
            document(
                "README.md",
                "## Use it\n[c](docs/guides/install.md#no)\n```\n[d](gone.md)\n```\n[e](gone.md)\n",
            ),
        ];
        let mut broken = Vec::new();
        links_lead_somewhere(&files, &mut broken);
        assert_eq!(
            broken,
            [
                "README.md:2: the link docs/guides/install.md#no leads to no heading",
                "README.md:6: the link gone.md leads to no file",
            ]
        );
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text =
            "# The `node`: its key\n## Use it\n## Use it\n<a id=\"x\"></a>\n```\n# comment\n```\n";
        let expected = ["the-node-its-key", "use-it", "use-it-1", "x"].map(str::to_owned);
        assert_eq!(anchors(text), BTreeSet::from(expected));
    }

    #[test]
    fn keys_of_the_example_are_found_also_if_they_are_commented_out() {
        let example = "[node]\n# A sentence with a = b.\nlog = \"auto\"\n# group = \"x\"\n[[notify.hook]]\non = []\n";
        let keys = configuration_keys(example);
        let expected = [("node", "group"), ("node", "log"), ("notify.hook", "on")];
        assert_eq!(keys, expected.map(|(table, key)| (table.to_owned(), key.to_owned())).into());
    }
}
