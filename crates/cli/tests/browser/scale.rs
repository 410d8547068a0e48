// SPDX-License-Identifier: Apache-2.0
//! 5,000 instances on the page. The times are reported and not judged: a test does not know what else the machine does.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vipwatch_testkit::Lab;

use crate::support::{Page, instance, node_with_instances, web_address, write};

const INSTANCES: usize = 5000;

/// Maximum time for the node to read the configuration on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Collects tasks that hold up the page for more than 50 ms, from the beginning of the page on.
const RECORD_LONG_TASKS: &str = "window.longTasks = []; new PerformanceObserver((list) => { \
    for (const entry of list.getEntries()) window.longTasks.push(entry.duration); \
    }).observe({type: 'longtask', buffered: true});";

/// Scrolls for 300 frames and answers with the time of each.
const SCROLL: &str = "const done = arguments[1]; const frames = []; let last = performance.now(); \
    function step(at) { frames.push(at - last); last = at; scrollBy(0, 300); \
    if (frames.length < 300) requestAnimationFrame(step); else done(frames.slice(1)); } requestAnimationFrame(step);";

fn address(number: usize) -> String {
    format!("10.{}.{}.1/32", number / 250, number % 250)
}

/// Numbers in ascending order.
fn ascending(list: &Value) -> Vec<f64> {
    let mut all: Vec<f64> = list.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The longest task since the last call, in milliseconds; 0 if none took more than 50.
fn longest_task(page: &Page) -> f64 {
    let tasks = page.browser.run("return window.longTasks.splice(0)");
    ascending(&tasks).last().copied().unwrap_or(0.0)
}

#[test]
fn five_thousand_instances_can_be_scrolled_searched_and_fail_over_at_once() {
    let lab = Lab::new();
    let conf: Vec<String> = (0..INSTANCES)
        .map(|number| {
            instance(&format!("router-{number}"), number % 255 + 1, "eth0", &address(number))
        })
        .collect();
    let (netns, fixture) = node_with_instances(&lab, &conf.concat());
    let _node = fixture.start_within(START_TIMEOUT);
    let page = Page::open(web_address(&fixture), "#/?sort=id");
    page.wait_for_text(".total", "5,000 instances");
    page.browser.run_at_load(RECORD_LONG_TASKS);
    page.browser.reload();
    page.wait_for_text(".total", "5,000 instances");
    page.wait_for_text("#link-text", "live");
    let loading = longest_task(&page);
    let frames = ascending(&page.browser.run_async(SCROLL, &Value::Null));
    let scrolling = longest_task(&page);
    page.browser.run("scrollTo(0, document.documentElement.scrollHeight)");
    let is_shown = "[...document.querySelectorAll('.rows .c-id a')].some((one) => one.innerText === 'router-4999')";
    page.wait_for("the last instance", is_shown);
    let rows = page.browser.count(".rows .grid-row");
    assert!(rows < 100, "only rows on the screen exist: {rows}");
    // All instances become primary: 5,000 transitions within a short time.
    let editor = netns.editor();
    let link = editor.link("eth0");
    page.mark();
    for number in 0..INSTANCES {
        editor.add(link, address(number).parse().unwrap());
    }
    page.wait_for_text(".tile[data-role=primary] .tile-number", "5,000");
    let failing_over = longest_task(&page);
    page.visit("#/history");
    // Of 10,000 transitions with the first roles, the page keeps about a half.
    page.wait_for(
        "a bounded list",
        "/^5,\\d{3} transitions .the newest.$/.test(document.querySelector('.total').innerText)",
    );
    page.visit("#/?q=router-4321");
    page.wait_for_text(".total", "1 of 5,000 instances");
    page.wait_for_text(".rows .c-role", "primary");
    page.check_mark();
    page.close();
    let report = format!(
        "{{\"frame_p95_ms\":{:.1},\"longest_task_ms\":{scrolling:.1},\"load_longest_task_ms\":{loading:.1},\
         \"failover_longest_task_ms\":{failing_over:.1}}}",
        frames[frames.len() * 95 / 100]
    );
    println!("{report}");
    if let Some(file) = std::env::var_os("VIPWATCH_BROWSER_REPORT") {
        write(Path::new(&file), &format!("{report}\n"));
    }
}
