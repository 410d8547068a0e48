// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask sample`: prints random lines of code, or random comments, log lines and errors. A reader without
//! the repository is asked what they mean or where they belong.

mod lines;
mod texts;

use crate::TaskResult;
use crate::arguments::Arguments;
use crate::source::{SourceFile, tracked_files};
use vipwatch_testkit::Random;

pub const HELP: &str = "\
Print random lines of code, or random comments, log lines and errors, to test how readable they are.

Usage: cargo xtask sample lines [--seed N] [--count N] [--key]
       cargo xtask sample texts [--seed N] [--count N] [--key]

  lines  Lines of product code (crates/*/src without testkit and tests) with at least 40 characters; no comments,
         no `use` lines, no lines that occur more than once. The reader names the module of each.
  texts  Half of them comments, a quarter log lines, a quarter errors, of the whole workspace. The reader says
         what each means.

  --seed N   The same seed prints the same sample of the same tree (default 1)
  --count N  The size of the sample (default 20 lines, 30 texts)
  --key      Print the file and line of each entry too

Example:
  cargo xtask sample lines --seed 7 > lines.txt
  cargo xtask sample lines --seed 7 --key > answers.txt
";

/// A line or a text, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SampleEntry {
    path: String,
    line: usize,
    /// May have several lines.
    text: String,
}

impl SampleEntry {
    fn new(file: &SourceFile, line: usize, text: String) -> Self {
        Self { path: file.path.clone(), line, text }
    }
}

pub fn run(args: &[&str]) -> TaskResult {
    let mut args = Arguments::new(args);
    let seed = args.number("--seed")?.unwrap_or(1);
    let count = args.number("--count")?;
    let has_key = args.flag("--key");
    let kind = args.word("sample", &["lines", "texts"])?;
    let kind = kind.ok_or("no sample given; choose `lines` or `texts`")?;
    args.finish()?;
    let files = tracked_files()?;
    let mut random = Random::new(seed);
    let chosen = if kind == "texts" {
        texts::sample(&files, count.unwrap_or(30), &mut random)
    } else {
        choose(lines::candidates(&files), count.unwrap_or(20), &mut random)
    };
    for (entry, number) in chosen.iter().zip(1..) {
        if has_key {
            println!("{number}. {}:{}", entry.path, entry.line);
        } else {
            println!("{number}.");
        }
        for line in entry.text.lines() {
            println!("    {line}");
        }
        println!();
    }
    Ok(())
}

/// `count` entries in random order, each at most once; all of them if there are fewer.
fn choose(mut candidates: Vec<SampleEntry>, count: usize, random: &mut Random) -> Vec<SampleEntry> {
    let mut chosen = Vec::new();
    while chosen.len() < count && !candidates.is_empty() {
        let at = random.below(candidates.len());
        chosen.push(candidates.swap_remove(at));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<SampleEntry> {
        let entry =
            |line: usize| SampleEntry { path: "a.rs".to_owned(), line, text: line.to_string() };
        (1..100).map(entry).collect()
    }

    #[test]
    fn the_same_seed_chooses_the_same_entries() {
        let first = choose(entries(), 20, &mut Random::new(7));
        assert_eq!(first, choose(entries(), 20, &mut Random::new(7)));
        assert_ne!(first, choose(entries(), 20, &mut Random::new(8)));
    }

    #[test]
    fn no_entry_is_chosen_twice() {
        let mut lines: Vec<usize> =
            choose(entries(), 200, &mut Random::new(1)).iter().map(|entry| entry.line).collect();
        lines.sort_unstable();
        assert_eq!(lines, (1..100).collect::<Vec<_>>());
    }
}
