// SPDX-License-Identifier: Apache-2.0
//! Tests of valid settings and of the errors of invalid ones.

use vipwatch_linux::account::{AccountKind, id};
use vipwatch_outlets::agent::AgentTrust;

use super::*;

fn read(text: &str) -> Result<Config, Vec<String>> {
    Config::parse(Path::new("/etc/v.toml"), text)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

#[test]
fn the_example_is_valid_and_shows_the_defaults() {
    let example = read(EXAMPLE).unwrap();
    let default = Config::default();
    assert_eq!(example.state_dir, default.state_dir);
    assert_eq!(example.socket, default.socket);
    assert_eq!(example.audit_every, default.audit_every);
    assert_eq!(example.hooks_at_once, default.hooks_at_once);
    assert_eq!(example.keep, default.keep);
    assert_eq!(example.witness, default.witness);
    assert_eq!(example.locations, default.locations);
    assert_eq!((example.instances.len(), example.rules.len()), (1, 2));
    let instance = &example.instances[0];
    assert!(example.rules[0].covers(instance) && !example.rules[1].covers(instance));
    assert_eq!(instance.watched()[1].0, "eth1".parse().unwrap());
    let path = example.rules[0].state_file.as_ref().unwrap().path(instance);
    assert_eq!(path, Path::new("/run/vipwatch/state/database"));
}

#[test]
fn keepalived_config_id_is_one_word() {
    let config = read("[find]\nconfig_id = \"left\"\n").unwrap();
    assert_eq!(config.locations.config_id(), "left");
    assert!(!Config::default().locations.config_id().contains('.'), "the host name has no domain");
    let errors = read("[find]\nconfig_id = \"two words\"\n").unwrap_err();
    assert_eq!(errors, ["/etc/v.toml:2: config_id: \"two words\" is not one word"]);
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_known_one() {
    let errors = read("[node]\nsokcet = \"/x\"\n[histroy]\n[[notify]]\nhoook = 1\n").unwrap_err();
    assert_eq!(
        errors,
        [
            "/etc/v.toml:2: there is no key sokcet in node; did you mean socket?",
            "/etc/v.toml:3: there is no key histroy; did you mean history?",
            "/etc/v.toml:5: there is no key hoook in notify; did you mean hook?",
        ]
    );
}

#[test]
fn every_error_is_reported_at_once_with_its_line() {
    let text = "[node]\nstate_dir = \"here\"\nhooks_at_once = 0\nlog = 7\n\
                [[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1/64 dev eth0\", \"x\"]\n\
                [[instance]]\nid = \"b/c\"\naddresses = [\"192.0.2.1\"]\n\
                [[notify]]\nstate_file = \"/run/same\"\n\
                [[notify]]\norigin = \"nova\"\nhook = { program = \"relative\" }\n\
                [[notify]]\nwebhook = { url = \"ftp://x\" }\n[[notify]]\n";
    let errors = read(text).unwrap_err();
    for expected in [
        "2: state_dir: \"here\" is not an absolute path",
        "3: hooks_at_once is a number from 1 to 256",
        "4: log is a string, not a number",
        "7: addresses: 192.0.2.1/64: an IPv4 address has a prefix length of 0 to 32, not \"64\"",
        "7: addresses: \"x\": on which link?",
        "9: id: invalid character '/'",
        "12: state_file: \"/run/same\" is the same for every instance",
        "14: expected an origin (\"neutron\"",
        "15: program: \"relative\" is not an absolute path",
        "17: url: expected a URL that begins with http:// or https://, or credential:NAME",
        "18: a notify rule needs state_file",
    ] {
        let expected = format!("/etc/v.toml:{expected}");
        assert!(errors.iter().any(|error| error.starts_with(&expected)), "{expected}: {errors:#?}");
    }
}

#[test]
fn a_syntax_error_is_reported_with_its_line() {
    let errors = read("[node]\nstate_dir = \n[find\n").unwrap_err();
    assert!(errors[0].starts_with("/etc/v.toml:2: "), "{errors:?}");
    assert!(errors.iter().any(|error| error.starts_with("/etc/v.toml:3: ")), "{errors:?}");
}

#[test]
fn two_instances_with_the_same_id_are_an_error() {
    let one = "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1 dev eth0\"]\n";
    let errors = read(&one.repeat(2)).unwrap_err();
    assert_eq!(errors, ["/etc/v.toml:4: instance a is already in this file"]);
}

#[test]
fn an_instance_name_cannot_change_the_directory_of_a_path() {
    let text = "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1 dev eth0\"]\n\
                [[notify]]\nstate_file = \"/run/x/{name}/{id}\"\n";
    let config = read(text).unwrap();
    let mut instance = (*config.instances[0]).clone();
    Arc::make_mut(&mut instance.vrrp).name = "../../etc".to_owned();
    let path = config.rules[0].state_file.as_ref().unwrap().path(&instance);
    assert_eq!(path, Path::new("/run/x/_.._.._etc/a"));
}

#[test]
fn a_named_file_must_exist() {
    assert!(matches!(Config::load(Some(Path::new("/no/such"))), Err(ConfigError::Read { .. })));
}

#[test]
fn credentials_are_not_sent_over_plain_http_to_another_host_unless_allowed() {
    let webhook = |url: &str, more: &str| {
        let headers = "headers = { Authorization = \"Bearer x\" }";
        read(&format!("[[notify]]\n[[notify.webhook]]\nurl = \"{url}\"\n{headers}\n{more}\n"))
    };
    let refused = webhook("http://192.0.2.1/", "").unwrap_err();
    assert!(refused[0].contains("without encryption"), "{refused:?}");
    assert!(refused[0].contains("allow_credentials_over_http = true"), "{refused:?}");
    for url in
        ["https://192.0.2.1/", "http://127.0.0.1:9000/", "http://[::1]/", "http://localhost/"]
    {
        webhook(url, "").unwrap();
    }
    webhook("http://192.0.2.1/", "allow_credentials_over_http = true").unwrap();
    let upstream = read("[receiver]\n[receiver.upstream]\nurl = \"http://u:p@example.net/\"\n");
    assert!(upstream.unwrap_err()[0].contains("without encryption"));
    read("[[notify]]\nwebhook = { url = \"http://example.net/\" }\n").unwrap();
}

#[test]
fn the_agent_is_trusted_by_its_user_unless_any_agent_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    // Only root can change the owner; otherwise the directory is this user's.
    let _ = std::os::unix::fs::chown(directory.path(), Some(4711), None);
    let owner = std::os::unix::fs::MetadataExt::uid(&directory.path().metadata().unwrap());
    let trust = |agent: &str| {
        let config =
            read(&format!("[[notify]]\nagent = {agent}\n")).map_err(|errors| errors.join(" "));
        config.map(|config| config.rules[0].agent.as_ref().unwrap().trust)
    };
    let socket = directory.path().join("s").display().to_string();
    // For a directory of root: the user `neutron` if there is one.
    let neutron = id("neutron", AccountKind::User).unwrap_or(0);
    let expected = if owner == 0 { neutron } else { owner };
    assert_eq!(trust(&format!("{socket:?}")), Ok(AgentTrust::User(expected)));
    assert_eq!(trust(&format!("{{ socket = {socket:?} }}")), Ok(AgentTrust::User(expected)));
    assert_eq!(trust("\"/no/such/s\""), Ok(AgentTrust::User(neutron)));
    assert_eq!(trust("{ socket = \"/no/s\", user = \"17\" }"), Ok(AgentTrust::User(17)));
    assert_eq!(trust("{ socket = \"/no/s\", allow_any_agent = true }"), Ok(AgentTrust::Anyone));
    let both = trust("{ socket = \"/no/s\", user = \"17\", allow_any_agent = true }");
    assert!(both.unwrap_err().contains("exclude each other"));
}

#[test]
fn allow_takes_users_and_groups() {
    let config = read("[receiver]\nallow = [\"root\", \"17\", \"@root\", \"@18\"]\n").unwrap();
    let allow = config.receiver.unwrap().allow;
    assert_eq!((allow.users, allow.groups), (vec![0, 17], vec![0, 18]));
    let errors = read("[receiver]\nallow = [\"@no-such-group\"]\n").unwrap_err();
    assert!(errors[0].contains("there is no group \"no-such-group\""), "{errors:?}");
}

#[test]
fn paths_that_a_node_cannot_use_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::File::create(&file).unwrap();
    let check = |text: &str| read(text).unwrap().check_paths().map_err(|error| error.to_string());
    let below = check(&format!("[node]\nstate_dir = \"{}/x/y\"\n", file.display()));
    assert!(below.unwrap_err().contains("cannot use the directory"));
    let socket = check(&format!("[node]\nsocket = \"{}\"\n", file.display()));
    assert!(socket.unwrap_err().contains("is not a socket"));
    let long = check(&format!("[receiver]\nsocket = \"/run/{}\"\n", "x".repeat(120)));
    assert!(long.unwrap_err().contains("cannot listen on"));
    let unused = directory.path().join("a/b");
    assert_eq!(
        check(&format!("[node]\nstate_dir = {unused:?}\nsocket = \"{0}/s\"\n", unused.display())),
        Ok(())
    );
    let same = read("[node]\nsocket = \"/run/s\"\n[receiver]\nsocket = \"/run/s\"\n").unwrap_err();
    assert!(same[0].contains("receiver.socket and node.socket are the same"), "{same:?}");
}

