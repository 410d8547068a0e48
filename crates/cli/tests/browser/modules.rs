// SPDX-License-Identifier: Apache-2.0
//! Modules of the page with input that a node does not send on request: clocks that jump, a page that stays open for days,
//! streams that arrive in arbitrary parts.

use serde_json::{Value, json};
use vipwatch_testkit::Lab;

use crate::support::{Page, instance, node_with_instances, web_address};

/// Runs the body of an asynchronous function on the page with a module of the dashboard as `it`; returns its result.
#[track_caller]
pub(crate) fn with_module(page: &Page, module: &str, body: &str) -> Value {
    let script = format!(
        "const done = arguments[1]; import('/assets/{module}').then(async (it) => {{ {body} }})\
         .then(done, (error) => done(String(error)))"
    );
    page.browser.run_async(&script, &Value::Null)
}

#[test]
fn ages_follow_the_clock_of_the_node_and_are_never_negative() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    // A year, in milliseconds: the clock of this machine is wrong by this much.
    let ages = with_module(
        &page,
        "clock.js",
        "const year = 31536e6; const start = it.now(); const ages = [];\
         const near = (value, expected) => Math.abs(value - expected) < 5000;\
         const real = Date.now; Date.now = () => real() + year; ages.push(near(it.now(), start)); Date.now = real;\
         it.setServerTime(start + year); ages.push(near(it.age(start), year));\
         it.setServerTime(start - year); ages.push(it.age(start) === 0);\
         it.noticeEventTime(start); ages.push(near(it.now(), start)); ages.push(it.age(start + year) === 0);\
         it.setServerTime(Math.floor(it.now() / 1000) * 1000); ages.push(it.now() >= start);\
         return ages;",
    );
    assert_eq!(ages, json!([true, true, true, true, true, true]));
    page.close();
}

#[test]
fn a_page_that_stays_open_keeps_a_bounded_list_with_each_transition_once() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    let found = with_module(
        &page,
        "transition-log.js",
        "const log = new it.TransitionLog(); const item = (seq) => ({type: 'transition', seq, at: '2026-01-01T00:00:00Z', latencies: {}});\
         for (let seq = 0; seq < 100000; seq += 1) log.add('a', item(seq));\
         const bounded = log.items.length <= 1.1 * it.MAX_TRANSITIONS && log.items.at(-1).seq === 99999;\
         log.merge('a', [item(99998), item(100001)]); log.add('a', item(100000)); log.add('a', item(99999));\
         const seqs = log.items.map((one) => one.seq); const ordered = seqs.every((seq, index) => index === 0 || seq === seqs[index - 1] + 1);\
         log.add('b', item(1)); return [bounded, ordered, log.items.length];",
    );
    assert_eq!(found, json!([true, true, 1]));
    let found = with_module(
        &page,
        "sse.js",
        "const text = 'id: a-1\\n\\n: comment\\nid: a-2\\nevent: transition\\ndata: {\"x\":1}\\n\\nevent: reset\\r\\ndata: {}\\r\\n\\r\\nid: a-3\\nignored\\n\\n';\
         const whole = JSON.stringify(new it.EventParser().push(text)); const differing = [];\
         for (let cut = 0; cut <= text.length; cut += 1) { const parser = new it.EventParser();\
         const parts = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];\
         if (JSON.stringify(parts) !== whole) differing.push(cut); }\
         return [JSON.parse(whole).map((one) => one.id), differing];",
    );
    assert_eq!(found, json!([["a-1", "a-2", null, "a-3"], []]));
    page.close();
}

#[test]
fn a_clock_that_is_set_back_does_not_change_the_order_of_transitions() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    let rows = with_module(
        &page,
        "history-rows.js",
        "const item = (seq, minute) => ({type: 'transition', seq, atMs: Date.UTC(2026, 0, 1, 0, minute)});\
         const gap = (minute) => ({type: 'gap', from: `gap at ${minute}`, until: `2026-01-01T00:${minute}:00Z`});\
         return it.newestFirst([item(1, 10), item(2, 30), item(3, 20)], [gap('15'), gap('40')]).map((row) => row.seq ?? row.from);",
    );
    assert_eq!(rows, json!(["gap at 40", 3, 2, "gap at 15", 1]));
    page.close();
}

#[test]
fn failures_of_an_instance_change_as_on_the_node() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".total", "1 instance");
    let failures = with_module(
        &page,
        "store.js",
        "const item = it.store.instances.get('VI_1'); const found = []; let seq = item.seq + 1000;\
         const send = (name, data) => { seq += 1; it.receive({kind: 'events', items: [{name, data: {id: 'VI_1', seq,\
         epoch: it.store.status.epoch, at: item.since, ...data}}]}); found.push(item.failures.length); };\
         const delivery = {source: 'node', stage: 'hook', target: 'a', notification: 1, finding: null, micros: null};\
         send('delivery', {...delivery, finding: 'link-fault', error: 'x'}); send('delivery', {...delivery, error: 'x'});\
         send('transition', {to: 'backup', addresses: [], latencies: {}});\
         send('delivery', {...delivery, finding: 'link-fault', error: null}); send('delivery', {...delivery, error: null});\
         return found;",
    );
    assert_eq!(failures, json!([0, 1, 1, 1, 0]));
    page.close();
}
