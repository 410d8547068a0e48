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

/// Calls that belong to one file of the product each.
const ONE_PLACE: &[(&str, &str, &str)] = &[
    (
        "RenameFlags::EXCHANGE",
        "crates/outlets/src/state_file.rs",
        "one place replaces the state file",
    ),
    ("move_into_link_name_space(", "crates/linux/src/netns.rs", "one place enters a namespace"),
    ("libc::fork(", "crates/linux/src/process.rs", "one place forks"),
];

/// A tracked file.
struct File {
    name: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        Path::new(&self.name).extension().is_some_and(|extension| extension == "rs")
    }

    fn is_document(&self) -> bool {
        Path::new(&self.name).extension().is_some_and(|extension| extension == "md")
    }

    /// Part of what is shipped, not of what tests it.
    fn is_product(&self) -> bool {
        self.is_rust()
            && self.name.starts_with("crates/")
            && self.name.contains("/src/")
            && !self.name.starts_with("crates/testkit/")
    }
}

/// Checks every rule, and reports everything that breaks one.
pub fn run() -> Task {
    let files = files()?;
    let mut broken = Vec::new();
    for file in &files {
        lines_are_clean(file, &mut broken);
        rooms_say_what_they_are_for(file, &mut broken);
    }
    dropin_links_little(&mut broken)?;
    testkit_is_for_tests(&files, &mut broken);
    queues_without_a_bound_name_it(&files, &mut broken);
    options_are_documented(&files, &mut broken);
    documents_name_real_tests(&files, &mut broken);
    if broken.is_empty() {
        return Ok(());
    }
    Err(Stop(format!("house rules are broken:\n  {}", broken.join("\n  "))))
}

fn files() -> Result<Vec<File>, Stop> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(build::root())
        .output()?;
    let read = |name: &str| {
        let path: PathBuf = build::root().join(name);
        // A binary file, or one that was deleted, breaks no rule about text.
        let text = std::fs::read_to_string(path).ok()?;
        Some(File { name: name.to_owned(), text })
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(read).collect())
}

fn lines_are_clean(file: &File, broken: &mut Vec<String>) {
    // In halves, so that this file does not break its own rules.
    let unfinished = ["TO", "FIX"].into_iter().zip(["DO", "ME"]).map(|(a, b)| format!("{a}{b}"));
    let unfinished: Vec<String> = unfinished.collect();
    let homes = ["/ho", "/ro", "/wo"].into_iter().zip(["me/", "ot/", "rk/"]);
    let homes: Vec<String> = homes.map(|(a, b)| format!("{a}{b}")).collect();
    let ignored = format!("#[{}", "ignore");
    for (number, line) in file.text.lines().enumerate() {
        let mut complain =
            |rule: &str| broken.push(format!("{}:{}: {rule}", file.name, number + 1));
        if file.is_rust() && unfinished.iter().any(|mark| line.contains(mark)) {
            complain("an unfinished mark: do it, or file an issue");
        }
        if file.is_rust() && line.contains(&ignored) {
            complain("an ignored test is a test that does not exist");
        }
        if file.name != "Cargo.lock" && homes.iter().any(|home| line.contains(home)) {
            complain("an absolute path of one machine");
        }
        for (call, place, rule) in ONE_PLACE {
            if file.is_product() && line.contains(call) && file.name != *place {
                complain(rule);
            }
        }
    }
}

fn rooms_say_what_they_are_for(file: &File, broken: &mut Vec<String>) {
    if file.is_rust() && !file.text.starts_with("//!") {
        broken.push(format!("{}: every room says at its door what it is for", file.name));
    }
    if file.is_product() && file.name.ends_with("src/main.rs") && file.text.lines().count() > 120 {
        broken.push(format!("{}: main is a table of contents, 120 lines at most", file.name));
    }
}

fn dropin_links_little(broken: &mut Vec<String>) -> Task {
    let output = build::cargo()
        .args(["tree", "--package", "vipwatch-dropin", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
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

fn testkit_is_for_tests(files: &[File], broken: &mut Vec<String>) {
    for file in files {
        let is_manifest = file.name.starts_with("crates/") && file.name.ends_with("/Cargo.toml");
        let normal = file.text.split("[dev-dependencies]").next().unwrap_or_default();
        if is_manifest && normal.contains("vipwatch-testkit.workspace") {
            broken.push(format!("{}: testkit is a dev-dependency", file.name));
        }
    }
}

/// `linux::inbox` has no bound of its own: each file that declares one says what limits its contents.
fn queues_without_a_bound_name_it(files: &[File], broken: &mut Vec<String>) {
    let declares = |line: &str| line.contains("Inbox<") && !line.trim_start().starts_with("//");
    let is_inbox = |file: &&File| file.is_product() && file.name != "crates/linux/src/inbox.rs";
    for file in files.iter().filter(is_inbox) {
        if file.text.lines().any(declares) && !file.text.contains("BOUND:") {
            broken.push(format!(
                "{}: an Inbox needs a comment `BOUND:` that says what limits it",
                file.name
            ));
        }
    }
}

/// Every option of the drop-in stands in the reference.
fn options_are_documented(files: &[File], broken: &mut Vec<String>) {
    let text =
        |name: &str| files.iter().find(|file| file.name == name).map_or("", |file| &file.text);
    let reference = text("docs/reference/options.md");
    // However the table is wrapped: the first string after each constructor is the name.
    let table = text("crates/dropin/src/options.rs");
    let table = table.split("#[cfg(test)]").next().unwrap_or_default();
    let calls = table.split("opt(").flat_map(|part| part.split("switch(")).skip(1);
    let names = calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next());
    let mut count = 0;
    for name in names {
        count += 1;
        if !reference.contains(&format!("--{name}")) {
            broken.push(format!("docs/reference/options.md does not mention --{name}"));
        }
    }
    if count < 20 {
        broken.push("the table of options could not be read: mend this rule".to_owned());
    }
}

/// Documents name tests; a test that was renamed or removed must not be claimed.
fn documents_name_real_tests(files: &[File], broken: &mut Vec<String>) {
    let code: String = files.iter().filter(|file| file.is_rust()).map(|file| &*file.text).collect();
    let is_sentence = |word: &&str| {
        let is_name =
            word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && word.matches('_').count() >= 4
    };
    for file in files.iter().filter(|file| file.is_document()) {
        // Between backticks, line by line: a fence is not a name.
        let words = file.text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for name in words.filter(is_sentence) {
            // A function, or an entry of a macro that makes one test for each entry.
            let is_test =
                code.contains(&format!("fn {name}(")) || code.contains(&format!(" {name}: "));
            if !is_test {
                broken.push(format!("{} names a test that does not exist: {name}", file.name));
            }
        }
    }
}