/// Every error of a file with its position and its line, as `vipwatch config check` prints it.
fn messages(text: &str) -> String {
    let errors = Config::parse(Path::new("v.toml"), text).unwrap_err();
    errors.iter().map(SettingError::with_source_line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_message_has_the_position_and_the_line() {
    let relative = "[[notify]]\nhook = { program = [\"hooks/changed\", \"x\"] }\n";
    let expected = r#"v.toml:2:21: program: "hooks/changed" is not an absolute path
  2 | hook = { program = ["hooks/changed", "x"] }
    |                     ^"#;
    assert_eq!(messages(relative), expected);
    let address = "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.300/24 dev eth0\"]\n";
    let expected = r#"v.toml:3:14: addresses: "192.0.2.300" is not an IP address
  3 | addresses = ["192.0.2.300/24 dev eth0"]
    |              ^"#;
    assert_eq!(messages(address), expected);
    let template = "[[notify]]\n\tstate_file = \"/run/same\"\n";
    let expected = r#"v.toml:2:15: state_file: "/run/same" is the same for every instance: put {id} into it
  2 |  state_file = "/run/same"
    |               ^"#;
    assert_eq!(messages(template), expected, "a tab counts as one character");
}

#[test]
fn single_brackets_where_double_ones_are_needed_are_named() {
    let single = "[notify]\nstate_file = \"/run/{id}\"\n";
    let expected = "v.toml:1:2: write [[notify]] instead of [notify]: the file may have several of \
                    them\n  1 | [notify]\n    |  ^";
    assert_eq!(messages(single), expected);
    let twice = messages(&single.repeat(2));
    assert!(twice.starts_with("v.toml:3:2: duplicate key: write [[notify]] instead"), "{twice}");
    let instance = "[instance]\nid = \"a\"\naddresses = [\"192.0.2.1 dev eth0\"]\n";
    assert!(messages(instance).contains("write [[instance]] instead of [instance]"));
    read("[[notify]]\n[notify.webhook]\nurl = \"http://127.0.0.1/\"\n").unwrap();
}

fn file_with_mode(text: &str, mode: u32) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file.as_file(), text.as_bytes()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(file.path(), mode).unwrap();
    file
}

/// Creates a configuration that only its owner can write, and loads it as a node does.
fn load_trusted(text: &str) -> Result<Config, String> {
    load_with_mode(text, 0o600)
}

fn load_with_mode(text: &str, mode: u32) -> Result<Config, String> {
    let file = file_with_mode(text, mode);
    let programs = ProgramCheck::in_node(None);
    let loaded = Config::load_trusted(Some(file.path()), programs);
    let loaded = loaded.map_err(|error| error.to_string());
    loaded.map_err(|text| text.replace(&file.path().display().to_string(), "FILE"))
}

#[test]
fn a_node_refuses_hooks_that_it_could_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("hook");
    std::fs::File::create(&program).unwrap();
    let set_mode = |mode| {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let of_rule = format!("[[notify]]\nhook = {{ program = {program:?} }}\n");
    let of_receiver = format!("[receiver]\n[[receiver.hook]]\nprogram = [{program:?}, \"-v\"]\n");
    for (text, line) in [(of_rule.as_str(), 2), (of_receiver.as_str(), 3)] {
        set_mode(0o755);
        load_trusted(text).unwrap();
        for (mode, reason) in [(0o644, "is not executable"), (0o757, "can write to the program")] {
            set_mode(mode);
            let refused = load_trusted(text).unwrap_err();
            let position = format!("FILE:{line}: program {program:?}: ");
            assert!(refused.starts_with(&position) && refused.contains(reason), "{refused}");
        }
        Config::parse(Path::new("f"), text).expect("a command that queries the node accepts it");
    }
    let text = of_rule.replace("/hook\"", "/missing\"");
    assert!(load_trusted(&text).unwrap_err().contains("No such file or directory"));
    let text = of_rule.replace("/hook\"", "\"");
    assert!(load_trusted(&text).unwrap_err().contains("it is not a file"));
}

#[test]
fn a_pattern_that_matches_no_instance_is_a_warning() {
    let text = "[[instance]]\nid = \"web-1\"\naddresses = [\"192.0.2.1 dev eth0\"]\n\
                [[notify]]\ninstances = [\"web-*\", \"wbe-*\"]\nannounce = true\n\
                [[notify]]\ninstances = \"web-1\"\norigin = \"neutron\"\nannounce = true\n\
                [[notify]]\norigin = \"neutron\"\nannounce = true\n";
    let config = read(text).unwrap();
    let expected = [
        "[[notify]] number 1: the pattern \"wbe-*\" matches no instance",
        "[[notify]] number 2: the pattern \"web-1\" matches no instance",
    ];
    assert_eq!(config.warnings(&config.instances), expected);
}

#[test]
fn a_target_without_a_name_has_its_program_or_its_host_as_its_name() {
    let config = read(
        "[[notify]]\nhook = { program = [\"/bin/a\", \"-x\"] }\n\
         webhook = { url = \"https://u:p@h:8443/a?token=1\" }\n\
         [[notify]]\ninstances = \"web-*\"\nhook = { program = [\"/bin/a\", \"-x\"] }\n\
         [[notify]]\nhook = { program = [\"/bin/a\", \"-x\"], timeout = \"1s\" }\n\
         [receiver]\nhook = { program = [\"/bin/a\", \"-x\"] }\n",
    )
    .unwrap();
    let names: Vec<&str> = config.rules.iter().map(|rule| rule.hooks[0].name.as_str()).collect();
    assert_eq!(
        names,
        ["/bin/a -x", "/bin/a -x", "/bin/a -x #2"],
        "the same settings, the same target"
    );
    assert_eq!(config.rules[0].webhooks[0].name, "h:8443");
    assert_eq!(config.receiver.unwrap().hooks[0].name, "/bin/a -x");
}

#[test]
fn two_webhooks_with_one_host_need_a_name() {
    let webhook = |line: &str| format!("[[notify]]\n[[notify.webhook]]\n{line}\n");
    let (a, b) = (webhook("url = \"https://h/one\""), webhook("url = \"https://h/two\""));
    assert_eq!(
        read(&format!("{a}{b}")).unwrap_err(),
        [
            "/etc/v.toml:5: the target in line 2 has the name \"h\", too; add name = \"NAME\" to one of them"
        ]
    );
    read(&format!("{a}{a}")).expect("one target in two rules");
    read(&format!("{a}{b}name = \"two\"\n")).unwrap();
    let upstream = "[receiver.upstream]\nurl = \"https://h/states\"\n";
    assert!(read(&format!("{a}{upstream}")).unwrap_err()[0].contains("add name ="));
}

#[test]
fn a_url_is_in_the_file_or_outside_of_it() {
    let webhook = |lines: &str| read(&format!("[[notify]]\n[[notify.webhook]]\n{lines}\n"));
    let name = |lines: &str| webhook(lines).unwrap().rules[0].webhooks[0].name.clone();
    assert_eq!(name("url = \"credential:chat\""), "credential:chat");
    assert_eq!(name("url_file = \"/etc/vipwatch/chat.url\""), "/etc/vipwatch/chat.url");
    let both = webhook("url = \"https://h/\"\nurl_file = \"/x\"").unwrap_err();
    assert!(both[0].contains("url or url_file, and not both"), "{both:?}");
    let neither = webhook("timeout = \"1s\"").unwrap_err();
    assert!(neither[0].contains("needs url = "), "{neither:?}");
    for invalid in ["https://u:s3cret w@h/", "h/s3cret", "ftp://h/s3cret", "https:///s3cret"] {
        let errors = webhook(&format!("url = {invalid:?}")).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("expected a URL") && !errors[0].contains("s3cret"),
            "{errors:?}"
        );
    }
}

