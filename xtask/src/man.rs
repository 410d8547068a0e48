// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask man`: writes the manual pages.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::build::{self, DROPIN};
use crate::{TaskError, TaskResult, process, provision};

pub const HELP: &str = "\
Write the manual pages to target/man, and check them and those in packaging/man with mandoc.

Usage: cargo xtask man

The pages of `vipwatch` come from its arguments, vipwatch.toml(5) from the text of `vipwatch config example`, and the page of the
drop-in from its --help. `cargo xtask check` makes the same checks.
";

pub fn run(args: &[&str]) -> TaskResult {
    Arguments::new(args).finish()?;
    check()?;
    println!("{}", generated_pages().display());
    Ok(())
}

/// Writes the generated pages, and fails if mandoc finds something in them or in the written pages.
pub fn check() -> TaskResult {
    write(&generated_pages())?;
    lint(&[generated_pages(), build::root().join("packaging/man")])
}

fn generated_pages() -> PathBuf {
    build::target_directory().join("man")
}

/// Writes all pages to `directory`, which is emptied before.
pub fn write(directory: &Path) -> TaskResult {
    if directory.exists() {
        std::fs::remove_dir_all(directory)?;
    }
    std::fs::create_dir_all(directory)?;
    let mut test = build::cargo();
    // The package alone would have other features; see `build::debug_programs`.
    test.args(["test", "--quiet", "--workspace", "--bin", "vipwatch", "man::"]);
    process::run(test.env("VIPWATCH_MAN_DIR", directory).stdout(Stdio::null()))?;
    let program = build::debug_programs(&[DROPIN])?.join(DROPIN);
    let help = process::output(Command::new(program).arg("--help"))?;
    let page = help_page(DROPIN, &String::from_utf8_lossy(&help));
    build::write(&directory.join(format!("{DROPIN}.8")), page.as_bytes())?;
    for page in std::fs::read_dir(directory)? {
        let path = page?.path();
        build::write(&path, wrap(&std::fs::read_to_string(&path)?).as_bytes())?;
    }
    Ok(())
}

/// Breaks long lines of running text, as mandoc recommends. The reader's terminal decides where the text breaks.
fn wrap(page: &str) -> String {
    const COLUMNS: usize = 78;
    let mut wrapped = String::new();
    let mut is_filled = true;
    for line in page.lines() {
        match line {
            ".nf" => is_filled = false,
            ".fi" => is_filled = true,
            _ => {}
        }
        if !is_filled || line.starts_with('.') {
            wrapped.extend([line, "\n"]);
            continue;
        }
        let mut column = 0;
        for word in line.split(' ') {
            if column > 0 && column + 1 + word.len() > COLUMNS {
                wrapped.push('\n');
                column = 0;
                if word.starts_with(['.', '\'']) {
                    wrapped.push_str("\\&");
                }
            } else if column > 0 {
                wrapped.push(' ');
                column += 1;
            }
            wrapped.push_str(word);
            column += word.len();
        }
        wrapped.push('\n');
    }
    wrapped
}

/// Pages of other projects to which the pages refer, as `NAME.SECTION`.
const OTHER_PAGES: [&str; 1] = ["keepalived.8"];

/// Fails if mandoc finds something in a page of these directories.
fn lint(directories: &[PathBuf]) -> TaskResult {
    provision::programs(&[provision::MANDOC])?;
    let mut pages = Vec::new();
    for directory in directories {
        for page in std::fs::read_dir(directory)? {
            pages.push(page?.path());
        }
    }
    pages.sort();
    let output = Command::new("mandoc").arg("-Tlint").args(&pages).output()?;
    // mandoc(1): up to 4, the code is the level of the worst message; above it, mandoc has not read all pages.
    if output.status.code().is_none_or(|code| code > 4) {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(TaskError(format!("mandoc -Tlint failed:\n{}", reason.trim_end())));
    }
    let name = |page: &PathBuf| Some(page.file_name()?.to_string_lossy().into_owned());
    let names: Vec<String> = pages.iter().filter_map(name).collect();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<&str> = text.lines().filter(|line| !is_accepted(line, &names)).collect();
    if found.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!(
        "mandoc -Tlint:\n{}\n  hint: correct the text, crates/cli/src/man or xtask/src/man.rs; `cargo xtask man` repeats the check",
        found.join("\n")
    )))
}

