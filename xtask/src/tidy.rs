// SPDX-License-Identifier: Apache-2.0
//! Rules of the repository that the compiler and clippy do not check. Most of them guard an invariant of
//! ARCHITECTURE.md.

mod documents;

use crate::source::{SourceFile, text_of, tracked_files};
use crate::{TaskError, TaskResult, build, process};

/// Crates that the drop-in must not link: async runtimes, TLS, HTTP servers, and crates that need much memory.
const BANNED_IN_DROPIN: &str =
    "tokio async-std smol mio hyper axum rustls openssl native-tls clap tracing serde";

/// Crates that the switch must not link: it is one small static file that changes monitors as root.
const BANNED_IN_SWITCH: &str = "tokio async-std smol mio hyper axum rustls openssl native-tls";

/// Crates of the HTTP server. The node does not know it: `cli` connects both. Its cluster view links an async runtime.
const BANNED_IN_NODE: &str = "vipwatch-web prometheus-client";

/// Calls that only one file of the product may have.
const RESTRICTED_CALLS: [(&str, &str); 3] = [
    ("RenameFlags::EXCHANGE", "crates/outlets/src/state_file.rs"),
    ("move_into_link_name_space(", "crates/linux/src/netns.rs"),
    ("libc::fork(", "crates/linux/src/process.rs"),
];

/// Checks all rules; the error lists every violation.
pub fn run() -> TaskResult {
    let files = tracked_files()?;
    let mut broken = Vec::new();
    for file in &files {
        lines_are_clean(file, &mut broken);
        files_have_a_head(file, &mut broken);
        files_name_their_licence(file, &mut broken);
    }
    packages_link_little(&mut broken)?;
    testkit_is_for_tests(&files, &mut broken);
    queues_name_their_bound(&files, &mut broken);
    deliveries_have_one_loop_and_one_table(&files, &mut broken);
    options_are_documented(&files, &mut broken);
    documents_name_real_tests(&files, &mut broken);
    documents::check(&files, &mut broken);
    if broken.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!("rules of the repository are broken:\n  {}", broken.join("\n  "))))
}

/// No line has an unfinished mark, an ignored test, a path of one machine, or a call that belongs elsewhere.
fn lines_are_clean(file: &SourceFile, broken: &mut Vec<String>) {
    // The marks are written in two parts, so that this file does not break its own rules.
    let unfinished = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let machine_paths = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];
    let ignored = concat!("#[", "ignore");
    for (number, line) in file.text.lines().enumerate() {
        let mut complain =
            |rule: &str| broken.push(format!("{}:{}: {rule}", file.path, number + 1));
        if file.is_rust() && unfinished.iter().any(|mark| line.contains(mark)) {
            complain("unfinished work: finish it, or file an issue");
        }
        if file.is_rust() && line.contains(ignored) {
            complain("a test must not be ignored");
        }
        if file.path != "Cargo.lock" && machine_paths.iter().any(|path| line.contains(path)) {
            complain("an absolute path of one machine");
        }
        for (call, path) in RESTRICTED_CALLS {
            if file.is_product() && line.contains(call) && file.path != path {
                complain(&format!("only {path} may use {call}"));
            }
        }
    }
}

/// Every source file says what it is for, and `main.rs` of a product is short.
fn files_have_a_head(file: &SourceFile, broken: &mut Vec<String>) {
    // The first line is that of the licence.
    if file.is_rust() && !file.text.lines().nth(1).is_some_and(|line| line.starts_with("//!")) {
        broken.push(format!(
            "{}: the line after the licence must be a `//!` comment that says what the file is for",
            file.path
        ));
    }
    if file.is_product() && file.path.ends_with("src/main.rs") && file.text.lines().count() > 120 {
        broken
            .push(format!("{}: main.rs has more than 120 lines; move code to modules", file.path));
    }
}

/// The first line of every source file, or the second one after `#!/`, names the licence in the form of SPDX.
fn files_name_their_licence(file: &SourceFile, broken: &mut Vec<String>) {
    const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0";
    let is_script = file.text.starts_with("#!/");
    let needs = ["rs", "js", "c", "css", "py", "sh"].iter().any(|end| file.has_extension(end));
    let line = file.text.lines().nth(usize::from(is_script)).unwrap_or_default();
    if (needs || is_script) && !line.contains(LICENCE) {
        broken.push(format!("{}: the first line must be a comment with `{LICENCE}`", file.path));
    }
}

