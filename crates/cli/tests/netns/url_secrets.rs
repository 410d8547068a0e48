// SPDX-License-Identifier: Apache-2.0
//! The URL of a webhook is secret behind its host: a word in it reaches the server and no output.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, wait_for, wait_showing};

use crate::curl::curl;
use crate::header_recorder::HeaderRecorder;
use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, fixture_with, vi_1_conf, wait_for_role, write_hook, write_with_mode,
};

const WORD: &str = "s3cretw0rd";

/// The documents of the API that name targets.
const PATHS: [&str; 8] = [
    "/v1/status",
    "/v1/instances",
    "/v1/instances/VI_1",
    "/v1/targets",
    "/v1/config",
    "/v1/findings",
    "/v1/history",
    "/metrics",
];

const COMMANDS: [&[&str]; 8] = [
    &["status", "-o", "wide"],
    &["show", "VI_1"],
    &["targets"],
    &["config", "show"],
    &["doctor", "-o", "wide"],
    &["history"],
    &["discover"],
    &["simulate"],
];

/// `HOST:PORT` of a server.
fn host(url: &str) -> &str {
    url.split('/').nth(2).unwrap()
}

fn webhook(lines: &str) -> String {
    format!("[[notify.webhook]]\n{lines}\ndeliver = \"every\"\n")
}

/// Webhooks that fail, each in another way, with the word in each part of a URL; and the names of the webhooks.
fn failing_webhooks(lab: &Lab, servers: &[&HttpServer; 4]) -> (String, Vec<String>) {
    let [unavailable, rejecting, without_tls, from_file] = servers.map(|server| host(&server.url));
    let file = lab.path().join("secrets/webhook.url");
    write_with_mode(&file, &format!("http://{from_file}/{WORD}\n"), 0o640);
    let credential = lab.path().join("secrets/chat");
    write_with_mode(&credential, &format!("http://{from_file}/?x={WORD}"), 0o400);
    let text = [
        format!("url = \"http://127.0.0.1:1/{WORD}\""),
        format!("url = \"http://user:{WORD}@{unavailable}/\""),
        format!("url = \"http://{rejecting}/services/{WORD}?token={WORD}\""),
        format!("url = \"https://{without_tls}/{WORD}#{WORD}\""),
        format!("url_file = \"{}\"", file.display()),
        "url = \"credential:chat\"".to_owned(),
    ];
    let names = ["127.0.0.1:1", unavailable, rejecting, without_tls].map(str::to_owned);
    let names = names.into_iter().chain([file.display().to_string(), "credential:chat".to_owned()]);
    (text.map(|lines| webhook(&lines)).concat(), names.collect())
}

/// Everything that commands, documents and metrics show.
fn shown(fixture: &NodeFixture) -> String {
    let commands = COMMANDS.map(|words| fixture.run_text(words));
    let documents = PATHS.map(|path| curl(fixture, &[], path).body);
    [commands.concat(), documents.concat()].concat()
}

/// Loads a text that the node refuses by a reload and by two commands; returns what they print.
fn refuse(fixture: &NodeFixture, node: &NodeProcess, text: &str, reason: &str) -> String {
    fixture.configure(text);
    node.reload();
    fixture.wait_for_log(reason);
    let check = output_of(fixture.command().args(["config", "check"]).arg(fixture.config()));
    let check = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.contains(reason), "{check}");
    check + &fixture.run_text(&["reload"])
}

/// The files below `directory`, those with the secrets aside, that contain the word.
fn files_with_word(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_secret = path.ends_with("secrets") || path.ends_with("vipwatch.toml");
        if path.is_dir() && !is_secret {
            found.extend(files_with_word(&path));
        } else if path.is_file() && !is_secret {
            let content = std::fs::read(&path).unwrap();
            let has_word = content.windows(WORD.len()).any(|bytes| bytes == WORD.as_bytes());
            found.extend(has_word.then_some(path));
        }
    }
    found
}

