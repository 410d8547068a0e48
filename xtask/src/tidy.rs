//! House rules that no compiler knows. Each one holds an invariant of ARCHITECTURE.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Stop, Task, build};

/// Crates the drop-in must not link: runtimes, TLS, HTTP servers, and what costs memory.
const BANNED_IN_DROPIN: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "mio",
    "hyper",
    "rustls",
    "openssl",
    "native-tls",
    "clap",
    "tracing",
    "serde",
];

/// Checks every rule, and reports everything that breaks one.
pub fn run() -> Task {
    let mut broken = Vec::new();
    let files = tracked_files()?;
    let text = |path: &Path| std::fs::read_to_string(build::root().join(path)).unwrap_or_default();
    for path in &files {
        let name = path.to_string_lossy().into_owned();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let contents = text(path);
        for (number, line) in contents.lines().enumerate() {
            let mut complain = |rule: &str| broken.push(format!("{name}:{}: {rule}", number + 1));
            // Written so that this file does not break its own rules.
            if is_rust
                && ["TO", "FIX"]
                    .iter()
                    .zip(["DO", "ME"])
                    .any(|(a, b)| line.contains(&format!("{a}{b}")))
            {
                complain("an unfinished mark: do it, or file an issue");
            }
            if is_rust && line.contains(concat!("#[", "ignore")) {
                complain("an ignored test is a test that does not exist");
            }
            if ["/ho", "/ro", "/wo"]
                .iter()
                .zip(["me/", "ot/", "rk/"])
                .any(|(a, b)| line.contains(&format!("{a}{b}")))
                && name != "Cargo.lock"
                && !line.contains("http")
            {
                complain("an absolute path of one machine");
            }
            let is_library = name.starts_with("crates/")
                && name.contains("/src/")
                && !name.starts_with("crates/testkit/");
            if is_rust
                && is_library
                && line.contains("renameat(")
                && name != "crates/engine/src/outlet/state_file.rs"
            {
                complain("only the state file's outlet renames it");
            }
            if is_rust
                && is_library
                && line.contains("move_into_link_name_space(")
                && name != "crates/linux/src/netns.rs"
            {
                complain("only netns.rs enters a namespace");
            }
        }
        if name.ends_with("src/main.rs")
            && name.starts_with("crates/")
            && contents.lines().count() > 120
        {
            broken.push(format!("{name}: main is a table of contents, 120 lines at most"));
        }
        if is_rust
            && name.starts_with("crates/")
            && name.contains("/src/")
            && !contents.starts_with("//!")
        {
            broken.push(format!("{name}: every room says at its door what it is for"));
        }
    }
    dropin_links_little(&mut broken)?;
    testkit_is_for_tests(&mut broken);
    options_are_documented(&mut broken, &text(Path::new("docs/reference/options.md")));
    security_names_real_tests(&mut broken, &files);
    if broken.is_empty() {
        return Ok(());
    }
    Err(Stop(format!("house rules are broken:\n  {}", broken.join("\n  "))))
}

fn tracked_files() -> Result<Vec<PathBuf>, Stop> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(build::root())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(PathBuf::from).filter(|path| build::root().join(path).is_file()).collect())
}

fn dropin_links_little(broken: &mut Vec<String>) -> Task {
    let output = build::cargo()
        .args([
            "tree",
            "--package",
            "vipwatch-dropin",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .output()?;
    if !output.status.success() {
        return Err(Stop("cargo tree failed".to_owned()));
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    for name in tree.lines().filter_map(|line| line.split(' ').next()) {
        if BANNED_IN_DROPIN.contains(&name) {
            broken.push(format!("the drop-in links {name}"));
        }
    }
    Ok(())
}

fn testkit_is_for_tests(broken: &mut Vec<String>) {
    for room in ["core", "linux", "engine", "dropin"] {
        let manifest = format!("crates/{room}/Cargo.toml");
        let text = std::fs::read_to_string(build::root().join(&manifest)).unwrap_or_default();
        let normal = text.split("[dev-dependencies]").next().unwrap_or_default();
        if normal.contains("vipwatch-testkit") {
            broken.push(format!("{manifest}: testkit is a dev-dependency"));
        }
    }
}

/// Every option that `--help` lists stands in the reference.
fn options_are_documented(broken: &mut Vec<String>, reference: &str) {
    let table = std::fs::read_to_string(build::root().join("crates/dropin/src/options.rs"))
        .unwrap_or_default();
    // One line per option, however it was wrapped; those without a help text are not listed.
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    let entries = table
        .split("opt( ")
        .flat_map(|part| part.split("opt("))
        .flat_map(|part| part.split("switch("));
    let names = entries
        .map(|entry| entry.trim_start().trim_start_matches('"'))
        .filter(|entry| !entry.split(')').next().unwrap_or_default().ends_with("\"\""))
        .filter(|entry| entry.contains("Meaning::"))
        .filter_map(|entry| entry.split('"').next())
        .filter(|name| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
                && !name.is_empty()
        });
    for name in names {
        if !reference.contains(&format!("--{name}")) {
            broken.push(format!("docs/reference/options.md does not mention --{name}"));
        }
    }
}

/// SECURITY.md names tests; a test that was renamed or removed must not be claimed.
fn security_names_real_tests(broken: &mut Vec<String>, files: &[PathBuf]) {
    let security = std::fs::read_to_string(build::root().join("SECURITY.md")).unwrap_or_default();
    let code: String = files
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| std::fs::read_to_string(build::root().join(path)).unwrap_or_default())
        .collect();
    let words = security.split('`').skip(1).step_by(2);
    for name in words.filter(|word| {
        word.matches('_').count() >= 3
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }) {
        if !code.contains(&format!("fn {name}(")) {
            broken.push(format!("SECURITY.md names a test that does not exist: {name}"));
        }
    }
}