/// The drop-in links none of [`BANNED_IN_DROPIN`], the switch none of [`BANNED_IN_SWITCH`], and the node none of
/// [`BANNED_IN_NODE`].
fn packages_link_little(broken: &mut Vec<String>) -> TaskResult {
    for (package, banned) in [
        ("vipwatch-dropin", BANNED_IN_DROPIN),
        ("vipwatch-switch", BANNED_IN_SWITCH),
        ("vipwatch-node", BANNED_IN_NODE),
    ] {
        let options = ["--edges", "normal", "--prefix", "none", "--format", "{p}"];
        let tree =
            process::text(build::cargo().args(["tree", "--package", package]).args(options))?;
        for name in tree.lines().filter_map(|line| line.split(' ').next()) {
            if banned.split(' ').any(|banned| banned == name) {
                broken.push(format!("{package} must not link {name}"));
            }
        }
    }
    Ok(())
}

/// Only tests depend on `testkit`.
fn testkit_is_for_tests(files: &[SourceFile], broken: &mut Vec<String>) {
    for file in files {
        let is_manifest = file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml");
        let normal = file.text.split("[dev-dependencies]").next().unwrap_or_default();
        if is_manifest && normal.contains("vipwatch-testkit.workspace") {
            broken.push(format!("{}: testkit may be a dev-dependency only", file.path));
        }
    }
}

/// The node has one retry loop, which drives `core::notification`, and one table of deliveries.
fn deliveries_have_one_loop_and_one_table(files: &[SourceFile], broken: &mut Vec<String>) {
    let table = "CREATE TABLE delivery (";
    let product = || files.iter().filter(|file| file.is_product());
    let tables: usize = product().map(|file| file.text.matches(table).count()).sum();
    if tables != 1 {
        broken.push(format!("there must be one statement `{table}`, not {tables}"));
    }
    let in_node = || product().filter(|file| file.path.starts_with("crates/node/src/"));
    for file in in_node().filter(|file| file.text.contains("Backoff")) {
        let path = &file.path;
        broken
            .push(format!("{path}: retries belong to core::notification and notify/target_queue"));
    }
    let is_loop = |file: &&SourceFile| file.text.contains("AfterAttempt::RetryAfter");
    let loops: Vec<&str> = in_node().filter(is_loop).map(|file| file.path.as_str()).collect();
    if loops.len() != 1 {
        broken.push(format!("one file of the node must retry deliveries, not {loops:?}"));
    }
}

/// A `WakeQueue` has no limit of its own: each file that declares one has a comment about what limits its length.
fn queues_name_their_bound(files: &[SourceFile], broken: &mut Vec<String>) {
    const DEFINITION: &str = "crates/linux/src/wake_queue.rs";
    let declares = |line: &str| line.contains("WakeQueue<") && !line.trim_start().starts_with("//");
    if !files.iter().any(|file| file.path == DEFINITION) {
        broken.push(format!("{DEFINITION}: no such file; adapt `queues_name_their_bound` in tidy"));
    }
    let is_user = |file: &&SourceFile| file.is_product() && file.path != DEFINITION;
    for file in files.iter().filter(is_user) {
        if file.text.lines().any(declares) && !file.text.contains("BOUND:") {
            broken.push(format!(
                "{}: a WakeQueue needs a comment `BOUND:` about what limits its length",
                file.path
            ));
        }
    }
}

/// The reference has every option of the drop-in.
fn options_are_documented(files: &[SourceFile], broken: &mut Vec<String>) {
    let reference = text_of(files, "docs/reference/options.md");
    // The first string after each constructor is the name, wherever rustfmt breaks the line.
    let table = text_of(files, "crates/dropin/src/options.rs");
    let table = table.split("#[cfg(test)]").next().unwrap_or_default();
    let calls = table.split("opt(").flat_map(|part| part.split("switch(")).skip(1);
    let names = calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next());
    let mut count = 0;
    for name in names {
        count += 1;
        if !reference.contains(&format!("--{name}")) {
            broken.push(format!("docs/reference/options.md: option --{name} is missing"));
        }
    }
    if count < 20 {
        broken.push("crates/dropin/src/options.rs: tidy finds fewer than 20 options; adapt `options_are_documented`".to_owned());
    }
}

/// Every test that a document names exists.
fn documents_name_real_tests(files: &[SourceFile], broken: &mut Vec<String>) {
    let code: String = files.iter().filter(|file| file.is_rust()).map(|file| &*file.text).collect();
    let is_sentence = |word: &&str| {
        let is_name =
            word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && word.matches('_').count() >= 4
    };
    for file in files.iter().filter(|file| file.is_document()) {
        // Names are between single backticks. Splitting each line by itself leaves out fenced blocks.
        let words = file.text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for name in words.filter(is_sentence) {
            // A test is a function, or an entry of a macro that generates one test for each entry.
            let is_test =
                code.contains(&format!("fn {name}(")) || code.contains(&format!(" {name}: "));
            let is_metric = name.starts_with("vipwatch_") && code.contains(&format!("\"{name}\""));
            if !is_test && !is_metric {
                broken.push(format!("{}: no test or metric has the name {name}", file.path));
            }
        }
    }
}
