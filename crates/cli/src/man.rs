//! Writes the manual pages to the directory of the first argument. `cargo xtask man` builds and runs it.
//!
//! One page for each command, from the same definition as `--help`: the services are in section 8,
//! the others in section 1. `vipwatch.toml` (5) comes from the text of `vipwatch config example`.

mod command_page;
mod config_page;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::roff::Roff;

use crate::args::CliArgs;
use crate::failure::warn;

/// The first line of a page. The date is empty, so that the same commit gives the same pages.
fn heading(name: &str, section: u8) -> String {
    let (name, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!(".TH \"{name}\" \"{section}\" \"\" \"vipwatch {version}\" \"vipwatch\"\n")
}

pub(crate) fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        warn("the argument is the directory for the manual pages");
        return ExitCode::FAILURE;
    };
    match write_all(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&format!("cannot write the manual pages to {}: {error}", directory.display()));
            ExitCode::FAILURE
        }
    }
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
