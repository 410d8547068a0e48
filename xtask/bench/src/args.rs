// SPDX-License-Identifier: Apache-2.0
//! The command line, as `cargo xtask bench` writes it.

use std::path::PathBuf;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    Announce,
    Cluster,
    Dropin,
    Node,
    Receiver,
    Web,
    Witness,
}

/// A parsed command line.
#[derive(Debug)]
pub struct BenchArgs {
    pub bench: Bench,
    /// The program of ours that is measured.
    pub subject: PathBuf,
    /// Fewer repetitions; the results are not meant to be quoted.
    pub is_quick: bool,
    /// The file that gets the results as JSON; `None` for the table only.
    pub json: Option<PathBuf>,
    neutron_29: Option<PathBuf>,
    neutron_28: Option<PathBuf>,
    limit: Option<PathBuf>,
}

impl BenchArgs {
    /// The Python environment with Neutron 29.0.0.
    pub fn neutron_29(&self) -> Result<PathBuf, String> {
        self.neutron_29.clone().ok_or_else(|| missing("--neutron-29"))
    }

    /// The Python environment with Neutron 28.0.2.
    pub fn neutron_28(&self) -> Result<PathBuf, String> {
        self.neutron_28.clone().ok_or_else(|| missing("--neutron-28"))
    }

    /// The compiled `limit.c`.
    pub fn limit(&self) -> Result<PathBuf, String> {
        self.limit.clone().ok_or_else(|| missing("--limit"))
    }
}

fn missing(option: &str) -> String {
    format!("option {option} is missing\n  hint: start this program with `cargo xtask bench`")
}

/// `NAME --subject PATH [--neutron-29 DIR] [--neutron-28 DIR] [--limit PATH] [--quick] [--json FILE]`
pub fn parse(words: &[String]) -> Result<BenchArgs, String> {
    let mut bench = None;
    let mut subject = None;
    let mut is_quick = false;
    let [mut json, mut neutron_29, mut neutron_28, mut limit] = [const { None }; 4];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            let value = words.next().ok_or_else(|| format!("option {word} needs a value"))?;
            Ok::<_, String>(Some(PathBuf::from(value)))
        };
        match word.as_str() {
            "--subject" => subject = value()?,
            "--neutron-29" => neutron_29 = value()?,
            "--neutron-28" => neutron_28 = value()?,
            "--limit" => limit = value()?,
            "--json" => json = value()?,
            "--quick" => is_quick = true,
            "announce" => bench = Some(Bench::Announce),
            "cluster" => bench = Some(Bench::Cluster),
            "dropin" => bench = Some(Bench::Dropin),
            "node" => bench = Some(Bench::Node),
            "receiver" => bench = Some(Bench::Receiver),
            "web" => bench = Some(Bench::Web),
            "witness" => bench = Some(Bench::Witness),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(BenchArgs {
        bench: bench.ok_or_else(|| missing("NAME"))?,
        subject: subject.ok_or_else(|| missing("--subject"))?,
        is_quick,
        json,
        neutron_29,
        neutron_28,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<BenchArgs, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_full_command_line_is_parsed() {
        let line =
            "dropin --subject /s --neutron-29 /a --neutron-28 /b --limit /l --quick --json /j";
        let args = parse_line(line).unwrap();
        assert_eq!(args.bench, Bench::Dropin);
        assert!(args.is_quick);
        assert_eq!(args.json, Some(PathBuf::from("/j")));
        let paths = [args.neutron_29(), args.neutron_28(), args.limit()].map(Result::unwrap);
        assert_eq!(paths, ["/a", "/b", "/l"].map(PathBuf::from));
    }

    #[test]
    fn a_missing_path_is_an_error_that_names_the_option() {
        let args = parse_line("node --subject /s").unwrap();
        assert!(args.neutron_29().unwrap_err().contains("--neutron-29"));
        assert!(parse_line("node").unwrap_err().contains("--subject"));
        assert!(parse_line("node --subject").unwrap_err().contains("needs a value"));
    }
}
