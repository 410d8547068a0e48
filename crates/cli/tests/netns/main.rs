//! `vipwatch` on a real kernel, in network namespaces that `cargo xtask test` provides.

#![expect(clippy::unwrap_used, reason = "a panic fails the test with its message")]

mod access;
mod announce;
mod api;
mod api_limits;
mod causes;
mod command_line;
mod curl;
mod deliveries;
mod direct;
mod duplicates;
mod events;
mod finding_deliveries;
mod findings;
mod following;
mod hooks;
mod http_server;
mod keepalived_findings;
mod latency;
mod log;
mod missing;
mod monitors;
mod node;
mod node_receiver;
mod notify;
mod operator;
mod processes;
mod queries;
mod receiver;
mod receiver_process;
mod removals;
mod report_deliveries;
mod scale;
mod schemathesis;
mod selection;
mod simulate;
mod storage;
mod support;
mod threads;
mod tls;
mod untrusted;
mod watch_command;
mod watch_reconnect;
mod webhooks;
mod witness;
