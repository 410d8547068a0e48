// SPDX-License-Identifier: Apache-2.0
//! The manual page of the configuration file, from the text of `vipwatch config example`.

use clap_mangen::roff::{Roff, bold, roman};
use vipwatch_node::config::EXAMPLE;

const INTRODUCTION: &str = "The file vipwatch.toml has the settings of vipwatch-node(8) and vipwatch-receiver(8), in the \
format TOML. Without the file, and for every key that is left out, the defaults apply. `vipwatch config check` checks a file and prints \
every error with its position. `vipwatch reload` applies it, without an interruption, and returns the result. The values below are \
the defaults, unless the text says that they are examples.";

pub(super) fn page() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["NAME"]);
    page.text([roman("vipwatch.toml - configuration of vipwatch")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([roman("/etc/vipwatch/vipwatch.toml")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(INTRODUCTION)]);
    settings(&mut page);
    page.control("SH", ["FILES"]);
    page.control("TP", []);
    page.text([bold("/etc/vipwatch/vipwatch.toml")]);
    page.text([roman(
        "Root or the user of the service must own it, and no other user may write to it. With credentials in it, it must not be \
         readable by every user.",
    )]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "vipwatch-node(8), vipwatch-receiver(8), vipwatch-config-check(1), vipwatch-reload(1)",
    )]);
    page
}

/// A section for each table of the example, with its keys and the comments above them.
fn settings(page: &mut Roff) {
    let mut comment: Vec<&str> = Vec::new();
    // The first paragraph is about the file itself.
    let body = EXAMPLE.split_once("\n\n").map_or(EXAMPLE, |(_, body)| body);
    for line in body.lines() {
        if line.starts_with('[') {
            page.control("SH", [line]);
            if !comment.is_empty() {
                text(page, &comment);
            }
            comment.clear();
        } else if let Some(key) = key_of(line) {
            page.control("TP", []);
            page.text([bold(key)]);
            text(page, &comment);
            comment.clear();
        } else if let Some(words) = line.strip_prefix('#') {
            comment.push(words.trim());
        }
    }
}

fn text(page: &mut Roff, comment: &[&str]) {
    if comment.is_empty() {
        // A key without a comment: its table or the key above explains it.
        page.text([roman("See above.")]);
    } else {
        page.text([roman(comment.join(" "))]);
    }
}

/// The key with its value, if the line sets one; also if it is commented out.
fn key_of(line: &str) -> Option<&str> {
    let setting = line.strip_prefix("# ").unwrap_or(line);
    let (key, _) = setting.split_once(" = ")?;
    let is_key =
        key.chars().all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter));
    (is_key && !key.is_empty()).then_some(setting)
}
