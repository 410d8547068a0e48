//! Who is told over the web, and what becomes of those who could not be told.

use vipwatch_testkit::{Lab, stays, wait_for};

use crate::notify::{NO_VIP, VIP, program, read, wait_for_text};
use crate::server::Server;
use crate::{json, one, role, stage};

#[test]
fn a_webhook_is_posted_until_it_is_taken_and_given_up_if_it_never_will_be() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (busy, never) = (Server::new(&[503, 500]), Server::new(&[404]));
    place.configure(&format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{}\"\n[[outlet.webhook]]\nurl = \"{}\"\n",
        busy.url, never.url
    ));
    let _node = place.start();
    netns.ip(VIP);
    wait_for("it to be taken", || (busy.said().last()? == "2 primary").then_some(()));
    place.wait_for_log("it rejected the request with status 404");
    place.wait_for_log("it answered with status 500");
    assert!(!place.log().contains("secret"), "what may be secret is not logged");
    netns.ip(NO_VIP);
    wait_for("the next", || (never.said().last()? == "3 backup").then_some(()));
    wait_for("its latency", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["webhook"].as_i64().filter(|micros| *micros > 0)
    });
}

#[test]
fn a_webhook_gets_the_last_word_or_every_word_as_it_wants() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (latest, every) = (Server::new(&[503; 1000]), Server::new(&[503; 1000]));
    place.configure(&format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{}\"\n[[outlet.webhook]]\nurl = \"{}\"\n\
         deliver = \"every\"\n",
        latest.url, every.url
    ));
    let _node = place.start();
    for (words, expected) in [(VIP, "primary"), (NO_VIP, "backup"), (VIP, "primary")] {
        netns.ip(words);
        wait_for(expected, || (role(&place, "VI_1") == expected).then_some(()));
    }
    // Refused once more, so that no older word is under way when the servers begin to take.
    wait_for("the last word to be tried", || (latest.last_post()? == "4 primary").then_some(()));
    latest.take_all();
    every.take_all();
    let all = ["1 backup", "2 primary", "3 backup", "4 primary"];
    wait_for("every word", || (every.said() == all).then_some(()));
    wait_for("the last word", || (!latest.said().is_empty()).then_some(()));
    assert_eq!(latest.said(), ["4 primary"], "the words before it are out of date");
}

#[test]
fn what_was_not_told_before_a_restart_is_told_after_it_and_nothing_else_is() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[503; 100]);
    let said = lab.path().join("said");
    let hook =
        program(&lab.path().join("hook"), &format!("echo $VIPWATCH_TO >> {}", said.display()));
    place.configure(&format!(
        "[[outlet]]\nwebhook = {{ url = \"{}\" }}\nhook = {{ program = \"{}\" }}\n",
        server.url,
        hook.display()
    ));
    let node = place.start();
    netns.ip(VIP);
    wait_for_text(&said, "backup\nprimary");
    wait_for("it to have failed", || place.log().contains("status 503").then_some(()));
    node.kill();
    server.take_all();
    let node = place.start();
    wait_for("it to be told after all", || {
        (server.said().last()?.ends_with("primary")).then_some(())
    });
    // The program knew, and hears it again with the address: they are told together.
    wait_for("the stages to be known", || {
        let latencies = &json(&place, &["status"])["instances"][0]["latencies"];
        latencies["webhook"].as_i64()
    });
    assert!(node.stop().success());
    let (told, run) = (server.said().len(), read(&said));
    let node = place.start();
    netns.ip(NO_VIP);
    wait_for("the next change", || (server.said().last()?.ends_with("backup")).then_some(()));
    assert_eq!(server.said().len(), told + 1, "what was known is not told again");
    wait_for_text(&said, &format!("{}\nbackup", run.trim()));
    assert!(node.stop().success());
}

#[test]
fn reloading_ends_what_is_configured_no_more() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let (old, new) = (lab.path().join("old"), lab.path().join("new"));
    let server = Server::new(&[503; 1000]);
    place.configure(&format!(
        "[[outlet]]\nstate_file = \"{}/{{id}}\"\nwebhook = {{ url = \"{}\" }}\n",
        old.display(),
        server.url
    ));
    let node = place.start();
    wait_for_text(&old.join("VI_1/state"), "backup");
    wait_for("it to fail", || place.say(&["doctor"]).contains("webhook-not-told").then_some(()));
    place.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n", new.display()));
    node.reload();
    wait_for_text(&new.join("VI_1/state"), "backup");
    assert!(!old.join("VI_1/state").exists(), "nobody keeps it true any more");
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
    place.configure("");
    node.reload();
    let stages = json(&place, &["status"])["instances"][0]["stages"].clone();
    assert_eq!(stages.as_array().map(Vec::len), Some(0));
    // Nobody is left who would post.
    let left = server.answers.lock().unwrap().len();
    stays(std::time::Duration::from_millis(700), "silence", || {
        server.answers.lock().unwrap().len() == left
    });
}

