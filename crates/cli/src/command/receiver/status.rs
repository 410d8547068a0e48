//! `vipwatch receiver status`: prints the reports, the settled states and the deliveries.

use std::fmt::Write;

use serde_json::{Value, json};
use vipwatch_core::ErrorChain;
use vipwatch_node::Config;
use vipwatch_node::config::SOCKET;
use vipwatch_node::query_client::{self, QueryError};

use super::super::{each, text};
use crate::args::{Format, RECEIVER_SOCKET, ReceiverStatusArgs};
use crate::failure::{CommandError, ExitStatus};
use crate::output;

pub(super) fn run(options: &ReceiverStatusArgs) -> Result<(), CommandError> {
    let answer = ask(options)?;
    match options.format {
        _ if options.metrics => output::print(&metrics(&answer)),
        Format::Json => output::json(&answer),
        Format::Table => output::print(&page(&answer)),
    }
    Ok(())
}

/// Queries the receiver process, or the node if no receiver process is listening.
fn ask(options: &ReceiverStatusArgs) -> Result<Value, CommandError> {
    let question = json!({ "ask": "receiver" });
    let answer = match &options.status_socket {
        Some(socket) => query_client::ask(socket, &question),
        None => match query_client::ask(RECEIVER_SOCKET.as_ref(), &question) {
            Err(QueryError::NotListening(_)) => {
                // If the file cannot be read, the default socket is used.
                let configured = Config::load_lenient(options.config.as_deref());
                let configured = configured.map(|(config, _)| config.socket);
                let default = || configured.unwrap_or_else(|_| SOCKET.into());
                let socket = options.socket.clone().unwrap_or_else(default);
                query_client::ask(&socket, &question)
            }
            answer => answer,
        },
    };
    answer.map_err(|error| match error {
        QueryError::NotListening(_) | QueryError::Io { .. } => {
            CommandError::new(ExitStatus::Missing, ErrorChain(&error)).hint(
                "run `vipwatch receiver`, or a node with [receiver] in its configuration; \
                 --status-socket sets the socket",
            )
        }
        error => crate::ask::failure(&error),
    })
}

fn page(answer: &Value) -> String {
    let rows: Vec<Vec<String>> = each(&answer["routers"]).map(row).collect();
    let mut page = if rows.is_empty() {
        "no monitor has reported yet\n".to_owned()
    } else {
        output::table(&["ID", "REPORTED", "AGE", "SETTLED", "STATE", "REPORTS"], &rows)
    };
    for problem in each(&answer["problems"]) {
        let line = format!("{}: {}", text(&problem["name"]), text(&problem["text"]));
        let _ = writeln!(page, "problem: {}", output::escape_untrusted(&line));
    }
    let of = |key: &str| text(&answer[key]);
    let _ = writeln!(
        page,
        "{} accepted, {} coalesced, {} pending, {} could not be promised",
        of("accepted"),
        of("coalesced"),
        of("pending"),
        of("unavailable")
    );
    for (reason, count) in answer["rejected"].as_object().into_iter().flatten() {
        let _ = writeln!(page, "rejected: {} {count}", output::escape_untrusted(reason));
    }
    for target in each(&answer["targets"]) {
        let of = |key: &str| text(&target[key]);
        let name = output::escape_untrusted(&of("target"));
        let (told, pending, failures) = (of("delivered"), of("pending"), of("failures"));
        let _ = writeln!(page, "{name}: told {told}, {pending} pending, {failures} failures");
        for failing in each(&target["failing"]) {
            let line = format!("{}: {}", text(&failing["id"]), text(&failing["error"]));
            let _ = writeln!(page, "  {}", output::escape_untrusted(&line));
        }
    }
    page
}

fn row(router: &Value) -> Vec<String> {
    let held = if router["held"] == true { " (held back)" } else { "" };
    vec![
        text(&router["id"]),
        format!("{}{held}", text(&router["reported"])),
        format!("{} s", text(&router["age_seconds"])),
        text(&router["settled"]),
        text(&router["state"]),
        text(&router["reports"]),
    ]
}

/// The answer as metrics in the text format of Prometheus.
fn metrics(answer: &Value) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, samples: Vec<(String, u64)>| {
        let _ = writeln!(text, "# TYPE vipwatch_receiver_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "vipwatch_receiver_{name}{labels} {value}");
        }
    };
    let one = |key: &str| vec![(String::new(), answer[key].as_u64().unwrap_or(0))];
    let routers: Vec<&Value> = each(&answer["routers"]).collect();
    let with =
        |state: &str| routers.iter().filter(|router| router["state"] == state).count() as u64;
    let states = ["active", "standby", "unknown"];
    let states = states.map(|state| (label("state", state), with(state))).to_vec();
    add("routers", "gauge", states);
    let held = routers.iter().filter(|router| router["held"] == true).count() as u64;
    add("held", "gauge", vec![(String::new(), held)]);
    let age = |router: &&Value| {
        let id = router["id"].as_str().unwrap_or_default();
        (label("id", id), router["age_seconds"].as_u64().unwrap_or(0))
    };
    add("report_age_seconds", "gauge", routers.iter().map(age).collect());
    add("reports_total", "counter", one("accepted"));
    add("coalesced_total", "counter", one("coalesced"));
    add("unavailable_total", "counter", one("unavailable"));
    add("pending", "gauge", one("pending"));
    add("connections", "gauge", one("connections"));
    let problems = each(&answer["problems"]);
    let problems = problems.map(|one| (label("name", one["name"].as_str().unwrap_or_default()), 1));
    add("problem", "gauge", problems.collect());
    let rejected = answer["rejected"].as_object().into_iter().flatten();
    let rejected = rejected
        .map(|(reason, count)| (label("reason", reason), count.as_u64().unwrap_or(0)))
        .collect();
    add("rejected_total", "counter", rejected);
    for (name, kind, key) in [
        ("target_pending", "gauge", "pending"),
        ("deliveries_total", "counter", "delivered"),
        ("delivery_failures_total", "counter", "failures"),
    ] {
        let of = |target: &Value| {
            let name = target["target"].as_str().unwrap_or_default();
            (label("target", name), target[key].as_u64().unwrap_or(0))
        };
        add(name, kind, each(&answer["targets"]).map(of).collect());
    }
    text
}

/// `{NAME="VALUE"}`, with the characters escaped that could end the value.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_metric_and_label_values_are_escaped() {
        let answer = json!({
            "accepted": 7, "rejected": { "no_id": 2 }, "problems": [{ "name": "socket" }],
            "routers": [{ "id": "a", "state": "active", "age_seconds": 3, "held": false }],
            "targets": [{ "target": "hook /a \"b\\\n", "pending": 1, "delivered": 2, "failures": 3 }],
        });
        let text = metrics(&answer);
        for line in [
            "vipwatch_receiver_reports_total 7",
            "vipwatch_receiver_routers{state=\"active\"} 1",
            "vipwatch_receiver_report_age_seconds{id=\"a\"} 3",
            "vipwatch_receiver_rejected_total{reason=\"no_id\"} 2",
            "vipwatch_receiver_problem{name=\"socket\"} 1",
            r#"vipwatch_receiver_target_pending{target="hook /a \"b\\\n"} 1"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }
}
