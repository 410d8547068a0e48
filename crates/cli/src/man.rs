// SPDX-License-Identifier: Apache-2.0
//! Writes the manual pages. It is a part of the tests, so that nothing of it is in the program; `cargo xtask man` runs it.
//!
//! One page for each command, from the same definition as `--help`: the services are in section 8,
//! the others in section 1. `vipwatch.toml` (5) comes from the text of `vipwatch config example`.

mod command_page;
mod config_page;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::roff::Roff;

use crate::args::CliArgs;

/// The first line of a page. The date is empty, so that the same commit gives the same pages.
fn heading(name: &str, section: u8) -> String {
    let (name, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!(".TH \"{name}\" \"{section}\" \"\" \"vipwatch {version}\" \"vipwatch\"\n")
}

fn write_all(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut root = CliArgs::command();
    root.build();
    write_commands(directory, &root)?;
    write(directory, "vipwatch.toml", 5, &config_page::page())
}

/// Writes the page of a command, and those of its subcommands.
fn write_commands(directory: &Path, command: &clap::Command) -> io::Result<()> {
    let name = command_page::page_name(command);
    let section = command_page::section(&name);
    write(directory, &name, section, &command_page::page(command))?;
    for subcommand in command.get_subcommands() {
        if subcommand.get_name() != "help" && !subcommand.is_hide_set() {
            write_commands(directory, subcommand)?;
        }
    }
    Ok(())
}

fn write(directory: &Path, name: &str, section: u8, page: &Roff) -> io::Result<()> {
    let text = heading(name, section) + &page.to_roff();
    let mut file = File::create(directory.join(format!("{name}.{section}")))?;
    file.write_all(text.as_bytes())
}

/// Writes the pages to the directory in `VIPWATCH_MAN_DIR`, or to a temporary one.
#[test]
fn every_command_has_a_manual_page() {
    let temporary = tempfile::tempdir().unwrap();
    let wanted = std::env::var_os("VIPWATCH_MAN_DIR");
    let directory = wanted.as_ref().map_or(temporary.path(), Path::new);
    write_all(directory).unwrap();
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert!(page("vipwatch.1").contains("vipwatch\\-status"));
    assert!(page("vipwatch-config-check.1").contains(".SH EXAMPLES"));
    assert!(page("vipwatch-node.8").contains("SIGUSR1"));
    assert!(page("vipwatch.toml.5").contains("audit_every"));
}
