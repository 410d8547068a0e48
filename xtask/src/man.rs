// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask man`: writes the manual pages.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{TaskError, TaskResult, build, provision};

pub const HELP: &str = "\
Write the manual pages to target/man, and check them with mandoc.

Usage: cargo xtask man

The pages of `vipwatch` come from its arguments, vipwatch.toml(5) from the text of `vipwatch config example`, and the page of the
drop-in from its --help.
";

/// The name of the drop-in.
const DROPIN: &str = "neutron-keepalived-state-change";

pub fn run(args: &[&str]) -> TaskResult {
    if !args.is_empty() {
        return Err(TaskError(format!("unknown arguments {args:?}")));
    }
    let directory = build::target_directory().join("man");
    write(&directory)?;
    lint(&directory)?;
    println!("{}", directory.display());
    Ok(())
}

/// Writes all pages to `directory`, which is emptied before.
pub fn write(directory: &Path) -> TaskResult {
    if directory.exists() {
        std::fs::remove_dir_all(directory)?;
    }
    std::fs::create_dir_all(directory)?;
    let status = build::cargo()
        .args(["test", "--quiet", "--package", "vipwatch-cli", "--bin", "vipwatch", "man::"])
        .env("VIPWATCH_MAN_DIR", directory)
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(TaskError("cannot write the manual pages of vipwatch".to_owned()));
    }
    let dropin = build::cargo()
        .args(["run", "--quiet", "--package", "vipwatch-dropin", "--", "--help"])
        .stderr(Stdio::inherit())
        .output()?;
    if !dropin.status.success() {
        return Err(TaskError(format!("{DROPIN} --help failed")));
    }
    let page = help_page(DROPIN, &String::from_utf8_lossy(&dropin.stdout));
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

/// Fails if mandoc finds something in a page. Messages about the date are left out: the pages have none, so that the same
/// commit gives the same bytes.
pub fn lint(directory: &Path) -> TaskResult {
    provision::programs(&[provision::MANDOC])?;
    let mut pages: Vec<_> = std::fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    pages.sort_by_key(std::fs::DirEntry::path);
    let output = Command::new("mandoc")
        .arg("-Tlint")
        .args(pages.iter().map(std::fs::DirEntry::path))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_relevant = |line: &&str| !line.contains("missing date");
    let found: Vec<&str> = text.lines().filter(is_relevant).collect();
    if found.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!("mandoc -Tlint:\n{}", found.join("\n"))))
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
}