#[test]
fn a_file_that_others_can_read_is_refused_if_a_url_has_more_than_a_host() {
    let load = |url: &str, mode| {
        let text = format!("[[notify]]\nwebhook = {{ url = \"{url}\" }}\n");
        load_with_mode(&text, mode).map(drop)
    };
    for url in ["https://h/a", "https://h/?a", "https://u@h/", "https://h?a", "http://[::1]:80/a"] {
        assert_eq!(
            load(url, 0o644).unwrap_err(),
            "FILE holds credentials, and every user can read it"
        );
        load(url, 0o640).unwrap();
    }
    for url in ["https://h", "https://h:8443/", "http://127.0.0.1:9000/", "credential:name"] {
        load(url, 0o644).unwrap();
    }
}

#[test]
fn a_message_shows_no_line_of_a_file_that_may_have_a_secret() {
    let text = "[[notify]]\nwebhook = { url = \"https://h/s3cret\", om = 1 }\n[node]\nlog = 7\n";
    for (mode, shown) in [(0o640, false), (0o644, true)] {
        let file = file_with_mode(text, mode);
        let programs = ProgramCheck::in_node(None);
        let error = Config::load_trusted(Some(file.path()), programs).unwrap_err();
        let ConfigError::Invalid(errors) = error else { panic!("{error}") };
        let text = errors.iter().map(SettingError::with_source_line).collect::<String>();
        assert!(text.contains("did you mean on?") && !text.contains("s3cret"), "{text}");
        assert_eq!(text.contains("| log = 7"), shown, "{text}");
    }
}

