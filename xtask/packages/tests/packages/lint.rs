// SPDX-License-Identifier: Apache-2.0
//! lintian on the packages.

use std::process::Command;

use vipwatch_packages::directory;

/// Findings that are true only for the packages of the tests: their `vipwatch` is not static.
const DEBUG_BUILD: &str = "missing-dependency-on-libc";

#[test]
fn lintian_has_nothing_to_say_about_the_packages() {
    let packages = directory("VIPWATCH_PACKAGES");
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "none", "--suppress-tags", DEBUG_BUILD]);
    for entry in std::fs::read_dir(packages).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            command.arg(path);
        }
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.is_empty(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
