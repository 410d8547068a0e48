// SPDX-License-Identifier: Apache-2.0
//! The arguments of a command. Each option is taken out by its name; remaining words are unknown.

use std::path::PathBuf;
use std::str::FromStr;

use crate::{TaskError, TaskResult};

pub struct Arguments<'a>(Vec<&'a str>);

impl<'a> Arguments<'a> {
    pub fn new(args: &[&'a str]) -> Self {
        Self(args.to_vec())
    }

    /// Takes an option without a value; returns whether it was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let count = self.0.len();
        self.0.retain(|arg| *arg != name);
        self.0.len() < count
    }

    /// Takes an option and its value.
    pub fn value(&mut self, name: &str) -> Result<Option<&'a str>, TaskError> {
        let Some(at) = self.0.iter().position(|arg| *arg == name) else { return Ok(None) };
        self.0.remove(at);
        if at == self.0.len() {
            return Err(TaskError(format!("{name} needs a value")));
        }
        Ok(Some(self.0.remove(at)))
    }

    /// Takes an option and the number after it.
    pub fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, TaskError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let number = value.parse().ok();
        let refused = || TaskError(format!("{name}: expected a number, found {value:?}"));
        number.ok_or_else(refused).map(Some)
    }

    /// Takes an option and the path after it, which becomes absolute.
    pub fn path(&mut self, name: &str) -> Result<Option<PathBuf>, TaskError> {
        Ok(self.value(name)?.map(std::path::absolute).transpose()?)
    }

    /// Takes one of these words; `None` without a word. `what` names it in the error.
    pub fn word(&mut self, what: &str, known: &[&'a str]) -> Result<Option<&'a str>, TaskError> {
        let Some(at) = self.0.iter().position(|arg| !arg.starts_with('-')) else { return Ok(None) };
        let word = self.0.remove(at);
        if known.contains(&word) {
            return Ok(Some(word));
        }
        Err(TaskError(format!("unknown {what} {word:?}; choose one of {}", known.join(", "))))
    }

    /// Fails if an argument is left.
    pub fn finish(self) -> TaskResult {
        let Some(unknown) = self.0.first() else { return Ok(()) };
        Err(TaskError(format!("unknown argument {unknown:?}\n  hint: --help lists the options")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_stand_before_and_after_a_word() {
        let mut args = Arguments::new(&["--quick", "node", "--count", "7", "--json", "/tmp/a"]);
        assert_eq!(args.path("--json").ok().flatten(), Some(PathBuf::from("/tmp/a")));
        assert_eq!(args.number::<u32>("--count").ok().flatten(), Some(7));
        assert_eq!(args.word("bench", &["node", "web"]).ok().flatten(), Some("node"));
        assert!(args.flag("--quick") && !args.flag("--verify"));
        assert!(args.finish().is_ok());
    }

    #[test]
    fn an_unknown_word_and_a_missing_or_wrong_value_are_refused() {
        assert!(Arguments::new(&["disk"]).word("bench", &["node"]).is_err());
        assert!(Arguments::new(&["--json"]).value("--json").is_err());
        assert!(Arguments::new(&["--count", "x"]).number::<u32>("--count").is_err());
        assert!(Arguments::new(&["--other"]).finish().is_err());
    }
}
