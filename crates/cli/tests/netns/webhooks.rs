// SPDX-License-Identifier: Apache-2.0
//! Webhooks: retries, restarts, reloads, and deliveries that fail.

use vipwatch_testkit::{Lab, run, stays, wait_for};

use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, query_json, read, role, vi_1_conf, wait_for_content,
    write_hook,
};

#[test]
fn a_webhook_is_retried_after_a_server_error_and_given_up_after_a_404() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (busy, rejecting) = (HttpServer::new(&[503, 500]), HttpServer::new(&[404]));
    fixture.configure(&format!(
        "[[notify]]\n[[notify.webhook]]\nurl = \"{}\"\n[[notify.webhook]]\nurl = \"{}\"\n",
        busy.url, rejecting.url
    ));
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the delivery", || (busy.accepted().last()? == "primary").then_some(()));
    fixture.wait_for_log("the server rejected the request with status 404");
    fixture.wait_for_log("the server answered with status 500");
    assert!(!fixture.log().contains("secret"), "the query part of the URL is not logged");
    netns.ip(REMOVE_VIP);
    wait_for("the next change", || (rejecting.accepted().last()? == "backup").then_some(()));
    wait_for("the latency", || {
        let latencies = &query_json(&fixture, &["status"])["instances"][0]["latencies"];
        latencies["webhook"].as_i64().filter(|micros| *micros > 0)
    });
}

#[test]
fn a_webhook_gets_the_latest_change_or_every_change_as_configured() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (latest, every) = (HttpServer::new(&[503; 1000]), HttpServer::new(&[503; 1000]));
    fixture.configure(&format!(
        "[[notify]]\n[[notify.webhook]]\nurl = \"{}\"\n[[notify.webhook]]\nurl = \"{}\"\n\
         deliver = \"every\"\n",
        latest.url, every.url
    ));
    let _node = fixture.start();
    for (args, expected) in [(ADD_VIP, "primary"), (REMOVE_VIP, "backup"), (ADD_VIP, "primary")] {
        netns.ip(args);
        wait_for(expected, || (role(&fixture, "VI_1") == expected).then_some(()));
    }
    // The latest change was refused once, so no older one is in transit when the servers begin to accept.
    let seq = query_json(&fixture, &["status"])["instances"][0]["seq"].as_i64();
    wait_for("the latest change to be tried", || (latest.last_seq() == seq).then_some(()));
    latest.accept_all();
    every.accept_all();
    let all = ["backup", "primary", "backup", "primary"];
    wait_for("every change", || (every.accepted() == all).then_some(()));
    wait_for("the latest change", || (!latest.accepted().is_empty()).then_some(()));
    assert_eq!(latest.accepted(), ["primary"], "earlier changes are superseded");
}

#[test]
fn a_pending_change_is_delivered_after_a_kill_and_not_repeated_after_a_stop() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[503; 100]);
    let hook_output = lab.path().join("hook-output");
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!("echo $VIPWATCH_TO >> {}", hook_output.display()),
    );
    fixture.configure(&format!(
        "[[notify]]\nwebhook = {{ url = \"{}\" }}\nhook = {{ program = \"{}\" }}\n",
        server.url,
        hook.display()
    ));
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_content(&hook_output, "backup\nprimary");
    wait_for("the failed delivery", || fixture.log().contains("status 503").then_some(()));
    node.kill();
    server.accept_all();
    let node = fixture.start();
    wait_for("the delivery after the restart", || {
        (server.accepted().last()?.ends_with("primary")).then_some(())
    });
    // The killed process may not have stored that the hook has run: then it runs again. This test waits until the
    // conclusions of both targets are stored.
    wait_for("the stored deliveries", || {
        let query = "SELECT count(*) FROM delivery JOIN role USING (instance) WHERE delivery.seq >= role.seq";
        let mut sqlite = std::process::Command::new("sqlite3");
        let count = run(sqlite.arg(fixture.state_dir().join("history.sqlite")).arg(query));
        (count.trim() == "2").then_some(())
    });
    assert!(node.stop().success());
    let (delivered, hook_runs) = (server.accepted().len(), read(&hook_output));
    let node = fixture.start();
    netns.ip(REMOVE_VIP);
    wait_for("the next change", || (server.accepted().last()?.ends_with("backup")).then_some(()));
    assert_eq!(server.accepted().len(), delivered + 1, "a delivered change is not repeated");
    wait_for_content(&hook_output, &format!("{}\nbackup", hook_runs.trim()));
    assert!(node.stop().success());
}

