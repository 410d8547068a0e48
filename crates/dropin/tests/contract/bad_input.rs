// SPDX-License-Identifier: Apache-2.0
//! Invalid command lines: each gives one message and its own exit code, and leaves no file behind.

use std::process::Output;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Release, Router, run};

use crate::{fixture, subject};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts the program with changed arguments. It must exit with `code`, print a message that contains all `texts`, and
/// change nothing.
fn refuses(code: i32, texts: &[&str], change: impl FnOnce(&Router, &mut Vec<String>)) {
    let (_lab, router, agent) = fixture(Release::V29);
    let output = router.attempt(&subject(), |arguments| change(&router, arguments));
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{text:?} in {stderr:?}");
    }
    assert_eq!(stderr.matches("error:").count(), 1, "one message: {stderr}");
    assert!(!router.pid_file().exists(), "no pid file");
    assert_eq!(router.state(), None, "no state file");
    assert!(agent.words().is_empty(), "no request to the agent");
    assert_eq!(std::fs::read_dir(&router.pids).unwrap().count(), 0, "no temporary file");
}

/// Replaces the value of `--option`.
fn set(arguments: &mut [String], option: &str, value: &str) {
    let at = arguments.iter().position(|argument| argument == option).unwrap();
    value.clone_into(&mut arguments[at + 1]);
}

