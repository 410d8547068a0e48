// SPDX-License-Identifier: Apache-2.0
//! The options of the demo.

use std::time::Duration;

use crate::TaskError;

/// Time of the failures with `--keep`, and without a terminal.
const DEFAULT_SECONDS: u64 = 25;

/// The options of the demo.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DemoOptions {
    /// `None` if the option is not given.
    seconds: Option<u64>,
    pub keep: bool,
    /// The demo of the cluster.
    pub is_cluster: bool,
}

impl DemoOptions {
    pub fn parse(args: &[&str]) -> Result<Self, TaskError> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--keep" => options.keep = true,
                "cluster" => options.is_cluster = true,
                "--seconds" => {
                    let value = args.next().and_then(|value| value.parse().ok());
                    let value =
                        value.ok_or_else(|| TaskError("--seconds needs a number".to_owned()))?;
                    options.seconds = Some(value);
                }
                other => {
                    return Err(TaskError(format!(
                        "unknown argument {other:?}\n  hint: `cargo xtask demo --help` lists the options"
                    )));
                }
            }
        }
        Ok(options)
    }

    /// How long failures are caused; `None` for no limit.
    pub fn limit(&self, is_terminal: bool) -> Option<Duration> {
        // The demo of the cluster ends after one round.
        let has_limit = (self.keep || !is_terminal) && !self.is_cluster;
        let default = has_limit.then_some(DEFAULT_SECONDS);
        // Without a terminal, Ctrl-C cannot end the demo.
        self.seconds.or(default).map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_end_after_25_seconds_if_the_nodes_are_kept_or_no_terminal_can_end_them() {
        let limit = |args: &[&str], is_terminal| {
            DemoOptions::parse(args).ok().unwrap().limit(is_terminal).map(|limit| limit.as_secs())
        };
        assert_eq!(limit(&[], true), None);
        assert_eq!(limit(&[], false), Some(25));
        assert_eq!(limit(&["--keep"], true), Some(25));
        assert_eq!(limit(&["--keep", "--seconds", "7"], true), Some(7));
        assert!(DemoOptions::parse(&["--seconds"]).is_err() && DemoOptions::parse(&["x"]).is_err());
    }
}