#[test]
fn a_reload_ends_deliveries_to_removed_targets() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (old, new) = (lab.path().join("old"), lab.path().join("new"));
    let server = HttpServer::new(&[503; 1000]);
    fixture.configure(&format!(
        "[[notify]]\nstate_file = \"{}/{{id}}\"\nwebhook = {{ url = \"{}\" }}\n",
        old.display(),
        server.url
    ));
    let node = fixture.start();
    wait_for_content(&old.join("VI_1/state"), "backup");
    wait_for("the failure to be a finding", || {
        fixture.run_text(&["doctor"]).contains("webhook-failed").then_some(())
    });
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", new.display()));
    node.reload();
    wait_for_content(&new.join("VI_1/state"), "backup");
    assert!(!old.join("VI_1/state").exists(), "the state file of a removed rule is removed");
    assert_eq!(
        fixture.run(&["doctor"]).status.code(),
        Some(0),
        "{}",
        fixture.run_text(&["doctor"])
    );
    fixture.configure("");
    node.reload();
    let stages = query_json(&fixture, &["status"])["instances"][0]["stages"].clone();
    assert_eq!(stages.as_array().map(Vec::len), Some(0));
    // No target is left, so the server gets no request.
    let left = server.statuses_left();
    stays(std::time::Duration::from_millis(700), "no request", || server.statuses_left() == left);
}

#[test]
fn a_webhook_whose_url_is_corrected_by_a_reload_gets_the_pending_change() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    let webhook = |url: &str| format!("[[notify]]\nwebhook = {{ url = \"{url}\" }}\n");
    fixture.configure(&webhook("http://127.0.0.1:1/no-server"));
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the failure to be a finding", || {
        fixture.run_text(&["doctor"]).contains("webhook-failed").then_some(())
    });
    wait_for("the primary role", || (role(&fixture, "VI_1") == "primary").then_some(()));
    fixture.configure(&webhook(&server.url));
    node.reload();
    wait_for("the pending change", || (server.accepted().last()? == "primary").then_some(()));
}

#[test]
fn a_pending_webhook_is_delivered_after_a_restart_although_another_was_delivered() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (quick, slow) = (HttpServer::new(&[]), HttpServer::paused(&[503; 1000]));
    let webhook = |server: &HttpServer| {
        format!("[[notify.webhook]]\nurl = \"{}\"\ntimeout = \"5m\"\n", server.url)
    };
    fixture.configure(&format!("[[notify]]\n{}{}", webhook(&slow), webhook(&quick)));
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the delivery to the quick server", || {
        (quick.accepted().last()? == "primary").then_some(())
    });
    // A stop records the outcome of all deliveries.
    assert!(node.stop().success());
    slow.resume();
    slow.accept_all();
    let _node = fixture.start();
    wait_for("the delivery to the slow server", || {
        slow.accepted().last()?.ends_with("primary").then_some(())
    });
}

