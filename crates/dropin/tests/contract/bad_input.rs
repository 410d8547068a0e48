//! Whatever is wrong with the command line has one clear message and its own exit code, and
//! leaves nothing behind.

use std::process::Output;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Release, Router};

use crate::{stage, subject};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Tries with changed arguments; expects this code, these words, and no trace.
fn refuses(code: i32, words: &[&str], change: impl FnOnce(&Router, &mut Vec<String>)) {
    let (_lab, router, agent) = stage(Release::V29);
    let output = router.attempt(&subject(), |arguments| change(&router, arguments));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} in {said:?}");
    }
    assert_eq!(said.matches("error:").count(), 1, "one message: {said}");
    assert!(!router.pid_file().exists(), "no pid file");
    assert_eq!(router.state(), None, "no state file");
    assert!(agent.words().is_empty(), "no word to the agent");
    assert_eq!(std::fs::read_dir(&router.pids).unwrap().count(), 0, "nothing half-made");
}

/// Replaces the value of `--option`.
fn set(arguments: &mut [String], option: &str, value: &str) {
    let at = arguments.iter().position(|argument| argument == option).unwrap();
    value.clone_into(&mut arguments[at + 1]);
}

#[test]
fn a_missing_option_is_named() {
    for option in [
        "--router_id",
        "--namespace",
        "--conf_dir",
        "--monitor_interface",
        "--monitor_cidr",
        "--pid_file",
    ] {
        refuses(2, &["missing option", option], |_, arguments| {
            let at = arguments.iter().position(|argument| argument == option).unwrap();
            arguments.drain(at..=at + 1);
        });
    }
}

#[test]
fn an_unknown_option_is_named() {
    refuses(2, &["unknown option --rooter_id", "--router_id"], |_, arguments| {
        arguments.push("--rooter_id=x".to_owned());
    });
}

#[test]
fn a_value_that_is_missing_is_named() {
    refuses(2, &["--user", "value"], |_, arguments| {
        arguments.push("--user".to_owned());
    });
}

#[test]
fn a_namespace_that_does_not_exist_is_named() {
    refuses(4, &["no-such-namespace", "ip netns list"], |_, arguments| {
        set(arguments, "--namespace", "no-such-namespace");
    });
}

#[test]
fn a_file_that_is_no_namespace_is_named() {
    std::fs::File::create("/run/netns/vw-not-a-namespace").unwrap();
    refuses(4, &["vw-not-a-namespace is not a network namespace"], |_, arguments| {
        set(arguments, "--namespace", "vw-not-a-namespace");
    });
}

#[test]
fn names_that_could_mean_something_else_are_refused() {
    for (option, value) in [
        ("--router_id", "../../etc"),
        ("--router_id", "a\nb"),
        ("--router_id", "a\r\nX-Neutron-State: primary"),
        ("--namespace", "../self/ns/net"),
        ("--monitor_interface", "a-name-that-is-too-long"),
        ("--monitor_interface", "a/b"),
    ] {
        refuses(2, &[option, "cannot be a name"], |_, arguments| {
            set(arguments, option, value);
        });
    }
}

#[test]
fn a_conf_dir_that_is_none_is_named() {
    refuses(4, &["--conf_dir", "No such file"], |router, arguments| {
        set(arguments, "--conf_dir", &router.conf_dir.join("missing").display().to_string());
    });
    refuses(4, &["is not a directory"], |_, arguments| {
        set(arguments, "--conf_dir", "/dev/null");
    });
    refuses(4, &["is a symbolic link"], |router, arguments| {
        let link = router.state_path.join("link");
        std::os::unix::fs::symlink(&router.conf_dir, &link).unwrap();
        set(arguments, "--conf_dir", &link.display().to_string());
    });
}

#[test]
fn a_directory_without_permission_is_named() {
    refuses(3, &["user 65534 may not write to --conf_dir"], |_, arguments| {
        set(arguments, "--user", "65534");
    });
    refuses(3, &["--pid_file", "Permission denied"], |router, arguments| {
        std::os::unix::fs::chown(&router.conf_dir, Some(65534), None).unwrap();
        std::fs::set_permissions(
            &router.state_path,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        set(arguments, "--user", "65534");
    });
}

#[test]
fn a_pid_file_that_cannot_be_written_is_named() {
    refuses(4, &["--pid_file", "No such file"], |router, arguments| {
        set(arguments, "--pid_file", &router.pids.join("missing/x.pid").display().to_string());
    });
}

#[test]
fn an_unknown_user_or_group_is_named() {
    refuses(4, &["unknown user \"no-such-user\""], |_, arguments| {
        set(arguments, "--user", "no-such-user");
    });
    refuses(4, &["unknown group \"no-such-group\""], |_, arguments| {
        set(arguments, "--group", "no-such-group");
    });
}

#[test]
fn a_socket_path_longer_than_the_kernel_allows_is_named() {
    refuses(2, &["the kernel allows 107", "shorten --state_path"], |_, arguments| {
        set(arguments, "--state_path", &format!("/tmp/{}", "x".repeat(100)));
    });
}

#[test]
fn a_config_file_that_anybody_may_write_is_refused() {
    refuses(3, &["may be written by others", "chmod go-w"], |router, arguments| {
        let path = router.state_path.join("open.conf");
        std::fs::File::create(&path).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .unwrap();
        arguments.extend(["--config-file".to_owned(), path.display().to_string()]);
    });
}

#[test]
fn a_config_file_of_a_stranger_is_refused() {
    refuses(3, &["belongs to user 65534", "chown root"], |router, arguments| {
        let path = router.state_path.join("strange.conf");
        std::fs::File::create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).expect("root, to give a file away");
        arguments.extend(["--config-file".to_owned(), path.display().to_string()]);
    });
}

#[test]
fn check_says_what_it_would_do_and_what_is_wrong_and_does_nothing() {
    let (_lab, router, agent) = stage(Release::V29);
    let check = || router.attempt(&subject(), |arguments| arguments.push("--check".to_owned()));
    let output = check();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output));
    for word in
        [router.id.as_str(), "169.254.0.1/24 on ha-", "keepalived-state-change", "primary", "ok"]
    {
        assert!(said.contains(word), "{word:?} in {said}");
    }
    assert!(!router.pid_file().exists() && router.state().is_none() && agent.words().is_empty());

    router.netns.ip(&format!("link del {}", router.link));
    drop(agent);
    let output = check();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("there is no link") && said.contains("the agent's socket"), "{said}");
}

#[test]
fn help_and_version_need_nothing() {
    for (option, word) in [
        ("--help", "--monitor_cidr"),
        ("-h", "Exit codes"),
        ("--version", "neutron-keepalived-state-change 0."),
    ] {
        let output = output_of(std::process::Command::new(subject()).arg(option));
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains(word));
    }
}
