// SPDX-License-Identifier: Apache-2.0
//! Requests over TCP, and what they cost the node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use vipwatch_testkit::NodeProcess;

use super::keepalived::DumpCost;
use crate::measure::{self, Samples, ms, thread_cpu};
use crate::report::Row;

/// The address of the node, in the network namespace of the bench.
pub const ADDRESS: &str = "127.0.0.1:9650";

/// Maximum time of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// What one request costs.
pub struct RequestCost {
    /// From the connection to the last byte, in ms.
    pub time: Samples,
    /// Size of the answer with its head, in bytes.
    pub bytes: f64,
    /// CPU time of all threads of the node, in ms.
    pub cpu: f64,
}

/// Sends `count` requests, one after the other.
pub fn request_cost(node: &NodeProcess, path: &str, count: u32) -> Result<RequestCost, String> {
    // The first answer may need memory that the later ones use again.
    let bytes = request(path)?;
    let used = thread_cpu(node.pid());
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        request(path)?;
        times.push(ms(began.elapsed()));
    }
    let cpu = (thread_cpu(node.pid()) - used) / f64::from(count);
    Ok(RequestCost { time: Samples::of(times), bytes, cpu })
}

/// Sends a request on a connection of its own, and returns the number of bytes of the answer.
pub fn request(path: &str) -> Result<f64, String> {
    answer(path).map(|answer| measure::count(answer.len()))
}

/// The body of an answer.
pub fn body(path: &str) -> Result<String, String> {
    let answer = String::from_utf8(answer(path)?).map_err(|error| format!("{path}: {error}"))?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.to_owned())
}

/// The answer to a request on a connection of its own, with its head.
fn answer(path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = TcpStream::connect(ADDRESS).map_err(failed)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {ADDRESS}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    if status != b"200" {
        let status = String::from_utf8_lossy(status).into_owned();
        let hint = if status == "404" { "; this node does not have the route" } else { "" };
        return Err(format!("{path} answers with status {status:?}{hint}"));
    }
    Ok(answer)
}

/// Connects a client to the event stream; `None` if that fails.
pub fn open_stream() -> Option<TcpStream> {
    let mut stream = TcpStream::connect(ADDRESS).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let head = format!("GET /v1/events HTTP/1.1\r\nhost: {ADDRESS}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    Some(stream)
}

/// Adds the rows of one route: a whole answer, and its share for each instance beside the dump of keepalived.
pub fn report(
    count: usize,
    path: &str,
    cost: Option<&RequestCost>,
    dump: Option<&DumpCost>,
    rows: &mut Vec<Row>,
) {
    let mut row = |name: &str, unit, ours: Option<f64>, peer: Option<f64>| {
        let row = Row::new(format!("{count} instances: {path}: {name}"), unit);
        rows.push(row.ours(ours).peer(peer));
    };
    let time = |share: f64| cost.and_then(|cost| cost.time.quantile(share));
    row("time, p50", "ms", time(0.5), None);
    row("time, p99", "ms", time(0.99), None);
    row("size", "KiB", cost.map(|cost| cost.bytes / 1024.0), None);
    row("CPU of the node", "ms", cost.map(|cost| cost.cpu), None);
    // Microseconds for each instance: the numbers of instances differ.
    let share = |value: Option<f64>| value.map(|ms| ms * 1e3 / measure::count(count));
    let dump_share = |of: fn(&DumpCost) -> Option<f64>| {
        dump.and_then(|dump| Some(of(dump)? * 1e3 / dump.instances))
    };
    let dump_time = dump_share(|dump| dump.time.p50());
    row("time for each instance", "µs", share(time(0.5)), dump_time);
    let cpu = share(cost.map(|cost| cost.cpu));
    row("CPU for each instance", "µs", cpu, dump_share(|dump| Some(dump.cpu)));
}
