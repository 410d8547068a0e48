// SPDX-License-Identifier: Apache-2.0
//! Credentials in headers: valid values, each reason for a refusal, and where a value may be sent.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use vipwatch_core::ErrorChain;

use super::*;
use crate::config::Config;

/// A directory with one credential, `token`.
struct Credentials {
    directory: tempfile::TempDir,
}

impl Credentials {
    fn new(content: &[u8]) -> Self {
        let credentials = Self { directory: tempfile::tempdir().unwrap() };
        let mut file = std::fs::File::create(credentials.file()).unwrap();
        std::io::Write::write_all(&mut file, content).unwrap();
        credentials.set_mode(0o400);
        credentials
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    fn set_mode(&self, mode: u32) {
        std::fs::set_permissions(self.file(), PermissionsExt::from_mode(mode)).unwrap();
    }

    fn read(&self, name: &str) -> Result<String, String> {
        read(name, Some(&self.directory.path().join(name)))
    }
}

/// The value of a header, or the whole error with its hint.
fn read(name: &str, path: Option<&Path>) -> Result<String, String> {
    let credential = ServiceCredential::parse(&format!("credential:{name}")).unwrap().unwrap();
    read_credential(&credential, path).map_err(|source| {
        let file = WebFile::Credential(credential);
        let error = SecretError { setting: "header Authorization".to_owned(), file, source };
        format!("{}; hint: {}", ErrorChain(&error), error.hint())
    })
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("f"), text)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn webhook(url: &str, value: &str) -> String {
    format!(
        "[[notify]]\n[[notify.webhook]]\nurl = \"{url}\"\nheaders = {{ X-Hook = \"{value}\" }}\n"
    )
}

#[test]
fn the_value_is_the_content_without_the_line_break_at_its_end() {
    for content in ["Bearer s3cret", "Bearer s3cret\n"] {
        assert_eq!(Credentials::new(content.as_bytes()).read("token").unwrap(), "Bearer s3cret");
    }
}

#[test]
fn content_that_is_not_one_printable_line_is_refused_and_not_shown() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (b"  \n", "it is empty"),
        (b"s3cret\n\n", "a line break before its end"),
        (b"s3cret\r\n", "a line break before its end"),
        (b"s3cret\nX-Other: 1", "a line break before its end"),
        (b"s3cret\x07", "a control character"),
        (b"s3cret\xff", "not ASCII"),
    ];
    for (content, reason) in cases {
        let error = Credentials::new(content).read("token").unwrap_err();
        assert!(error.starts_with("header Authorization = credential:token: "), "{error}");
        assert!(error.contains(reason) && error.contains("; hint: "), "{content:?}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn each_reason_why_a_credential_cannot_be_read_has_its_own_text() {
    let credentials = Credentials::new(b"Bearer s3cret");
    let missing = credentials.read("other").unwrap_err();
    assert!(missing.contains("no credential \"other\""), "{missing}");
    assert!(missing.contains("hint: add LoadCredential=other:PATH to the service"), "{missing}");
    let not_passed = read("token", None).unwrap_err();
    assert!(not_passed.contains("$CREDENTIALS_DIRECTORY is not set"), "{not_passed}");
    credentials.set_mode(0o444);
    assert!(credentials.read("token").unwrap_err().contains("every user can read it"));
    credentials.set_mode(0o420);
    assert!(credentials.read("token").unwrap_err().contains("other users can write to it"));
    std::fs::create_dir(credentials.directory.path().join("directory")).unwrap();
    let directory = credentials.read("directory").unwrap_err();
    assert!(directory.contains("cannot read it: it is not a regular file"), "{directory}");
    let long = Credentials::new("x".repeat(20_000).as_bytes()).read("token").unwrap_err();
    assert!(long.contains("it has more than 16384 bytes"), "{long}");
}

#[test]
fn a_header_with_a_credential_is_a_secret_in_transit_but_not_in_the_file() {
    let config = parse(&webhook("https://192.0.2.1/", "credential:token")).unwrap();
    assert!(!config.has_credentials(), "the file has only the name");
    assert_eq!(config.check_target_files().unwrap(), ["credential:token"]);
    let refused = parse(&webhook("http://192.0.2.1/", "credential:token")).unwrap_err();
    assert!(refused.contains("without encryption"), "{refused}");
    parse(&webhook("http://192.0.2.1/", "text")).unwrap();
    let invalid = parse(&webhook("https://192.0.2.1/", "credential:../x")).unwrap_err();
    assert!(
        invalid.contains("f:4: headers: \"../x\" is not the name of a credential"),
        "{invalid}"
    );
}

#[test]
fn the_check_names_every_target_with_a_credential_that_cannot_be_read() {
    let text = webhook("https://192.0.2.1/", "credential:one")
        + "[receiver.upstream]\nname = \"central\"\nurl = \"https://192.0.2.1/\"\n\
           headers = { Authorization = \"credential:two\" }\n";
    let config = parse(&text).unwrap();
    // The tests run without credentials of a service.
    let error = config.check_target_secrets().unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("webhook \"192.0.2.1\": header X-Hook = credential:one: "));
    assert!(lines[1].starts_with("upstream \"central\": header Authorization = credential:two: "));
    let of_receiver = config.receiver.unwrap().check_target_secrets().unwrap_err().to_string();
    assert_eq!(of_receiver, lines[1], "the process `vipwatch receiver` needs only its own");
}
