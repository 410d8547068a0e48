//! What is understood, and what is said about the rest.

use vipwatch_outlets::agent::AgentTrust;

use super::*;

fn read(text: &str) -> Result<Config, Vec<String>> {
    Config::read(Path::new("/etc/v.toml"), text)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

#[test]
fn the_example_is_a_configuration_and_its_defaults_are_ours() {
    let example = read(EXAMPLE).unwrap();
    let default = Config::default();
    assert_eq!(example.state_dir, default.state_dir);
    assert_eq!(example.socket, default.socket);
    assert_eq!(example.audit_every, default.audit_every);
    assert_eq!(example.hooks_at_once, default.hooks_at_once);
    assert_eq!(example.keep, default.keep);
    assert_eq!(example.places, default.places);
    assert_eq!((example.instances.len(), example.rules.len()), (1, 2));
    let found = &example.instances[0];
    assert!(example.rules[0].covers(found) && !example.rules[1].covers(found));
    assert_eq!(found.watched()[1].0, "eth1".parse().unwrap());
    let path = example.rules[0].state_file.as_ref().unwrap().path(found);
    assert_eq!(path, Path::new("/run/vipwatch/state/database"));
}

#[test]
fn the_configuration_id_of_keepalived_is_one_word() {
    let config = read("[find]\nconfig_id = \"left\"\n").unwrap();
    assert_eq!(config.places.config_id(), "left");
    assert!(!Config::default().places.config_id().contains('.'), "a host name has its domain");
    let said = read("[find]\nconfig_id = \"two words\"\n").unwrap_err();
    assert_eq!(said, ["/etc/v.toml:2: config_id: \"two words\" is not one word"]);
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_known_one() {
    let said = read("[node]\nsokcet = \"/x\"\n[histroy]\n[[outlet]]\nhoook = 1\n").unwrap_err();
    assert_eq!(
        said,
        [
            "/etc/v.toml:2: there is no key sokcet in node; did you mean socket?",
            "/etc/v.toml:3: there is no key histroy; did you mean history?",
            "/etc/v.toml:5: there is no key hoook in outlet; did you mean hook?",
        ]
    );
}

#[test]
fn every_fault_is_said_at_once_with_its_line() {
    let text = "[node]\nstate_dir = \"here\"\nhooks_at_once = 0\nlog = 7\n\
                [[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1/64 dev eth0\", \"x\"]\n\
                [[instance]]\nid = \"b/c\"\naddresses = [\"192.0.2.1\"]\n\
                [[outlet]]\nstate_file = \"/run/same\"\n\
                [[outlet]]\norigin = \"nova\"\nhook = { program = \"relative\" }\n\
                [[outlet]]\nwebhook = { url = \"ftp://x\" }\n[[outlet]]\n";
    let said = read(text).unwrap_err();
    for expected in [
        "2: state_dir: \"here\" is not an absolute path",
        "3: hooks_at_once is a number from 1 to 256",
        "4: log is a string, not a number",
        "7: 192.0.2.1/64: an IPv4 address has a prefix length of 0 to 32, not \"64\"",
        "7: \"x\": on which link?",
        "9: id: invalid character '/'",
        "12: state_file: \"/run/same\" is the same for every instance",
        "14: origin is \"neutron\"",
        "15: a hook needs program",
        "17: url: it begins with http:// or https://",
        "18: an outlet needs state_file",
    ] {
        let expected = format!("/etc/v.toml:{expected}");
        assert!(said.iter().any(|said| said.starts_with(&expected)), "{expected}: {said:#?}");
    }
}

#[test]
fn what_is_not_toml_is_named_with_its_line() {
    let said = read("[node]\nstate_dir = \n[find\n").unwrap_err();
    assert!(said[0].starts_with("/etc/v.toml:2: "), "{said:?}");
    assert!(said.iter().any(|said| said.starts_with("/etc/v.toml:3: ")), "{said:?}");
}

#[test]
fn two_instances_of_one_id_are_a_fault() {
    let one = "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1 dev eth0\"]\n";
    let said = read(&one.repeat(2)).unwrap_err();
    assert_eq!(said, ["/etc/v.toml:4: instance a is there already"]);
}

#[test]
fn a_name_cannot_lead_a_path_elsewhere() {
    let text = "[[instance]]\nid = \"a\"\naddresses = [\"192.0.2.1 dev eth0\"]\n\
                [[outlet]]\nstate_file = \"/run/x/{name}/{id}\"\n";
    let config = read(text).unwrap();
    let mut found = (*config.instances[0]).clone();
    Arc::make_mut(&mut found.vrrp).name = "../../etc".to_owned();
    let path = config.rules[0].state_file.as_ref().unwrap().path(&found);
    assert_eq!(path, Path::new("/run/x/_.._.._etc/a"));
}

#[test]
fn a_file_that_was_asked_for_must_be_there_and_the_usual_one_need_not() {
    assert!(matches!(Config::load(Some(Path::new("/no/such"))), Err(ConfigError::Read { .. })));
}

#[test]
fn credentials_are_not_sent_over_plain_http_to_another_host_unless_allowed() {
    let webhook = |url: &str, more: &str| {
        let headers = "headers = { Authorization = \"Bearer x\" }";
        read(&format!("[[outlet]]\n[[outlet.webhook]]\nurl = \"{url}\"\n{headers}\n{more}\n"))
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
    let upstream = read("[agent]\n[agent.upstream]\nurl = \"http://u:p@example.net/\"\n");
    assert!(upstream.unwrap_err()[0].contains("without encryption"));
    read("[[outlet]]\nwebhook = { url = \"http://example.net/\" }\n").unwrap();
}

#[test]
fn the_agent_is_trusted_by_its_user_and_any_agent_only_where_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    // Only root can give it away; otherwise it is this user's.
    let _ = std::os::unix::fs::chown(directory.path(), Some(4711), None);
    let owner = std::os::unix::fs::MetadataExt::uid(&directory.path().metadata().unwrap());
    let trust = |agent: &str| {
        let config =
            read(&format!("[[outlet]]\nagent = {agent}\n")).map_err(|faults| faults.join(" "));
        config.map(|config| config.rules[0].agent.as_ref().unwrap().trust)
    };
    let socket = directory.path().join("s").display().to_string();
    // Root's directory: the user `neutron` if there is one.
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
fn users_and_groups_may_report() {
    let config = read("[agent]\nallow = [\"root\", \"17\", \"@root\", \"@18\"]\n").unwrap();
    let allow = config.agent.unwrap().allow;
    assert_eq!((allow.users, allow.groups), (vec![0, 17], vec![0, 18]));
    let said = read("[agent]\nallow = [\"@no-such-group\"]\n").unwrap_err();
    assert!(said[0].contains("there is no group \"no-such-group\""), "{said:?}");
}

#[test]
fn places_that_a_node_cannot_use_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::File::create(&file).unwrap();
    let check = |text: &str| read(text).unwrap().check_places().map_err(|error| error.to_string());
    let below = check(&format!("[node]\nstate_dir = \"{}/x/y\"\n", file.display()));
    assert!(below.unwrap_err().contains("cannot use the directory"));
    let socket = check(&format!("[node]\nsocket = \"{}\"\n", file.display()));
    assert!(socket.unwrap_err().contains("is not a socket"));
    let long = check(&format!("[agent]\nsocket = \"/run/{}\"\n", "x".repeat(120)));
    assert!(long.unwrap_err().contains("cannot listen on"));
    let unused = directory.path().join("a/b");
    assert_eq!(
        check(&format!("[node]\nstate_dir = {unused:?}\nsocket = \"{0}/s\"\n", unused.display())),
        Ok(())
    );
    let same = read("[node]\nsocket = \"/run/s\"\n[agent]\nsocket = \"/run/s\"\n").unwrap_err();
    assert!(same[0].contains("agent.socket is node.socket"), "{same:?}");
}
