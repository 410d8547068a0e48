// SPDX-License-Identifier: Apache-2.0
//! The last events of the processes of an instance's keepalived, for the cause of a transition.

use vipwatch_core::cause::{
    AddressChanger, KeepalivedEvents, ProcessEnd, ProcessEvidence, ProcessStart,
};
use vipwatch_core::escape_untrusted;
use vipwatch_core::keepalived_process::VrrpChild;
use vipwatch_core::snapshot::KEEPALIVED_PROTOCOL;
use vipwatch_linux::netns_watcher::ChangerMark;
use vipwatch_linux::process_table as processes;

use super::{EndRecord, KeepalivedProcess, ProcessView};
use crate::discovery::{InstanceConfig, Origin};

/// The highest pid that the kernel can give. A netlink port above it is not a pid.
const MAX_PID: u32 = 1 << 22;

/// The processes of an instance's keepalived as they were read last; `None` if they are not read at all.
pub(crate) fn process_evidence(
    view: Option<&ProcessView>,
    instance: &InstanceConfig,
) -> ProcessEvidence {
    let Some(view) = view.filter(|_| instance.origin != Origin::Own) else {
        return ProcessEvidence::NotExamined;
    };
    let process_end = |EndRecord { pid, at, exit }| ProcessEnd { pid, at: at.moment, exit };
    match (view.of_instance(instance), view.ended_of(instance)) {
        (Some(process), _) => {
            let (pid, started) = process.vrrp_start();
            ProcessEvidence::Read(KeepalivedEvents {
                is_running: is_running(process),
                started: Some(ProcessStart { pid, at: started }),
                ended: process.last_end.map(process_end),
                resumed: process.resumed_at,
                reloaded: process.loaded.and_then(|loaded| loaded.moment),
                is_outdated: process.is_outdated,
            })
        }
        (None, Some(ended)) => ProcessEvidence::Read(KeepalivedEvents {
            ended: Some(process_end(ended.end)),
            ..KeepalivedEvents::default()
        }),
        (None, None) if view.unreadable > 0 => ProcessEvidence::NotExamined,
        (None, None) => ProcessEvidence::NotFound,
    }
}

fn is_running(process: &KeepalivedProcess) -> bool {
    match process.vrrp_child {
        VrrpChild::Present { suspension, .. } => suspension.is_none(),
        VrrpChild::Missing => false,
        VrrpChild::Unknown => process.suspension.is_none(),
    }
}

/// The process with this mark in the namespace of an instance; `None` if it is not known. `keepalived` is the keepalived of
/// the instance.
pub(super) fn address_changer(
    mark: ChangerMark,
    keepalived: Option<&KeepalivedProcess>,
) -> Option<AddressChanger> {
    let port = match mark {
        ChangerMark::Port(port) => port,
        ChangerMark::Protocol(KEEPALIVED_PROTOCOL) => return Some(AddressChanger::Keepalived),
        ChangerMark::Protocol(_) => {
            return Some(AddressChanger::Other { pid: None, program: None });
        }
    };
    if let Some(keepalived) = keepalived {
        let ports = keepalived.netlink_ports();
        if ports.contains(&port) {
            return Some(AddressChanger::Keepalived);
        }
        // Keepalived has just ended: the port may have been its own.
        if ports.is_empty() {
            return None;
        }
    }
    // The first netlink socket of a process has the pid as its port, unless that is in use.
    let pid = Some(port).filter(|port| *port <= MAX_PID);
    let is_its_own =
        |pid: &u32| processes::netlink_ports(*pid).is_ok_and(|ports| ports.contains(&port));
    let program = pid.filter(is_its_own).and_then(|pid| processes::name(pid).ok());
    // Another keepalived than that of the instance is not named as a stranger.
    if program.as_deref() == Some("keepalived") {
        return None;
    }
    let program = program.map(|name| escape_untrusted(&name).into());
    Some(AddressChanger::Other { pid, program })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_of_an_ipv6_address_tells_keepalived_from_another_program() {
        let changer = |protocol| address_changer(ChangerMark::Protocol(protocol), None);
        assert_eq!(changer(0x12), Some(AddressChanger::Keepalived));
        assert_eq!(changer(0x42), Some(AddressChanger::Other { pid: None, program: None }));
    }
}
