// SPDX-License-Identifier: Apache-2.0
//! Changed, broken, missing and readable files, without TLS: `crates/cli/tests/netns/web_tls.rs` has real certificates.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vipwatch_node::config::ServiceCredential;

use super::*;

const ONE: &str = "0123456789abcdef";
const TWO: &str = "fedcba9876543210";

fn config(file: &Path) -> WebConfig {
    WebConfig { token_file: Some(WebFile::Path(file.to_owned())), ..WebConfig::default() }
}

fn is_valid(credentials: &CredentialStore, token: &str) -> bool {
    credentials.tokens().unwrap().contains(&Token::for_test(token))
}

#[test]
fn changed_tokens_are_used_and_a_broken_file_keeps_the_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    write_secret(&file, ONE);
    let credentials = CredentialStore::open(&config(&file)).unwrap().unwrap();
    let check = || credentials.check(SystemTime::now());
    let problem = || check().1.files;
    assert_eq!(check(), (false, FileProblems::default()));
    write_secret(&file, &format!("{ONE}\n{TWO}\n"));
    assert_eq!(check(), (true, FileProblems::default()));
    assert!(is_valid(&credentials, ONE) && is_valid(&credentials, TWO));

    write_secret(&file, &format!("{TWO}\nshort\n"));
    assert_eq!(problem(), None, "the file may be incomplete");
    let text = problem().unwrap();
    assert!(text.contains(file.to_str().unwrap()) && text.contains("line 2"), "{text}");
    assert!(!text.contains("short"), "{text}");
    assert_eq!(problem(), Some(text), "until it is corrected");
    assert!(is_valid(&credentials, ONE), "the old content stays in use");

    write_secret(&file, TWO);
    assert_eq!(check(), (true, FileProblems::default()));
    assert!(!is_valid(&credentials, ONE) && is_valid(&credentials, TWO));
}

#[test]
fn a_file_without_a_token_withdraws_all_of_them_and_does_not_start_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    write_secret(&file, "# none\n");
    let error = CredentialStore::open(&config(&file)).unwrap_err();
    assert!(ErrorChain(&error).to_string().contains("no token is in it"));
    write_secret(&file, ONE);
    let credentials = CredentialStore::open(&config(&file)).unwrap().unwrap();
    write_secret(&file, "# none any more\n");
    let (has_changed, problems) = credentials.check(SystemTime::now());
    assert!(has_changed && !is_valid(&credentials, ONE));
    assert!(problems.files.unwrap().contains("all requests are refused"));
}

#[test]
fn a_deleted_token_file_withdraws_its_tokens_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    write_secret(&file, ONE);
    let credentials = CredentialStore::open(&config(&file)).unwrap().unwrap();
    let check = || credentials.check(SystemTime::now());
    std::fs::remove_file(&file).unwrap();
    let (has_changed, problems) = check();
    assert!(has_changed && !is_valid(&credentials, ONE));
    let problem = problems.files.unwrap();
    assert!(problem.contains("cannot read it: No such file"), "{problem}");
    assert!(problem.contains("all requests are refused"), "{problem}");
    assert!(!check().0, "nothing has changed since");
    write_secret(&file, TWO);
    assert_eq!(check(), (true, FileProblems::default()));
    assert!(!is_valid(&credentials, ONE) && is_valid(&credentials, TWO));
    // The name of a directory on the way is no directory any more.
    let inner = directory.path().join("d/tokens");
    std::fs::create_dir(directory.path().join("d")).unwrap();
    write_secret(&inner, ONE);
    let credentials = CredentialStore::open(&config(&inner)).unwrap().unwrap();
    std::fs::rename(directory.path().join("d"), directory.path().join("e")).unwrap();
    std::fs::File::create(directory.path().join("d")).unwrap();
    credentials.check(SystemTime::now());
    assert!(!is_valid(&credentials, ONE));
}

#[test]
fn a_secret_that_other_users_can_read_or_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    write_secret(&file, ONE);
    for (mode, expected) in [
        (0o600, None),
        (0o640, None),
        (0o400, None),
        (0o644, Some("every user can read it")),
        (0o660, Some("other users can write to it")),
        (0o602, Some("other users can write to it")),
    ] {
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let error = CredentialStore::open(&config(&file)).err();
        let error = error.map(|error| ErrorChain(&error).to_string()).unwrap_or_default();
        assert!(error.contains(expected.unwrap_or_default()), "{mode:o}: {error}");
        assert_eq!(error.is_empty(), expected.is_none(), "{mode:o}: {error}");
    }
}

#[test]
fn a_missing_file_and_a_missing_credential_are_named() {
    let missing = config(Path::new("/nonexistent/tokens"));
    let error = CredentialStore::open(&missing).unwrap_err();
    assert!(ErrorChain(&error).to_string().contains("web.token_file = /nonexistent/tokens"));
    let token_file = ServiceCredential::parse("credential:tokens")
        .map(|name| WebFile::Credential(name.unwrap()));
    let config = WebConfig { token_file, ..WebConfig::default() };
    let error = CredentialStore::open(&config).unwrap_err();
    assert!(ErrorChain(&error).to_string().contains("systemd has passed no credentials"));
    let warnings = check_web_files(&config).unwrap();
    assert!(warnings[0].contains("credential:tokens"), "{warnings:?}");
}

#[test]
fn a_file_that_could_not_be_read_is_read_again_although_it_has_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    write_secret(&file, ONE);
    let mut watched = WatchedFiles::new(vec![WebFile::Path(file.clone())]);
    write_secret(&file, TWO);
    // Stands for a process without a free file descriptor.
    let failed = config(directory.path());
    for _ in 0..2 {
        assert!(watched.changed_content(|| read_tokens(&failed)).is_none());
    }
    assert!(watched.rejection().is_some());
    assert!(watched.changed_content(|| read_tokens(&config(&file))).is_some());
    assert_eq!(watched.rejection(), None);
}
