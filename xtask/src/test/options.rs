// SPDX-License-Identifier: Apache-2.0
//! The command line of `cargo xtask test`.

use std::path::PathBuf;

use super::suite::Suite;
use crate::TaskError;

/// A parsed command line.
#[derive(Default, Debug)]
pub struct TestOptions {
    /// Empty for all suites.
    pub suites: Vec<Suite>,
    /// Empty for all tests.
    pub filter: String,
    pub is_full: bool,
    /// Number of runs.
    pub repeat: Option<u32>,
    /// Whether busy loops run beside the tests.
    pub has_load: bool,
    pub subject: Option<PathBuf>,
    pub table: Option<PathBuf>,
}

impl TestOptions {
    pub fn parse(args: &[&str]) -> Result<Self, TaskError> {
        let mut options = Self::default();
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| TaskError(format!("{arg} needs a value")));
            match arg {
                "--full" => options.is_full = true,
                "--load" => options.has_load = true,
                "--repeat" => options.repeat = Some(repeat_count(value()?)?),
                "--subject" => options.subject = Some(std::path::absolute(value()?)?),
                "--table" => options.table = Some(std::path::absolute(value()?)?),
                arg if arg.starts_with('-') => {
                    return Err(TaskError(format!(
                        "unknown option {arg}\n  hint: `cargo xtask test --help` lists the options"
                    )));
                }
                arg => options.add_word(arg)?,
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Adds a suite, or the filter, which is the only word that is not the name of a suite.
    fn add_word(&mut self, word: &str) -> Result<(), TaskError> {
        if let Some(suite) = Suite::named(word).filter(|suite| !self.suites.contains(suite)) {
            self.suites.push(suite);
        } else if self.filter.is_empty() {
            word.clone_into(&mut self.filter);
        } else {
            return Err(TaskError(format!(
                "two filters, {:?} and {word:?}\n  hint: the suites are {}",
                self.filter,
                Suite::ALL.map(Suite::name).join(", ")
            )));
        }
        Ok(())
    }

    /// The options of a step that runs a suite.
    pub fn of_suites(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        if !self.filter.is_empty() {
            add("--filter", self.filter.clone());
        }
        if let Some(subject) = &self.subject {
            add("--subject", subject.display().to_string());
        }
        if let Some(table) = &self.table {
            add("--table", table.display().to_string());
        }
        words.extend(self.is_full.then(|| "--full".to_owned()));
        words
    }

    fn check(&self) -> Result<(), TaskError> {
        if self.has_load && self.repeat.is_none() {
            return Err(TaskError("--load needs --repeat N".to_owned()));
        }
        if self.is_full && self.repeat.is_some() {
            return Err(TaskError("--full cannot be combined with --repeat".to_owned()));
        }
        if !self.filter.is_empty()
            && let Some(suite) = self.suites.iter().find(|suite| !suite.has_named_tests())
        {
            return Err(TaskError(format!(
                "the tests of {} have no names, so that {:?} cannot choose some of them",
                suite.name(),
                self.filter
            )));
        }
        let is_contract = self.suites == [Suite::Contract];
        if (self.subject.is_some() || self.table.is_some()) && !is_contract {
            return Err(TaskError(
                "--subject and --table are for the contract suite\n  hint: cargo xtask test contract --subject PATH"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

fn repeat_count(text: &str) -> Result<u32, TaskError> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| TaskError(format!("--repeat: expected a number from 1 on, found {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(args: &[&str]) -> String {
        TestOptions::parse(args).err().map(|TaskError(message)| message).unwrap_or_default()
    }

    #[test]
    fn words_are_suites_and_one_filter() {
        let options = TestOptions::parse(&["netns", "browser", "webhook"]).ok().unwrap();
        assert_eq!(options.suites, [Suite::Netns, Suite::Browser]);
        assert_eq!(options.filter, "webhook");
        let options = TestOptions::parse(&["netns", "netns"]).ok().unwrap();
        assert_eq!((&options.suites[..], &options.filter[..]), (&[Suite::Netns][..], "netns"));
        assert!(refusal(&["netns", "a", "b"]).contains("two filters"));
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        assert!(refusal(&["--load"]).contains("--repeat"));
        assert!(refusal(&["--repeat", "0"]).contains("from 1 on"));
        assert!(refusal(&["--repeat"]).contains("needs a value"));
        assert!(refusal(&["--full", "--repeat", "2"]).contains("cannot be combined"));
        assert!(refusal(&["netns", "--subject", "x"]).contains("contract"));
        assert!(refusal(&["netns", "faults", "webhook"]).contains("faults have no names"));
        assert!(refusal(&["--frobnicate"]).contains("unknown option"));
        assert!(refusal(&["netns", "--repeat", "5", "--load"]).is_empty());
    }
}