/// Whether a message of mandoc is no mistake of a page. `names` are the file names of all pages.
///
/// - The generated pages have no date, so that the same commit gives the same bytes.
/// - mandoc looks for referenced pages on this machine. Those of this project and [`OTHER_PAGES`] need not be installed here.
fn is_accepted(message: &str, names: &[String]) -> bool {
    if message.ends_with(": WARNING: missing date, using \"\": TH") {
        return true;
    }
    let Some((_, reference)) = message.split_once(": STYLE: referenced manual not found: Xr ")
    else {
        return false;
    };
    let mut words = reference.split(' ');
    let (Some(name), Some(section)) = (words.next(), words.next()) else { return false };
    let page = format!("{name}.{section}");
    names.contains(&page) || OTHER_PAGES.contains(&page.as_str())
}

/// The page of a program from its `--help`: a usage, paragraphs, and lists of options under a title that ends with a colon.
fn help_page(name: &str, help: &str) -> String {
    let mut page = format!(
        ".TH {} 8 \"\" \"vipwatch {}\" \"vipwatch\"\n.SH NAME\n{name} \\- monitors the virtual address of one Neutron HA router\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let (usage, rest) = help.split_once("\n\n").unwrap_or((help, ""));
    page.push_str(".SH SYNOPSIS\n");
    let usage = usage.trim_start_matches("Usage:").replace("\\\n", " ");
    let usage = usage.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(page, ".B {}\n.SH DESCRIPTION", escape(&usage));
    for paragraph in rest.split("\n\n") {
        help_paragraph(&mut page, paragraph);
    }
    page.push_str(FILES);
    page
}

const FILES: &str = "\
.SH FILES
.TP
.I /etc/neutron/neutron.conf, /etc/neutron/neutron\\-keepalived\\-state\\-change.conf
Read if neither \\-\\-config\\-file nor \\-\\-config\\-dir is given; the command line takes precedence.
.TP
.I DIR/state
The state file, in the directory of \\-\\-conf_dir.
.TP
.I /var/lib/neutron/keepalived\\-state\\-change
The socket of Neutron's L3 agent.
.SH SEE ALSO
.BR vipwatch (1),
.BR vipwatch\\-node (8)
";

fn help_paragraph(page: &mut String, paragraph: &str) {
    let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
    if first.ends_with(':') && rest.starts_with("  -") {
        let _ = writeln!(page, ".SS {}", escape(first.trim_end_matches(':')));
        for line in rest.lines() {
            let line = line.trim();
            // Two spaces, or the end of the column, separate the option from its text.
            let column =
                line.find("  ").or_else(|| line.match_indices(' ').nth(1).map(|(at, _)| at));
            let (option, text) = line.split_at(column.unwrap_or(line.len()));
            let _ = writeln!(page, ".TP\n.B {}\n{}", escape(option), escape(text.trim()));
        }
        return;
    }
    if !page.ends_with(".SH DESCRIPTION\n") && !paragraph.starts_with("Signals") {
        page.push_str(".PP\n");
    }
    for line in paragraph.lines() {
        match line.split_once(": ") {
            Some(("Signals", text)) => {
                let _ = writeln!(page, ".SH SIGNALS\n{}", escape(text));
            }
            Some(("Exit codes", text)) => {
                let _ = writeln!(page, ".SH EXIT STATUS\n{}", escape(text));
            }
            _ => {
                let _ = writeln!(page, "{}", escape(line));
            }
        }
    }
}

/// Escapes the characters that roff interprets.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_paragraphs_of_a_help_text_become_sections() {
        let help = "Usage: p --a X \\\n   [OPTION...]\n\nDoes it.\n\nOptions:\n  --a X    use X\n  -h, --help  print\n\nSignals: x\nExit codes: 0 ok";
        let page = help_page("p", help);
        assert!(page.contains(".B p \\-\\-a X [OPTION...]\n"), "{page}");
        assert!(page.contains(".SS Options\n.TP\n.B \\-\\-a X\nuse X\n"), "{page}");
        assert!(page.contains(".SH EXIT STATUS\n0 ok\n"), "{page}");
    }

    #[test]
    fn only_missing_dates_and_known_pages_are_no_mistakes() {
        let names = ["vipwatch.1".to_owned()];
        let accepted = |message: &str| is_accepted(&format!("mandoc: x.8:1:6: {message}"), &names);
        let reference = "STYLE: referenced manual not found: Xr";
        assert!(accepted("WARNING: missing date, using \"\": TH"));
        assert!(accepted(&format!("{reference} vipwatch 1")));
        assert!(accepted(&format!("{reference} keepalived 8 (2 times)")));
        assert!(!accepted(&format!("{reference} vipwatch 8")), "another section");
        assert!(!accepted(&format!("{reference} no-such-page 1")));
        assert!(!accepted("WARNING: skipping paragraph macro: Pp at the end of Sh"));
    }
}
