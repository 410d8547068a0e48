// SPDX-License-Identifier: Apache-2.0
//! The rows of the table, in the order of the names: name, severity, subject, evidence and hint. What differs from
//! [`FindingRow::new`] is in brackets.

use super::DrainEffect::{AddressesHere, CannotTakeOver, ConsumerBehind, NoPrimary, Uncertain};
use super::{FindingEvidence, FindingRow, FindingSettle, FindingSubject, Severity};

macro_rules! findings {
    ($($kind:ident = $name:literal, $severity:ident, $subject:ident, $evidence:ident
        $([$($field:ident: $value:expr),+])?, $hint:expr;)*) => {
        /// The kind of a finding. Its name is the stable one that scripts match.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingKind {
            $(#[doc = concat!("`", $name, "`")] $kind,)*
        }

        impl FindingKind {
            /// All kinds, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The names of all kinds, sorted.
            pub const NAMES: &[&str] = &[$($name,)*];

            /// The kind with this name; `None` if there is none, for example in a document of a later release.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$kind),)*
                    _ => None,
                }
            }

            pub(super) fn row(self) -> &'static FindingRow {
                static ROWS: &[FindingRow] = &[$(FindingRow {
                    $($($field: $value,)+)?
                    ..FindingRow::new(
                        $name,
                        Severity::$severity,
                        FindingSubject::$subject,
                        FindingEvidence::$evidence,
                        $hint,
                    )
                },)*];
                &ROWS[self as usize]
            }
        }
    };
}

const KERNEL_IS_RIGHT: &str =
    "the kernel is right: restart the monitor of this router, and see its log";
const RESTART_MONITOR: &str =
    "the monitor does not run or misses events: restart the agent's monitor of this router";
const SEE_LOG: &str = "the log has all attempts";