#[test]
fn two_targets_with_one_name_are_refused_with_both_lines() {
    let text = "[[notify]]\n[[notify.hook]]\nname = \"ops\"\nprogram = \"/bin/a\"\n\
                [[notify.webhook]]\nname = \"ops\"\nurl = \"http://h/\"\n\
                [[notify.hook]]\nname = \"announce\"\nprogram = \"/bin/b\"\n";
    let errors = read(text).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(errors[0].contains(":5:") && errors[0].contains("line 2"), "{}", errors[0]);
    assert!(errors[1].contains("announce"), "{}", errors[1]);
    let shared = text.replace("[[notify.webhook]]\nname = \"ops\"\nurl = \"http://h/\"\n", "");
    let shared = shared.split("[[notify.hook]]\nname = \"announce\"").next().unwrap().repeat(2);
    assert_eq!(read(&shared).unwrap().rules.len(), 2, "one target in two rules");
}

#[test]
fn settle_needs_deliver_latest_and_batch_and_retries_are_read() {
    let errors =
        read("[[notify]]\nhook = { program = \"/bin/a\", settle = \"2s\" }\n").unwrap_err();
    assert_eq!(errors, ["/etc/v.toml:2: settle: it needs deliver = \"latest\""]);
    let text = "[[notify]]\nhook = { program = \"/bin/a\", settle = \"2s\", deliver = \"latest\", \
                retries = 3, on = [\"primary\", \"removed\", \"finding\"] }\n\
                webhook = { url = \"http://h/\", batch = { max = 5 } }\n";
    let config = read(text).unwrap();
    let hook = &config.rules[0].hooks[0];
    assert_eq!((hook.settle, hook.retries, hook.on.len()), (Duration::from_secs(2), 3, 3));
    let batch = config.rules[0].webhooks[0].batch.unwrap();
    assert_eq!((batch.max, batch.wait), (5, Duration::from_millis(200)));
    let errors =
        read("[receiver]\nhook = { program = \"/bin/a\", on = \"removed\" }\n").unwrap_err();
    assert!(errors[0].contains("is not one of primary, backup, fault, unknown"), "{errors:?}");
}

