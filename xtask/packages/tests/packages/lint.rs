// SPDX-License-Identifier: Apache-2.0
//! lintian on the packages.

use std::process::Command;

use vipwatch_packages::directory;

/// Findings that are true only for the packages of the tests: their `vipwatch` is not static.
const DEBUG_BUILD: &str = "missing-dependency-on-libc";

/// The explanation of a finding about static programs, which a program that is not static does not have.
const UNUSED_EXPLANATION: &str = "mismatched-override shared-library-lacks-prerequisites";

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
    let is_finding = |line: &&str| !line.starts_with("N: ") && !line.contains(UNUSED_EXPLANATION);
    assert!(
        output.status.success() && text.lines().filter(is_finding).count() == 0,
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