findings! {
    AddressConfiguredTwice = "address-configured-twice", Critical, Instance, Configuration [is_text_material: true],
        "remove the address from one of the two instances";
    AddressMisplaced = "address-misplaced", Warning, Instance, Kernel [drain: AddressesHere, is_text_material: true],
        "keepalived's configuration and the kernel disagree: reload keepalived, or remove the address";
    AdvertRejected = "advert-rejected", Critical, Instance, Adverts [is_text_material: true],
        "a keepalived that runs here takes over beside the sender: if it is older than 2.4, upgrade it or stop signing on the sender, and give it no `auth_hmac`; else make keys and modes match (during a migration: permissive or receive-only), and synchronise the clocks";
    AdvertsLost = "adverts-lost", Warning, Instance, Adverts [milder: Some(Severity::Info)],
        "another node takes over after three missing adverts: check the network between the nodes, and the load of the sender";
    AgentBehind = "agent-behind", Warning, Instance, OtherSource [drain: ConsumerBehind],
        "the agent is down or does not listen; vipwatch retries until it acknowledges";
    AgentFailed = "agent-failed", Warning, Delivery, Attempt, SEE_LOG;
    AnnounceFailed = "announce-failed", Warning, Delivery, Attempt, SEE_LOG;
    ClusterAmbiguousGroup = "cluster-ambiguous-group", Warning, Group, Cluster
        [settle: FindingSettle::Cluster, drain: Uncertain],
        "give the instances that belong together the same `group` in the configuration of vipwatch on every node";
    ClusterDifferentConfiguration = "cluster-different-configuration", Warning, Group, Cluster
        [settle: FindingSettle::ClusterSlow],
        "make the configuration of keepalived equal on all nodes of the group, and reload it";
    ClusterDisagreement = "cluster-disagreement", Warning, Group, Cluster [settle: FindingSettle::ClusterSlow],
        "the kernel is right: run `vipwatch doctor` on the named node";
    ClusterFlapping = "cluster-flapping", Warning, Group, Cluster [drain: Uncertain],
        "see the causes in `vipwatch cluster history`, and check the links and the load of the nodes";
    ClusterGroupsWithoutPrimary = "cluster-groups-without-primary", Critical, ClusterNode, Cluster
        [settle: FindingSettle::Cluster],
        "check keepalived and the links on the other nodes of these groups: `vipwatch cluster findings` lists them";
    ClusterNeutronDiffers = "cluster-neutron-differs", Warning, Group, Cluster [settle: FindingSettle::Neutron],
        "the kernel is right: check the L3 agent on the primary and its connection to the message bus; a restart of the agent reports its states again";
    ClusterNoPrimary = "cluster-no-primary", Critical, Group, Cluster [settle: FindingSettle::ClusterElection],
        "check keepalived and the links on the nodes of the group: `vipwatch doctor` on each of them";
    ClusterNodeLost = "cluster-node-lost", Critical, ClusterNode, Cluster [settle: FindingSettle::Cluster],
        "check whether the machine runs, whether vipwatch runs on it, and whether it reaches etcd";
    ClusterTooFewBackups = "cluster-too-few-backups", Warning, Group, Cluster [settle: FindingSettle::ClusterSlow],
        "start keepalived on the other nodes of the group, or check their links; `min_backups = 0` turns this finding off";
    ClusterTwoPrimaries = "cluster-two-primaries", Critical, Group, Cluster [settle: FindingSettle::ClusterAdvert],
        "check the network between the nodes, and keepalived on each of them: `vipwatch doctor` on both nodes";
    ConfigurationProblem = "configuration-problem", Critical, Node, Configuration
        [milder: Some(Severity::Warning), drain: Uncertain, is_text_material: true],
        "the last valid version of the file is used until it is corrected";
    DeliveryFailed = "delivery-failed", Warning, Delivery, Attempt,
        "the log has all attempts; `vipwatch receiver status` has the pending deliveries";
    DuplicateHolder = "duplicate-holder", Critical, Instance, Kernel [is_text_material: true],
        "find the station with this MAC, for example in the MAC table of the switch, and remove the address there";
    FileFailed = "file-failed", Warning, Delivery, Attempt, SEE_LOG;
    Flapping = "flapping", Critical, Instance, History [drain: Uncertain],
        "check for lost advertisements, two equal priorities, or an overloaded node";
    FloatingLeft = "floating-left", Critical, Instance, Kernel [drain: AddressesHere],
        "another node may hold them too: remove them, or restart keepalived here";
    FloatingMissing = "floating-missing", Critical, Instance, Kernel,
        "keepalived has not added them: see its log; a reload adds them again";
    HookFailed = "hook-failed", Warning, Delivery, Attempt, SEE_LOG;
    // The starts are counted within a span of their own, and the processes do not stay as they are.
    KeepalivedCrashLoop = "keepalived-crash-loop", Critical, Instance, Processes
        [settle: FindingSettle::None, drain: CannotTakeOver],
        "see its log for the reason of its end: journalctl -u keepalived";
    KeepalivedFault = "keepalived-fault", Critical, Instance, Adverts
        [milder: Some(Severity::Warning), drain: CannotTakeOver],
        "check its track_script, track_interface, track_process and track_file, its link, its log, and whether its addresses were removed by hand";
    KeepalivedFrozen = "keepalived-frozen", Critical, Instance, Processes [drain: CannotTakeOver, is_text_material: true],
        "this node cannot take over: continue the process (kill -CONT, or thaw its cgroup)";
    KeepalivedFrozenAddressLeft = "keepalived-frozen-address-left", Critical, Instance, Processes [is_text_material: true],
        "if another node takes the address, both hold it: continue the process (kill -CONT, or thaw its cgroup); remove the address only if another node holds it";
    KeepalivedGone = "keepalived-gone", Critical, Instance, Processes [drain: CannotTakeOver],
        "this node cannot take over: start keepalived, or see why the agent does not";
    KeepalivedGoneAddressLeft = "keepalived-gone-address-left", Critical, Instance, Processes,
        "if another node takes the address, both hold it: start keepalived here if its file still has the address; remove the address (ip address del) only if another node holds it";
    KeepalivedNotReadable = "keepalived-not-readable", Info, Instance, ProcessesAndFiles [drain: Uncertain],
        "vipwatch needs CAP_SYS_PTRACE to read the processes of other users, or root";
    KeepalivedParentFrozen = "keepalived-parent-frozen", Warning, Instance, Processes [is_text_material: true],
        "keepalived does not reload, stop or start its VRRP process again: continue the process (kill -CONT, or thaw its cgroup)";
    KeepalivedPidFileWrong = "keepalived-pid-file-wrong", Warning, Instance, ProcessesAndFiles [is_text_material: true],
        "a program that trusts the file takes keepalived for alive, or signals another process: remove the file and start keepalived again";
    KeepalivedReloadPending = "keepalived-reload-pending", Warning, Instance, ProcessesAndFiles,
        "the edit has no effect yet, and roles follow what keepalived has loaded: reload keepalived, or restore the file";
    KeepalivedVrrpChildMissing = "keepalived-vrrp-child-missing", Critical, Instance, Processes [drain: CannotTakeOver],
        "no process sends or receives adverts: restart keepalived, and see its log for the reason";
    KernelNotRead = "kernel-not-read", Warning, Instance, Kernel [drain: Uncertain],
        "vipwatch needs CAP_NET_ADMIN here, or root";
    LinkFault = "link-fault", Critical, Instance, Kernel [is_text_material: true],
        "keepalived cannot become primary on this link: check the port and its wiring";
    MonitorGone = "monitor-gone", Warning, Instance, Kernel,
        "the agent gets no reports about this router: the agent starts the monitor again, or has lost track of it";
    NamespaceMissing = "namespace-missing", Critical, Instance, Kernel,
        "the agent creates it; if the router was deleted, its directory is a leftover";
    NoPrimary = "no-primary", Critical, Instance, Adverts [drain: NoPrimary],
        "no node advertises the addresses, and clients may not reach them: check keepalived here and on the other nodes";
    NodeCluster = "node-cluster", Warning, Node, Attempt,
        "the node works on without the cluster; `vipwatch cluster status` shows the connection to etcd, and [cluster] of the configuration its endpoints and files";
    NodeConfiguration = "node-configuration", Warning, Node, Attempt [drain: Uncertain, is_text_material: true],
        "correct the file and reload; `vipwatch config check` lists its errors";
    NodeHistory = "node-history", Critical, Node, Attempt [milder: Some(Severity::Warning)],
        "if the disk is full or read-only, free space or remount it; if it does not answer, see `dmesg`, and run no df or ls there. The node retries by itself";
    NodeHistoryFormat = "node-history-format", Warning, Node, Attempt,
        "the node works with a new history; add silences again. Move the file to another directory or delete it, and the finding ends";
    NodeHookRunner = "node-hook-runner", Warning, Node, Attempt,
        "hooks wait, and the node retries by itself: see `systemctl status vipwatch-hook-runner.socket`, or reload the node if its configuration file has changed";
    NodeNotRunning = "node-not-running", Warning, Node, Attempt,
        "no transition is recorded or delivered, and no advert is read: systemctl start vipwatch-node";
    NodeOneSocket = "node-one-socket", Warning, Node, Attempt,
        "the node works, with more sockets; as root on Linux 4.20 or later it needs one";
    NodeReceiver = "node-receiver", Warning, Node, Attempt,
        "correct the cause and reload: monitors cannot report until then";
    NodeSocket = "node-socket", Warning, Node, Attempt, "stop the other process and restart the node";
    NodeTextfile = "node-textfile", Warning, Node, Attempt,
        "check the directory of `metrics.textfile` and its permissions; the node retries by itself";
    NodeWebCertificate = "node-web-certificate", Warning, Node, Attempt,
        "replace the files of web.certificate and web.key; the node uses new files within seconds";
    NodeWebFiles = "node-web-files", Warning, Node, Attempt,
        "correct the file, which the node reads again within seconds; what it read before stays in use";
    NodeWitness = "node-witness", Warning, Node, Attempt,
        "the node needs CAP_NET_RAW and CAP_SYS_ADMIN to capture adverts; [witness] enabled = false turns it off";
    PartlyHeld = "partly-held", Critical, Instance, Kernel [is_text_material: true],
        "addresses were removed by hand, keepalived could not add them (see its log), or its file was edited and keepalived not reloaded";
    PeerConfigurationDiffers = "peer-configuration-differs", Warning, Instance, Adverts
        [settle: FindingSettle::SecondAudit, is_text_material: true],
        "make the vrrp_instance the same on all nodes, except for its priority";
    PublishedRoleWrong = "published-role-wrong", Warning, Instance, OtherSource
        [settle: FindingSettle::SecondAudit, drain: Uncertain],
        "this is a defect of vipwatch: please report it with the log";
    ReceiverJournal = "receiver-journal", Warning, Receiver, Attempt [drain: Uncertain],
        "check that the disk is writable and has free space; the receiver retries by itself";
    ReceiverJournalFormat = "receiver-journal-format", Warning, Receiver, Attempt,
        "the receiver works with a new journal. Move the file to another directory or delete it, and the finding ends";
    ReceiverSocket = "receiver-socket", Warning, Receiver, Attempt,
        "stop the other process, or remove [receiver]; then restart this one";
    ReportDiffers = "report-differs", Warning, Instance, OtherSource [drain: ConsumerBehind, is_text_material: true],
        KERNEL_IS_RIGHT;
    ReportForUnknownInstance = "report-for-unknown-instance", Info, Receiver, Attempt,
        "the router was deleted but its monitor still runs, or its keepalived.conf is not found";
    ReportMissing = "report-missing", Warning, Instance, OtherSource [milder: Some(Severity::Info)], KERNEL_IS_RIGHT;
    RoutesMissing = "routes-missing", Critical, Instance, Kernel [settle: FindingSettle::SecondAudit],
        "it was removed by hand or with its link, or keepalived could not add it: see its log, and restart keepalived to add it again";
    RulesMissing = "rules-missing", Critical, Instance, Kernel [settle: FindingSettle::SecondAudit],
        "it was removed by hand, or keepalived could not add it: see its log, and restart keepalived to add it again";
    StateFileDiffers = "state-file-differs", Warning, Instance, OtherSource
        [drain: ConsumerBehind, is_text_material: true], RESTART_MONITOR;
    StateFileMissing = "state-file-missing", Warning, Instance, OtherSource, RESTART_MONITOR;
    StateFileNonsense = "state-file-nonsense", Warning, Instance, OtherSource [is_text_material: true], RESTART_MONITOR;
    StateFileUnreadable = "state-file-unreadable", Info, Instance, Kernel,
        "vipwatch needs CAP_DAC_READ_SEARCH here, or root";
    SyncGroupSplit = "sync-group-split", Critical, Instance, Kernel
        [settle: FindingSettle::SecondAudit, is_text_material: true],
        "keepalived moves the members together: check its log, the addresses of each member, and whether keepalived has read the current file";
    TooManyAdvertSources = "too-many-advert-sources", Critical, Instance, Adverts,
        "a host on this network sends adverts with forged source addresses: find its MAC address with `tcpdump -e -n -i LINK proto 112`";
    TwoPrimaries = "two-primaries", Critical, Instance, Adverts [is_text_material: true],
        "the other node's adverts reach this machine: keepalived here drops them (version, addresses, interval, password, key, clock, firewall INPUT: see its log), or the other node does not receive those of this one";
    VridClash = "vrid-clash", Critical, Instance, Configuration [is_text_material: true],
        "give one of them another virtual_router_id";
    VridClashOnLink = "vrid-clash-on-link", Critical, Instance, Adverts
        [settle: FindingSettle::SecondAudit, is_text_material: true],
        "another service on this network uses this virtual_router_id: change one of them";
    WebhookFailed = "webhook-failed", Warning, Delivery, Attempt, SEE_LOG;
}
