// SPDX-License-Identifier: Apache-2.0
//! Headers of webhooks and of the upstream with a credential that systemd passes to the service.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeFixture, wait_for};

use crate::header_recorder::HeaderRecorder;
use crate::receiver_process::{ReceiverProcess, configure, receiver_command, report};
use crate::support::{ADD_VIP, REMOVE_VIP, fixture_with, vi_1_conf, write_with_mode};

const VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Creates the directory of the credentials, as systemd does.
fn credentials(lab: &Lab) -> PathBuf {
    let directory = lab.path().join("credentials");
    std::fs::create_dir(&directory).unwrap();
    directory
}

fn set(directory: &Path, content: &str) {
    let file = directory.join("hook-token");
    let _ = std::fs::remove_file(&file);
    write_with_mode(&file, content, 0o400);
}

fn webhook(url: &str) -> String {
    format!(
        "[[notify]]\n[[notify.webhook]]\nname = \"operations\"\nurl = \"{url}\"\ndeliver = \"every\"\n\
         headers = {{ Authorization = \"credential:hook-token\" }}\n"
    )
}

fn wait_for_header(server: &HeaderRecorder, value: &str) {
    let line = format!("authorization: {value}");
    let has_line = |head: &String| head.lines().any(|one| one.eq_ignore_ascii_case(&line));
    wait_for(&line, || server.heads().iter().any(has_line).then_some(()));
}

/// Everything that `vipwatch config check` prints, and its exit code; with the credentials of the service or without.
fn check(fixture: &NodeFixture, directory: Option<&Path>) -> (String, Option<i32>) {
    let mut command = fixture.command();
    command.args(["config", "check"]).arg(fixture.config());
    command.envs(directory.map(|directory| (VARIABLE, directory)));
    let output = output_of(&mut command);
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.code())
}

#[test]
fn a_webhook_gets_the_credential_of_the_service_and_a_reload_reads_it_again() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let directory = credentials(&lab);
    set(&directory, "Bearer s3cret-one\n");
    let server = HeaderRecorder::accepting();
    fixture.configure(&webhook(&server.url));
    let fixture = fixture.with_variable(VARIABLE, directory.to_str().unwrap());
    let node = fixture.start();
    wait_for_header(&server, "Bearer s3cret-one");

    set(&directory, "Bearer s3cret-two");
    node.reload();
    netns.ip(ADD_VIP);
    wait_for_header(&server, "Bearer s3cret-two");

    // A reload refuses a value that is not one line; the log and `config check` say why.
    set(&directory, "Bearer s3cret-three\nX-Other: 1\n");
    node.reload();
    let refused = "header Authorization = credential:hook-token: it contains a line break";
    fixture.wait_for_log(refused);
    let (text, code) = check(&fixture, Some(&directory));
    assert!(code == Some(4) && text.contains(refused) && text.contains("hint: "), "{text}");
    netns.ip(REMOVE_VIP);
    wait_for("the failure to be a finding", || {
        fixture.run_text(&["doctor"]).contains(refused).then_some(())
    });

    // The failed delivery is repeated with the next valid value.
    set(&directory, "Bearer s3cret-four");
    wait_for_header(&server, "Bearer s3cret-four");
    let shown = fixture.run_text(&["config", "show"]) + &fixture.run_text(&["targets"]);
    assert!(shown.contains("Authorization"), "{shown}");
    for text in [shown, text, fixture.log(), fixture.run_text(&["doctor"])] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    assert!(node.stop().success());
}

#[test]
fn a_node_without_the_credential_does_not_start_and_names_what_is_missing() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(&webhook("http://127.0.0.1:1/"));
    let refusal = |directory: Option<&Path>| {
        let mut command = fixture.node_command();
        command.envs(directory.map(|directory| (VARIABLE, directory)));
        let output = output_of(&mut command);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = refusal(None);
    assert!(text.contains("webhook \"operations\": header Authorization = credential:hook-token"));
    assert!(text.contains("$CREDENTIALS_DIRECTORY is not set"), "{text}");
    let (text, code) = check(&fixture, None);
    assert_eq!(code, Some(0), "only the service has the credential: {text}");
    assert!(text.contains("not checked: only the service has credential:hook-token"), "{text}");

    let directory = credentials(&lab);
    let text = refusal(Some(&directory));
    assert!(text.contains("no credential \"hook-token\""), "{text}");
    assert!(text.contains("hint: add LoadCredential=hook-token:PATH"), "{text}");
    set(&directory, "\n");
    let text = refusal(Some(&directory));
    assert!(text.contains("it is empty"), "{text}");
    let command = |word: &str| String::from_utf8(output_of(fixture.command().arg(word)).stderr);
    assert!(!command("status").unwrap().contains("credential"), "a query needs no credential");
}

#[test]
fn a_receiver_needs_the_credentials_of_its_own_targets_only() {
    let lab = Lab::new();
    let directory = credentials(&lab);
    set(&directory, "Bearer s3cret-one\n");
    let server = HeaderRecorder::accepting();
    // The target of the node has a credential that the service of the receiver does not have.
    let of_node = webhook("http://127.0.0.1:1/").replace("hook-token", "of-the-node");
    let of_receiver = format!(
        "[receiver]\ninterval = \"0s\"\n[receiver.upstream]\nurl = \"{}\"\ninterval = \"0s\"\n\
         headers = {{ Authorization = \"credential:hook-token\" }}\n",
        server.url
    );
    configure(lab.path(), Some(&(of_node + &of_receiver)));
    let log = std::fs::File::create(lab.path().join("log")).unwrap();
    let mut command = receiver_command(lab.path(), &[]);
    command.env(VARIABLE, &directory).stderr(log).stdout(Stdio::null());
    let receiver = ReceiverProcess::from_child(command.spawn().unwrap(), lab.path());
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    wait_for_header(&server, "Bearer s3cret-one");

    set(&directory, "");
    receiver.reload();
    receiver.wait_for_log("header Authorization = credential:hook-token: it is empty");
    set(&directory, "Bearer s3cret-two\n");
    receiver.reload();
    receiver.wait_for_log("configuration reloaded");
    assert_eq!(report(lab.path(), "r1", "backup"), Some(200));
    wait_for_header(&server, "Bearer s3cret-two");
    assert!(!receiver.log().contains("s3cret"), "{}", receiver.log());
}
