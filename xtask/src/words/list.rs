// SPDX-License-Identifier: Apache-2.0
//! The excluded words, and the places where they are allowed. All words are in lower case.

/// Words and phrases for persons, and phrases that hide the subject. Excluded everywhere.
pub(super) const EXCLUDED: &[&str] = &[
    "whoever",
    "whomever",
    "whom",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "he",
    "him",
    "his",
    "she",
    "what was owed",
    "what is owed",
    "has to say",
    "have to say",
    "last word",
    "is told",
    "are told",
    "was told",
    "were told",
    "be told",
    "hears",
    "ears",
];

/// Excluded in comments only: in a document or a message they are usually about users.
pub(super) const COMMENTS_ONLY: &[&str] = &["who", "whose"];

/// Names of earlier versions that do not say what they mean. Excluded in comments and documents.
pub(super) const METAPHORS: &[&str] = &[
    "spine",
    "fleet",
    "roster",
    "scout",
    "looker",
    "asker",
    "surveyor",
    "desk",
    "clerk",
    "books",
    "docket",
    "crier",
    "tray",
    "ledger",
    "duty",
    "duties",
    "lane",
    "lanes",
    "house",
    "reception",
    "watchman",
    "scribe",
    "messenger",
    "poster",
    "farewell",
    "patience",
    "confess",
    "redress",
];

/// What a file may use.
pub(super) enum Allowance {
    All,
    Word(&'static str),
}

/// Places where a word is meant literally: the start of a path, and the words.
pub(super) const ALLOWED: &[(&str, Allowance)] = &[
    // They explain the excluded words.
    ("CONTRIBUTING.md", Allowance::All),
    ("docs/concepts/glossary.md", Allowance::All),
    ("xtask/src/words", Allowance::All),
    // The tables of renames quote the old words.
    ("CHANGELOG.md", Allowance::All),
    // The title of a section of RFC 826.
    ("crates/linux/src/announce/arp.rs", Allowance::Word("reception")),
    // The name of a user.
    ("crates/cli/tests/netns/hook_runner.rs", Allowance::Word("nobody")),
    // A word of a configuration file.
    ("xtask/src/fuzz/mutation.rs", Allowance::Word("last word")),
];
