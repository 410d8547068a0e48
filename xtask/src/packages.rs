// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test packages`: makes the packages, and runs the tests of the crate `xtask/packages` as root.

use crate::{TaskError, TaskResult, build, dist, provision, sandbox};

/// The version of the packages from which the tests upgrade.
const PREVIOUS_VERSION: &str = "0.0.1";

/// Makes the packages and runs the tests. `args` is a filter, `--full`, or both.
pub fn run(args: &[&str]) -> TaskResult {
    let is_full = args.contains(&"--full");
    let mut filters = args.iter().copied().filter(|arg| *arg != "--full");
    let filter = filters.next().unwrap_or_default();
    if filter.starts_with('-') || filters.next().is_some() {
        return Err(TaskError(format!(
            "unknown arguments {args:?}\n  hint: cargo xtask test packages [FILTER] [--full]"
        )));
    }
    sandbox::check_root()?;
    provision::disk_space()?;
    provision::programs(&[provision::BASIC, provision::ROOTS, provision::RPM])?;
    if is_full {
        provision::programs(&[provision::RPMLINT, provision::QEMU])?;
    }
    let target = std::path::absolute(build::target_directory())?;
    let (packages, previous) = (target.join("packages"), target.join("packages-previous"));
    dist::quick(&previous, Some(PREVIOUS_VERSION))?;
    let mut names = vec!["packages"];
    if is_full {
        names.push("packages-full");
        // A run of some tests is for the work on them: a second build would take most of its time.
        dist::full(&packages, filter.is_empty())?;
    } else {
        dist::quick(&packages, None)?;
    }
    let mut line = vec![filter.to_owned()];
    for program in build::package_tests(&names)? {
        let name = format!("{}/{}", program.package, program.target);
        line.extend(["packages".to_owned(), name, program.path.display().to_string()]);
    }
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let environment = [
        ("VIPWATCH_PACKAGES", packages.display().to_string()),
        ("VIPWATCH_PREVIOUS", previous.display().to_string()),
        ("VIPWATCH_ROOTS", target.join("roots").display().to_string()),
        ("VIPWATCH_NEUTRON_29", provision::neutron("29.0.0")?.display().to_string()),
    ];
    sandbox::enter_as_root(&line, &environment)
}