#[test]
fn a_missing_option_is_named_in_the_message() {
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
fn all_missing_options_are_named_in_one_message() {
    let names = ["--router_id", "--conf_dir", "--monitor_cidr", "--pid_file"];
    let expected = format!("missing options {}", names.join(", "));
    refuses(2, &[&expected], |_, arguments| {
        for option in names {
            let at = arguments.iter().position(|argument| argument == option).unwrap();
            arguments.drain(at..=at + 1);
        }
    });
}

#[test]
fn an_unknown_option_is_named_in_the_message() {
    refuses(2, &["unknown option --rooter_id", "--router_id"], |_, arguments| {
        arguments.push("--rooter_id=x".to_owned());
    });
}

#[test]
fn an_option_without_its_value_is_named_in_the_message() {
    refuses(2, &["--user", "value"], |_, arguments| {
        arguments.push("--user".to_owned());
    });
}

#[test]
fn a_namespace_that_does_not_exist_is_named_in_the_message() {
    refuses(4, &["no-such-namespace", "ip netns list"], |_, arguments| {
        set(arguments, "--namespace", "no-such-namespace");
    });
}

#[test]
fn a_file_that_is_not_a_namespace_is_named_in_the_message() {
    std::fs::File::create("/run/netns/vw-not-a-namespace").unwrap();
    refuses(4, &["vw-not-a-namespace is not a network namespace"], |_, arguments| {
        set(arguments, "--namespace", "vw-not-a-namespace");
    });
}

#[test]
fn names_with_invalid_characters_or_length_are_refused() {
    for (option, value) in [
        ("--router_id", "../../etc"),
        ("--router_id", "a\nb"),
        ("--router_id", "a\r\nX-Neutron-State: primary"),
        ("--namespace", "../self/ns/net"),
        ("--monitor_interface", "a-name-that-is-too-long"),
        ("--monitor_interface", "a/b"),
    ] {
        refuses(2, &["invalid name", option], |_, arguments| {
            set(arguments, option, value);
        });
    }
}

#[test]
fn an_invalid_conf_dir_is_named_in_the_message() {
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
fn a_directory_without_permission_is_named_in_the_message() {
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
fn a_pid_file_that_cannot_be_written_is_named_in_the_message() {
    refuses(4, &["--pid_file", "No such file"], |router, arguments| {
        set(arguments, "--pid_file", &router.pids.join("missing/x.pid").display().to_string());
    });
}

#[test]
fn an_unknown_user_or_group_is_named_in_the_message() {
    refuses(4, &["unknown user \"no-such-user\""], |_, arguments| {
        set(arguments, "--user", "no-such-user");
    });
    refuses(4, &["unknown group \"no-such-group\""], |_, arguments| {
        set(arguments, "--group", "no-such-group");
    });
}

#[test]
fn a_socket_path_longer_than_the_kernel_allows_is_an_error() {
    refuses(2, &["the kernel allows 107", "shorten --state_path"], |_, arguments| {
        set(arguments, "--state_path", &format!("/tmp/{}", "x".repeat(100)));
    });
}

#[test]
fn a_config_file_that_other_users_can_write_is_refused() {
    refuses(3, &["is writable by other users", "chmod go-w"], |router, arguments| {
        let path = router.state_path.join("writable.conf");
        std::fs::File::create(&path).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .unwrap();
        arguments.extend(["--config-file".to_owned(), path.display().to_string()]);
    });
}

#[test]
fn a_config_file_of_another_user_is_refused() {
    refuses(3, &["belongs to user 65534", "chown root"], |router, arguments| {
        let path = router.state_path.join("foreign.conf");
        std::fs::File::create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None)
            .expect("changing the owner of a file needs root");
        arguments.extend(["--config-file".to_owned(), path.display().to_string()]);
    });
}

#[test]
fn check_prints_settings_and_problems_and_changes_nothing() {
    let (_lab, router, agent) = fixture(Release::V29);
    let check = || router.attempt(&subject(), |arguments| arguments.push("--check".to_owned()));
    let output = check();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", stderr(&output));
    for text in
        [router.id.as_str(), "169.254.0.1/24 on ha-", "keepalived-state-change", "primary", "ok"]
    {
        assert!(stdout.contains(text), "{text:?} in {stdout}");
    }
    assert!(!router.pid_file().exists() && router.state().is_none() && agent.words().is_empty());

    router.netns.ip(&format!("link del {}", router.link));
    drop(agent);
    let output = check();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout.contains("there is no link") && stdout.contains("the agent's socket"),
        "{stdout}"
    );
}

#[test]
fn check_prints_the_current_state_and_an_address_with_another_prefix_length() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let check = || {
        let output = router.attempt(&subject(), |arguments| arguments.push("--check".to_owned()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let is_state = |text: &str, state: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("state now"));
        lines.next().is_some_and(|found| found.trim() == state)
    };
    let text = check();
    assert!(is_state(&text, "backup") && text.ends_with("ok\n"), "{text}");
    router.take_vip();
    let text = check();
    assert!(is_state(&text, "primary") && text.ends_with("\nok\n"), "{text}");
    router.drop_vip();
    router.netns.ip(&format!("addr add 169.254.0.1/32 dev {}", router.link));
    let text = check();
    let problem = format!("problem: {} holds 169.254.0.1/32, and --monitor_cidr is", router.link);
    assert!(is_state(&text, "backup") && text.contains(&problem), "{text}");
    router.take_vip();
    let text = check();
    assert!(is_state(&text, "primary") && !text.contains("problem"), "both are held: {text}");
}

#[test]
fn help_and_version_need_no_other_option() {
    for (option, text) in [
        ("--help", "--monitor_cidr"),
        ("-h", "Exit codes"),
        ("--version", "neutron-keepalived-state-change 0."),
    ] {
        let output = output_of(std::process::Command::new(subject()).arg(option));
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains(text));
    }
}

/// The agent's user may own the directory of the configuration, and root reads it at the start of every monitor.
#[test]
fn a_configuration_file_that_is_a_pipe_or_huge_does_not_delay_the_start() {
    let (lab, router, _agent) = fixture(Release::V29);
    let directory = lab.path().join("config");
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("x.conf");
    for (make, reason) in [
        ("rm -f \"$0\"; mkfifo -m 0644 \"$0\"", "it is not a regular file"),
        ("rm -f \"$0\"; truncate -s 1T \"$0\"; chmod 0644 \"$0\"", "it has more than"),
    ] {
        run(std::process::Command::new("sh").args(["-c", make]).arg(&file));
        for option in [
            format!("--config-file={}", file.display()),
            format!("--config-dir={}", directory.display()),
        ] {
            let output = router.attempt(&subject(), |arguments| arguments.push(option.clone()));
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(4), "{option}: {stderr}");
            assert!(stderr.contains(reason), "{option}: {stderr}");
        }
    }
}
