//! `vipwatch announce`: by hand, once, with proof.

use serde_json::{Value, json};
use vipwatch_core::RateLimit;
use vipwatch_core::{AnnouncePlan, ErrorChain};
use vipwatch_linux::netns::NetnsError;
use vipwatch_outlets::announce::AnnouncerError;
use vipwatch_outlets::announce::once::{
    AddressSelection, AnnounceError, AnnounceReport, AnnounceRequest, FailedAddress, OtherHolder,
    RefusedAddress, announce,
};

use super::node_name;
use crate::args::{AnnounceArgs, Format};
use crate::failure::{CommandError, ExitStatus};
use crate::show;

pub(crate) fn run(options: &AnnounceArgs) -> Result<(), CommandError> {
    let which = match options.addresses.as_slice() {
        [] => AddressSelection::All,
        addresses => AddressSelection::These(addresses.to_vec()),
    };
    let request = AnnounceRequest {
        netns: options.netns.clone(),
        which,
        link: options.link,
        watched: None,
        plan: AnnouncePlan {
            count: options.count,
            gap: options.gap,
            second_burst: None,
            refresh: None,
            rate: RateLimit::DEFAULT,
            check: options.check,
        },
    };
    let report = announce(&request).map_err(|error| failure(&error))?;
    match options.format {
        Format::Json => show::json(&as_json(&report)),
        Format::Table => show::print(&as_table(&report)),
    }
    verdict(&report)
}

fn failure(error: &AnnounceError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        AnnounceError::Netns(NetnsError::Missing(_)) => {
            CommandError::new(ExitStatus::Missing, message)
                .hint("`ip netns list` shows those there are")
        }
        AnnounceError::Netns(NetnsError::Enter { .. }) => {
            CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
        }
        AnnounceError::Open(AnnouncerError::PacketSocket(_)) => {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or with CAP_NET_RAW")
        }
        AnnounceError::Netns(_)
        | AnnounceError::Open(_)
        | AnnounceError::Snapshot(_)
        | AnnounceError::Work(_) => CommandError::new(ExitStatus::Missing, message),
    }
}

fn as_table(report: &AnnounceReport) -> String {
    let mut rows = Vec::new();
    for said in &report.announced {
        let what = format!("announced {} times as {}", said.rounds, said.mac);
        rows.push(vec![said.ip.to_string(), said.link.to_string(), what]);
    }
    for RefusedAddress { ip, link, reason } in &report.refused {
        let link = link.as_ref().map(ToString::to_string).unwrap_or_default();
        rows.push(vec![ip.to_string(), link, format!("refused: {reason}")]);
    }
    for FailedAddress { ip, link, error } in &report.failed {
        rows.push(vec![ip.to_string(), link.to_string(), format!("failed: {error}")]);
    }
    for OtherHolder { ip, link, mac } in &report.duplicates {
        rows.push(vec![ip.to_string(), link.to_string(), format!("DUPLICATE HOLDER: {mac}")]);
    }
    if rows.is_empty() {
        return "nothing to announce here\n".to_owned();
    }
    show::table(&["ADDRESS", "LINK", "RESULT"], &rows)
}

fn as_json(report: &AnnounceReport) -> Value {
    let link = |link: &vipwatch_core::LinkName| link.to_string();
    let announced = report.announced.iter().map(|said| {
        json!({
            "ip": said.ip.to_string(), "link": link(&said.link), "mac": said.mac.to_string(),
            "rounds": said.rounds,
        })
    });
    let refused = report.refused.iter().map(|RefusedAddress { ip, link: on, reason }| {
        json!({ "ip": ip.to_string(), "link": on.as_ref().map(link), "reason": reason.to_string() })
    });
    let failed = report.failed.iter().map(|FailedAddress { ip, link: on, error }| {
        json!({ "ip": ip.to_string(), "link": link(on), "error": error.to_string() })
    });
    let duplicates = report.duplicates.iter().map(
        |OtherHolder { ip, link: on, mac }| json!({ "ip": ip.to_string(), "link": link(on), "mac": mac.to_string() }),
    );
    json!({
        "schema": "vipwatch.announce/1", "node": node_name(),
        "announced": announced.collect::<Value>(), "refused": refused.collect::<Value>(),
        "failed": failed.collect::<Value>(), "duplicates": duplicates.collect::<Value>(),
        "frames": report.counts.frames,
    })
}

/// What was asked for by name and not announced, and a second holder, are worth an exit code.
fn verdict(report: &AnnounceReport) -> Result<(), CommandError> {
    if !report.duplicates.is_empty() {
        return Err(CommandError::new(ExitStatus::No, "another station holds an address of ours"));
    }
    if !report.refused.is_empty() || !report.failed.is_empty() {
        return Err(CommandError::new(ExitStatus::No, "not everything was announced"));
    }
    Ok(())
}