#[test]
fn settings_that_need_a_restart_stay_in_force_after_a_reload() {
    let text = "[node]\nlisten = \"per-netns\"\nlog = \"json\"\naudit_every = \"7m\"\n";
    let before = Config::default();
    let new = Config::parse(Path::new("f"), text).unwrap();
    let in_force =
        before.with_reloaded(Config { hooks_at_once: 99, group: Some(7), ..new.clone() });
    let keep = (before.listen, before.log, before.group, before.hooks_at_once, before.keep);
    let kept =
        (in_force.listen, in_force.log, in_force.group, in_force.hooks_at_once, in_force.keep);
    assert_eq!(kept, keep);
    assert_eq!(in_force.audit_every, new.audit_every, "a reload applies this one");
}

#[test]
fn a_file_that_a_command_reads_is_named_in_its_settings() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vipwatch.toml");
    std::fs::File::create_new(&file).unwrap();
    let (config, errors) = Config::load_lenient(Some(&file)).unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(config.file.as_deref(), Some(file.as_path()));
}

#[test]
fn the_check_for_other_holders_is_on_unless_it_is_switched_off() {
    let check = |announce: &str| {
        let config = read(&format!("[[notify]]\nannounce = {announce}\n")).unwrap();
        config.rules[0].announce.unwrap().check.unwrap_or_default().as_secs()
    };
    assert_eq!(check("true"), 3);
    assert_eq!(check("{ count = 1 }"), 3);
    assert_eq!(check("{ check = \"10s\" }"), 10);
    assert_eq!(check("{ check = \"0s\" }"), 0);
    assert_eq!(check("{ check = \"1h\" }"), 60, "no check lasts longer than a minute");
}
