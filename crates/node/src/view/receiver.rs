// SPDX-License-Identifier: Apache-2.0
//! The states that monitors have reported.

use vipwatch_api::{ErrorCode, ProblemDocument, ReceiverProblem, ReportItem, ReportList, Schema};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_receiver::RouterReport;

use super::{ApiContext, targets, timestamp};

/// The last report about one instance; `None` without a receiver, or without a report.
pub fn report_of(context: &ApiContext, id: &InstanceId) -> Option<ReportItem> {
    context.receiver_handle.router_report(id).map(|report| report_item(id, &report))
}

/// All reported states, the counters and the targets of the receiver.
pub fn reports(context: &ApiContext) -> Result<ReportList, ProblemDocument> {
    let status = context.receiver_handle.status();
    let view = status.as_ref().and_then(|status| Some(status.view.lock().ok()?.clone()));
    let (Some(status), Some(view)) = (status, view) else {
        let problem =
            ProblemDocument::new(ErrorCode::NoReceiver, "this process does not run a receiver");
        return Err(problem
            .with_hint("run `vipwatch receiver`, or a node with [receiver] in its configuration"));
    };
    let problem = |(name, text): (&&str, &String)| ReceiverProblem {
        name: (*name).to_owned(),
        text: text.clone(),
    };
    Ok(ReportList {
        schema: Schema::Reports,
        node: context.node.to_string(),
        since: timestamp(status.since),
        items: view.instances.iter().map(|(id, report)| report_item(id, report)).collect(),
        targets: targets::of_receiver(&context.receiver_handle),
        accepted: view.accepted,
        coalesced: view.coalesced,
        rejected: view
            .rejected
            .iter()
            .map(|(reason, count)| (reason.to_string(), *count))
            .collect(),
        unavailable: view.unavailable,
        pending: view.pending as u64,
        connections: view.connections as u64,
        problems: view.problems.iter().map(problem).collect(),
    })
}

fn report_item(id: &InstanceId, report: &RouterReport) -> ReportItem {
    let RouterReport { state, at, settled, is_held, reports, acted_seq: _, moment: _ } = report;
    ReportItem {
        id: id.to_string(),
        reported: state.as_str().to_owned(),
        at: timestamp(*at),
        settled: settled.map(|state| ReportedState::as_str(state).to_owned()),
        state: settled.map(|state| ReportedState::neutron_server_name(state).to_owned()),
        held: *is_held,
        reports: *reports,
    }
}