#[test]
fn a_reload_that_changes_a_webhook_keeps_its_queue() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::paused(&[]);
    let webhook = |timeout: &str| {
        let url = &server.url;
        format!(
            "[[notify]]\nwebhook = {{ url = \"{url}\", deliver = \"every\", timeout = \"{timeout}\" }}\n"
        )
    };
    fixture.configure(&webhook("5m"));
    let node = fixture.start();
    for (args, expected) in [(ADD_VIP, "primary"), (REMOVE_VIP, "backup"), (ADD_VIP, "primary")] {
        netns.ip(args);
        wait_for(expected, || (role(&fixture, "VI_1") == expected).then_some(()));
    }
    fixture.configure(&webhook("4m"));
    node.reload();
    server.resume();
    let all = ["backup", "primary", "backup", "primary"];
    wait_for("every change", || (server.accepted() == all).then_some(()));
}

#[test]
fn a_pending_change_is_delivered_to_the_url_that_a_reload_has_set() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (old, new) = (HttpServer::paused(&[]), HttpServer::new(&[]));
    let webhook = |server: &HttpServer| {
        format!("[[notify]]\nwebhook = {{ url = \"{}\", timeout = \"5m\" }}\n", server.url)
    };
    fixture.configure(&webhook(&old));
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the primary role", || (role(&fixture, "VI_1") == "primary").then_some(()));
    fixture.configure(&webhook(&new));
    node.reload();
    wait_for("the last change", || (new.accepted().last()? == "primary").then_some(()));
}

#[test]
fn two_webhooks_with_the_same_url_and_different_headers_both_get_each_change() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    let webhook = |tenant: &str| {
        let url = &server.url;
        format!(
            "[[notify.webhook]]\nname = \"{tenant}\"\nurl = \"{url}\"\n\
             headers = {{ X-Tenant = \"{tenant}\" }}\n"
        )
    };
    fixture.configure(&format!("[[notify]]\n{}{}", webhook("a"), webhook("b")));
    let _node = fixture.start();
    let wait_for_both = |expected: &str| {
        let count = || server.accepted().iter().filter(|change| *change == expected).count();
        wait_for(expected, || (count() == 2).then_some(()));
    };
    wait_for_both("backup");
    netns.ip(ADD_VIP);
    wait_for_both("primary");
}

#[test]
fn a_webhook_that_is_removed_and_added_again_gets_the_pending_change() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[503; 1000]);
    let webhook = format!("[[notify]]\nwebhook = {{ url = \"{}\" }}\n", server.url);
    fixture.configure(&webhook);
    let node = fixture.start();
    wait_for("the failure to be a finding", || {
        fixture.run_text(&["doctor"]).contains("webhook-failed").then_some(())
    });
    // No rule is left.
    fixture.configure("");
    node.reload();
    assert_eq!(
        fixture.run(&["doctor"]).status.code(),
        Some(0),
        "{}",
        fixture.run_text(&["doctor"])
    );
    server.accept_all();
    fixture.configure(&webhook);
    node.reload();
    wait_for("the pending change", || (server.accepted().last()? == "backup").then_some(()));
}

#[test]
fn a_delivered_change_is_not_repeated_when_another_webhook_gave_up_an_earlier_one() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (rejecting, accepting) = (HttpServer::new(&[404]), HttpServer::new(&[]));
    fixture.configure(&format!(
        "[[notify]]\n[[notify.webhook]]\nurl = \"{}\"\non = \"primary\"\n\
         [[notify.webhook]]\nurl = \"{}\"\n",
        rejecting.url, accepting.url
    ));
    let node = fixture.start();
    netns.ip(ADD_VIP);
    fixture.wait_for_log("the server rejected the request with status 404");
    wait_for("the change", || (accepting.accepted().last()? == "primary").then_some(()));
    netns.ip(REMOVE_VIP);
    wait_for("the next change", || (accepting.accepted().last()? == "backup").then_some(()));
    // A stop records the outcome of all deliveries.
    assert!(node.stop().success());
    let delivered = accepting.accepted().len();
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the last change", || accepting.accepted().last()?.ends_with("primary").then_some(()));
    assert_eq!(accepting.accepted().len(), delivered + 1, "{:?}", accepting.accepted());
}
