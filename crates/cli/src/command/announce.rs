// SPDX-License-Identifier: Apache-2.0
//! `vipwatch announce`: announces addresses once and prints the result for each.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use vipwatch_api::{
    AnnounceDocument, AnnouncedItem, DuplicateItem, ErrorCode, FailedItem, ProblemDocument,
    RefusedItem, Schema,
};
use vipwatch_core::{AnnouncePlan, ErrorChain, NetnsName, RateLimit, first_of};
use vipwatch_linux::netns::NetnsError;
use vipwatch_node::Config;
use vipwatch_node::discovery::{ConfigScanner, InstanceConfig};
use vipwatch_outlets::announce::AnnouncerError;
use vipwatch_outlets::announce::once::{
    AddressSelection, AnnounceError, AnnounceReport, AnnounceRequest, FailedAddress, OtherHolder,
    RefusedAddress, announce,
};

use super::node_name;
use crate::args::{AnnounceArgs, AnnounceTarget, config_error};
use crate::failure::{CommandError, ExitStatus};
use crate::output;

/// Maximum number of ids in the error about an id that several instances have.
const MAX_NAMED_IDS: usize = 5;

pub(crate) fn run(options: &AnnounceArgs) -> Result<(), CommandError> {
    let Selected { netns, which } = select(options)?;
    let request = AnnounceRequest {
        netns,
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
    let names = || report.announced.iter().map(|address| address.ip.to_string()).collect();
    output::show_value(&options.output, &document(&report), |_| as_table(&report), names);
    exit_result(&report)
}

/// The addresses to announce.
struct Selected {
    /// `None` for the namespace of this process.
    netns: Option<NetnsName>,
    which: AddressSelection,
}

fn select(options: &AnnounceArgs) -> Result<Selected, CommandError> {
    let usage = |message: &str| CommandError::new(ExitStatus::Usage, message);
    let here = |which| Selected { netns: options.netns.clone(), which };
    let addresses = options.targets.iter().filter_map(|target| match target {
        AnnounceTarget::Address(ip) => Some(*ip),
        AnnounceTarget::Id(_) => None,
    });
    let addresses: Vec<IpAddr> = addresses.collect();
    match options.targets.as_slice() {
        [] if options.all => Ok(here(AddressSelection::All)),
        [] => Err(usage("there is no instance and no address to announce").hint(
            "name an instance or addresses, or announce every address of the namespace with --all",
        )),
        [AnnounceTarget::Id(id)] => {
            let instance = find_instance(id, options.config.as_deref())?;
            let addresses = instance.vrrp.addresses.iter().map(|address| address.cidr.addr());
            Ok(Selected {
                netns: options.netns.clone().or_else(|| instance.netns.clone()),
                which: AddressSelection::These(addresses.collect()),
            })
        }
        targets if addresses.len() == targets.len() => Ok(here(AddressSelection::These(addresses))),
        _ => Err(usage("either one instance or addresses can be announced")
            .hint("run the command once for each instance")),
    }
}

/// The configured instance with this id, or the only one with an id that begins with it.
fn find_instance(id: &str, config: Option<&Path>) -> Result<Arc<InstanceConfig>, CommandError> {
    let (config, _) = Config::load_lenient(config).map_err(|error| config_error(&error))?;
    let (locations, own) = (config.locations.clone(), config.instances.clone());
    let mut scanner = ConfigScanner::with_processes(locations, own);
    let instances = scanner.scan().instances;
    only_instance(id, &instances).map_err(|problem| CommandError::from(&problem))
}

/// The instance with this id, or the only one with an id that begins with it.
fn only_instance(
    id: &str,
    instances: &[Arc<InstanceConfig>],
) -> Result<Arc<InstanceConfig>, ProblemDocument> {
    if let Some(exact) = instances.iter().find(|instance| instance.id.as_str() == id) {
        return Ok(Arc::clone(exact));
    }
    let matches = instances.iter().filter(|instance| instance.id.as_str().starts_with(id));
    match matches.collect::<Vec<_>>().as_slice() {
        [only] => Ok(Arc::clone(only)),
        [] => {
            let detail = format!("there is no instance {id:?} on this node");
            let hint = "`vipwatch discover` lists the instances; an address must be an IP address without a prefix length";
            Err(ProblemDocument::new(ErrorCode::UnknownInstance, detail).with_hint(hint))
        }
        several => {
            let ids = several.iter().map(|instance| &instance.id);
            let named = first_of(ids, MAX_NAMED_IDS, ", ");
            let detail = format!("{id:?} matches several instances: {named}");
            Err(ProblemDocument::new(ErrorCode::AmbiguousId, detail))
        }
    }
}

fn failure(error: &AnnounceError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        AnnounceError::Netns(NetnsError::Missing(_)) => {
            CommandError::new(ExitStatus::NotFound, message)
                .hint("`ip netns list` shows the namespaces")
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
        | AnnounceError::Work(_) => CommandError::new(ExitStatus::No, message),
    }
}

fn as_table(report: &AnnounceReport) -> String {
    let mut rows = Vec::new();
    for address in &report.announced {
        let what = format!("announced {} as {}", times(address.rounds), address.mac);
        rows.push(vec![address.ip.to_string(), address.link.to_string(), what]);
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
    output::table(&["ADDRESS", "LINK", "RESULT"], &rows)
}

fn times(count: u16) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn document(report: &AnnounceReport) -> AnnounceDocument {
    let announced = report.announced.iter().map(|address| AnnouncedItem {
        ip: address.ip,
        link: address.link.to_string(),
        mac: address.mac.to_string(),
        rounds: address.rounds,
    });
    let refused = report.refused.iter().map(|RefusedAddress { ip, link, reason }| RefusedItem {
        ip: *ip,
        link: link.as_ref().map(ToString::to_string),
        reason: reason.to_string(),
    });
    let failed = report.failed.iter().map(|FailedAddress { ip, link, error }| FailedItem {
        ip: *ip,
        link: link.to_string(),
        error: error.to_string(),
    });
    let duplicates = report.duplicates.iter().map(|OtherHolder { ip, link, mac }| DuplicateItem {
        ip: *ip,
        link: link.to_string(),
        mac: mac.to_string(),
    });
    AnnounceDocument {
        schema: Schema::Announce,
        node: node_name(),
        announced: announced.collect(),
        refused: refused.collect(),
        failed: failed.collect(),
        duplicates: duplicates.collect(),
        frames: report.counts.frames,
    }
}

/// The exit code: an error if another host holds an address, or if an address was not announced.
fn exit_result(report: &AnnounceReport) -> Result<(), CommandError> {
    if !report.duplicates.is_empty() {
        return Err(CommandError::new(
            ExitStatus::No,
            "another host also holds an announced address",
        ));
    }
    if !report.refused.is_empty() || !report.failed.is_empty() {
        return Err(CommandError::new(ExitStatus::No, "not everything was announced"));
    }
    Ok(())
}