#[test]
fn a_word_behind_the_host_of_a_failing_webhook_is_in_no_output() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let fixture = fixture
        .with_variable("CREDENTIALS_DIRECTORY", &lab.path().join("secrets").display().to_string());
    let statuses = [500, 404, 404, 503].map(|status| HttpServer::new(&[status; 1000]));
    let (webhooks, names) = failing_webhooks(&lab, &statuses.each_ref());
    let observer = HttpServer::new(&[]);
    let hook_input = lab.path().join("hook-input");
    let hook =
        write_hook(&lab.path().join("hook"), &format!("(env; cat) >> {}", hook_input.display()));
    let on = "[\"primary\", \"finding\"]";
    let text = format!(
        "[metrics]\ntextfile = \"{}/vipwatch.prom\"\ntextfile_every = \"1s\"\n[[notify]]\n{webhooks}{}\
         [[notify.hook]]\nprogram = {hook:?}\non = {on}\n",
        lab.path().display(),
        webhook(&format!("url = \"{}\"\non = {on}", observer.url)),
    );
    fixture.configure(&text);
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    for name in &names {
        let message = format!("webhook {name}");
        wait_showing(
            &message,
            || fixture.run_text(&["doctor", "-o", "wide"]),
            || fixture.run_text(&["doctor", "-o", "wide"]).contains(name).then_some(()),
        );
    }
    let has_finding = || {
        let bodies = observer.accepted_bodies();
        bodies.iter().any(|body| body["finding"]["name"] == "webhook-failed").then_some(())
    };
    wait_for("a finding at the other webhook", has_finding);
    wait_for("a finding at the hook", || {
        std::fs::read_to_string(&hook_input).ok()?.contains("webhook-failed").then_some(())
    });

    let mut printed = shown(&fixture);
    for name in &names {
        assert!(printed.contains(name.as_str()), "{name} is not in {printed}");
    }
    for (change, reason) in [
        (format!("url = \"https://u:{WORD} w@h/?x={WORD}\""), "expected a URL"),
        (format!("url = https://h/{WORD}"), "vipwatch.toml:"),
        (format!("url = \"https://h/{WORD}\"\nom = \"primary\""), "did you mean on?"),
        (format!("url = \"http://192.0.2.1/{WORD}\""), "without encryption"),
        (format!("url = \"https://127.0.0.1:1/{WORD}\""), "has the name"),
    ] {
        printed += &refuse(&fixture, &node, &format!("{text}{}", webhook(&change)), reason);
    }
    std::fs::set_permissions(fixture.config(), PermissionsExt::from_mode(0o644)).unwrap();
    printed += &refuse(&fixture, &node, &text, "holds credentials, and every user can read it");
    printed += &shown(&fixture);
    for body in observer.accepted_bodies() {
        printed += &body.to_string();
    }
    assert!(node.stop().success());
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains(WORD)).collect();
    assert!(lines.is_empty(), "{lines:#?}");
    assert_eq!(files_with_word(lab.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_webhook_reads_its_url_from_a_file_or_credential_for_each_request() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HeaderRecorder::accepting();
    let (file, directory) = (lab.path().join("webhook.url"), lab.path().join("credentials"));
    let host = host(&server.url);
    write_with_mode(&file, &format!("http://{host}/file-one\n"), 0o640);
    write_with_mode(&directory.join("chat"), &format!("http://{host}/credential\n"), 0o400);
    let webhooks =
        [format!("url_file = \"{}\"", file.display()), "url = \"credential:chat\"".to_owned()]
            .map(|line| webhook(&line));
    fixture.configure(&format!("[[notify]]\n{}", webhooks.concat()));
    let fixture = fixture.with_variable("CREDENTIALS_DIRECTORY", &directory.display().to_string());
    let node = fixture.start();
    let wait_for_path = |path: &str| {
        let line = format!("POST {path} HTTP/1.1");
        wait_for(&line, || server.heads().iter().any(|head| head.starts_with(&line)).then_some(()));
    };
    wait_for_path("/file-one");
    wait_for_path("/credential");
    write_with_mode(&file, &format!("http://{host}/file-two\n"), 0o640);
    netns.ip(ADD_VIP);
    wait_for_path("/file-two");

    // Other users can read the next file, and the one after that has no URL.
    for (content, mode, reason) in [
        (format!("http://{host}/{WORD}\n"), 0o644, "it is secret, and every user can read it"),
        (format!("{WORD}\n"), 0o640, "its content is not a URL"),
        (format!("http://192.0.2.1/{WORD}\n"), 0o640, "credentials would be sent"),
    ] {
        write_with_mode(&file, &content, mode);
        let message = format!("url_file = {}: {reason}", file.display());
        let check = output_of(fixture.command().args(["config", "check"]).arg(fixture.config()));
        let check = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(check.contains(&message) && check.contains("hint: "), "{check}");
        node.reload();
        fixture.wait_for_log(&message);
    }
    assert!(!fixture.log().contains(WORD), "{}", fixture.log());
    assert!(!fixture.log().contains("file-one"), "{}", fixture.log());
}