#[test]
fn a_webhook_that_a_reload_corrects_is_told_what_it_missed() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[]);
    let webhook = |url: &str| format!("[[outlet]]\nwebhook = {{ url = \"{url}\" }}\n");
    place.configure(&webhook("http://127.0.0.1:1/nobody"));
    let node = place.start();
    netns.ip(VIP);
    wait_for("it to fail", || place.say(&["doctor"]).contains("webhook-not-told").then_some(()));
    wait_for("it to be primary", || (role(&place, "VI_1") == "primary").then_some(()));
    place.configure(&webhook(&server.url));
    node.reload();
    wait_for("what it missed", || (server.said().last()? == "2 primary").then_some(()));
}

#[test]
fn a_webhook_that_was_not_told_before_a_restart_is_told_although_another_was() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (quick, slow) = (Server::new(&[]), Server::shut(&[503; 1000]));
    let webhook = |server: &Server| {
        format!("[[outlet.webhook]]\nurl = \"{}\"\ntimeout = \"5m\"\n", server.url)
    };
    place.configure(&format!("[[outlet]]\n{}{}", webhook(&slow), webhook(&quick)));
    let node = place.start();
    netns.ip(VIP);
    wait_for("one to be told", || (quick.said().last()? == "2 primary").then_some(()));
    // A stop records everything that is known about deliveries.
    assert!(node.stop().success());
    slow.open();
    slow.take_all();
    let _node = place.start();
    wait_for("the other to be told", || slow.said().last()?.ends_with("primary").then_some(()));
}

#[test]
fn a_reload_that_changes_a_webhook_keeps_its_queue() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::shut(&[]);
    let webhook = |timeout: &str| {
        let url = &server.url;
        format!(
            "[[outlet]]\nwebhook = {{ url = \"{url}\", deliver = \"every\", timeout = \"{timeout}\" }}\n"
        )
    };
    place.configure(&webhook("5m"));
    let node = place.start();
    for (words, expected) in [(VIP, "primary"), (NO_VIP, "backup"), (VIP, "primary")] {
        netns.ip(words);
        wait_for(expected, || (role(&place, "VI_1") == expected).then_some(()));
    }
    place.configure(&webhook("4m"));
    node.reload();
    server.open();
    let all = ["1 backup", "2 primary", "3 backup", "4 primary"];
    wait_for("every change", || (server.said() == all).then_some(()));
}

#[test]
fn a_webhook_whose_address_changes_while_it_waits_is_told_at_the_new_address() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (old, new) = (Server::shut(&[]), Server::new(&[]));
    let webhook = |server: &Server| {
        format!("[[outlet]]\nwebhook = {{ url = \"{}\", timeout = \"5m\" }}\n", server.url)
    };
    place.configure(&webhook(&old));
    let node = place.start();
    netns.ip(VIP);
    wait_for("it to be primary", || (role(&place, "VI_1") == "primary").then_some(()));
    place.configure(&webhook(&new));
    node.reload();
    wait_for("the last change", || (new.said().last()? == "2 primary").then_some(()));
}

#[test]
fn two_webhooks_with_one_address_and_different_headers_are_both_told() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[]);
    let webhook = |tenant: &str| {
        let url = &server.url;
        format!("[[outlet.webhook]]\nurl = \"{url}\"\nheaders = {{ X-Tenant = \"{tenant}\" }}\n")
    };
    place.configure(&format!("[[outlet]]\n{}{}", webhook("a"), webhook("b")));
    let _node = place.start();
    let told = |expected: &str| {
        let count = || server.said().iter().filter(|said| *said == expected).count();
        wait_for(expected, || (count() == 2).then_some(()));
    };
    told("1 backup");
    netns.ip(VIP);
    told("2 primary");
}

#[test]
fn a_webhook_that_is_removed_and_added_again_is_told_what_it_missed() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let server = Server::new(&[503; 1000]);
    let webhook = format!("[[outlet]]\nwebhook = {{ url = \"{}\" }}\n", server.url);
    place.configure(&webhook);
    let node = place.start();
    wait_for("it to fail", || place.say(&["doctor"]).contains("webhook-not-told").then_some(()));
    // No outlet is left.
    place.configure("");
    node.reload();
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
    server.take_all();
    place.configure(&webhook);
    node.reload();
    wait_for("what it missed", || (server.said().last()? == "1 backup").then_some(()));
}

#[test]
fn a_webhook_is_not_told_again_because_another_gave_up_an_earlier_change() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let (rejects, takes) = (Server::new(&[404]), Server::new(&[]));
    place.configure(&format!(
        "[[outlet]]\n[[outlet.webhook]]\nurl = \"{}\"\non = \"primary\"\n\
         [[outlet.webhook]]\nurl = \"{}\"\n",
        rejects.url, takes.url
    ));
    let node = place.start();
    netns.ip(VIP);
    place.wait_for_log("it rejected the request with status 404");
    wait_for("the change", || (takes.said().last()? == "2 primary").then_some(()));
    netns.ip(NO_VIP);
    wait_for("the next change", || (takes.said().last()? == "3 backup").then_some(()));
    // A stop records everything that is known about deliveries.
    assert!(node.stop().success());
    let told = takes.said().len();
    let _node = place.start();
    netns.ip(VIP);
    wait_for("the last change", || takes.said().last()?.ends_with("primary").then_some(()));
    assert_eq!(takes.said().len(), told + 1, "{:?}", takes.said());
}
