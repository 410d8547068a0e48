// SPDX-License-Identifier: Apache-2.0
//! The keywords that decide how keepalived's blocks nest.
//!
//! A `{` after an unknown keyword opens no block, and the next `}` ends the block around it. The list of
//! keywords, and which of them open a block or a list, is therefore part of the grammar. Two of keepalived's
//! processes matter here: the first one reads `global_defs`, the VRRP process reads everything about VRRP.
//! Each skips the blocks of the other processes by counting braces.
//!
//! The keywords are those of keepalived 2.1 to 2.4.3: each has the version that knows it first.

use super::version::Version;

pub(super) const V2_2_0: Version = Version::new(2, 2, 0);
pub(super) const V2_2_4: Version = Version::new(2, 2, 4);
pub(super) const V2_2_8: Version = Version::new(2, 2, 8);
pub(super) const V2_3_0: Version = Version::new(2, 3, 0);
pub(super) const V2_3_3: Version = Version::new(2, 3, 3);
pub(super) const V2_4_0: Version = Version::new(2, 4, 0);

/// A keyword at the start of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyword {
    pub(super) name: &'static str,
    /// Minimum number of words in the line, with the keyword. With fewer, keepalived does not start.
    pub(super) min_words: usize,
    pub(super) kind: KeywordKind,
    /// An older keepalived does not know the keyword.
    pub(super) since: Version,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum KeywordKind {
    /// A statement of one line.
    Line,
    /// Lines in braces that are not statements.
    List,
    /// Statements in braces.
    Block(&'static [Keyword]),
    /// A statement or block that another process reads.
    Skipped,
}

/// The oldest keepalived that the table knows.
const V2_1: Version = Version::new(2, 1, 0);

const fn since(since: Version, keyword: Keyword) -> Keyword {
    Keyword { since, ..keyword }
}

const fn line(name: &'static str, min_words: usize) -> Keyword {
    Keyword { name, min_words, kind: KeywordKind::Line, since: V2_1 }
}

const fn list(name: &'static str) -> Keyword {
    Keyword { name, min_words: 1, kind: KeywordKind::List, since: V2_1 }
}

const fn block(name: &'static str, min_words: usize, keywords: &'static [Keyword]) -> Keyword {
    Keyword { name, min_words, kind: KeywordKind::Block(keywords), since: V2_1 }
}

const fn skipped(name: &'static str) -> Keyword {
    Keyword { name, min_words: 1, kind: KeywordKind::Skipped, since: V2_1 }
}

/// The keywords of the first process.
pub(super) const FIRST_PROCESS: &[Keyword] = &[
    line("linkbeat_use_polling", 1),
    line("net_namespace", 1),
    line("net_namespace_ipvs", 1),
    line("namespace_with_ipsets", 1),
    line("use_pid_dir", 1),
    line("instance", 1),
    line("child_wait_time", 1),
    block("global_defs", 1, GLOBAL),
    skipped("track_group"),
    skipped("static_ipaddress"),
    skipped("static_routes"),
    skipped("static_rules"),
    skipped("vrrp_sync_group"),
    skipped("garp_group"),
    skipped("linkbeat_interfaces"),
    skipped("vrrp_instance"),
    skipped("vrrp_script"),
    skipped("vrrp_track_process"),
    skipped("interface_up_down_delays"),
    skipped("SSL"),
    skipped("virtual_server_group"),
    skipped("virtual_server"),
    skipped("bfd_instance"),
    skipped("track_file"),
    skipped("vrrp_track_file"),
];

/// The keywords of the VRRP process.
pub(super) const VRRP_PROCESS: &[Keyword] = &[
    skipped("linkbeat_use_polling"),
    skipped("net_namespace"),
    skipped("net_namespace_ipvs"),
    skipped("namespace_with_ipsets"),
    skipped("use_pid_dir"),
    skipped("instance"),
    skipped("child_wait_time"),
    skipped("global_defs"),
    block("track_group", 1, &[list("group")]),
    list("static_ipaddress"),
    list("static_routes"),
    list("static_rules"),
    block("vrrp_sync_group", 1, SYNC_GROUP),
    block("garp_group", 1, GARP_GROUP),
    list("linkbeat_interfaces"),
    block("vrrp_instance", 1, INSTANCE),
    block("vrrp_script", 2, SCRIPT),
    block("vrrp_track_process", 2, TRACK_PROCESS),
    list("interface_up_down_delays"),
    skipped("SSL"),
    skipped("virtual_server_group"),
    skipped("virtual_server"),
    block("bfd_instance", 1, BFD),
    block("track_file", 1, TRACK_FILE),
    block("vrrp_track_file", 1, TRACK_FILE),
];

/// Not complete: only keywords that open a list, that [`super::globals`] reads, or that need a value. All
/// others are single lines, which are read in the same way whether they are known or not.
const GLOBAL: &[Keyword] = &[
    line("bfd_process_name", 2),
    line("bfd_rlimit_rtime", 2),
    line("bfd_rlimit_rttime", 2),
    line("checker_process_name", 2),
    line("checker_rlimit_rtime", 2),
    line("checker_rlimit_rttime", 2),
    line("config_save_dir", 2),
    line("lvs_process_name", 2),
    line("nftables_ipvs_priority", 2),
    line("nftables_ipvs_start_fwmark", 2),
    line("nftables_priority", 2),
    line("random_seed", 2),
    line("smtp_connect_timeout", 2),
    line("smtp_server", 2),
    line("umask", 2),
    since(V2_2_4, line("vrrp_down_timer_adverts", 2)),
    line("vrrp_garp_interval", 2),
    line("vrrp_garp_lower_prio_delay", 2),
    line("vrrp_garp_lower_prio_repeat", 2),
    line("vrrp_garp_master_delay", 2),
    line("vrrp_garp_master_refresh", 2),
    line("vrrp_garp_master_refresh_repeat", 2),
    line("vrrp_garp_master_repeat", 2),
    line("vrrp_gna_interval", 2),
    line("vrrp_mcast_group4", 2),
    line("vrrp_mcast_group6", 2),
    since(V2_3_3, line("vrrp_owner_ignore_adverts", 1)),
    line("vrrp_process_name", 2),
    line("vrrp_rlimit_rtime", 2),
    line("vrrp_rlimit_rttime", 2),
    line("vrrp_startup_delay", 2),
    since(V2_4_0, line("vrrp_delay_after_boot", 1)),
    line("default_interface", 1),
    list("notification_email"),
    line("dynamic_interfaces", 1),
    since(V2_2_0, line("vmac_addr_prefix", 2)),
    since(V2_2_0, line("vmac_prefix", 2)),
    line("vrrp_strict", 1),
    line("vrrp_version", 2),
];

const SYNC_GROUP: &[Keyword] = &[
    line("notify", 2),
    line("notify_backup", 2),
    line("notify_fault", 2),
    line("notify_master", 2),
    line("notify_stop", 2),
    list("group"),
    list("track_interface"),
    list("track_script"),
    list("track_file"),
    list("track_process"),
    list("track_bfd"),
];

const GARP_GROUP: &[Keyword] = &[list("interfaces")];

const SCRIPT: &[Keyword] = &[
    line("user", 2),
    line("interval", 2),
    line("timeout", 2),
    line("weight", 2),
    line("rise", 2),
    line("fall", 2),
];

const TRACK_PROCESS: &[Keyword] = &[
    line("process", 2),
    line("delay", 2),
    line("terminate_delay", 2),
    line("fork_delay", 2),
    line("quorum", 2),
    line("quorum_max", 2),
];

const BFD: &[Keyword] = &[];

const TRACK_FILE: &[Keyword] = &[];

const INSTANCE: &[Keyword] = &[
    line("notify", 2),
    line("notify_backup", 2),
    line("notify_fault", 2),
    line("notify_master", 2),
    line("notify_master_rx_lower_pri", 2),
    line("notify_stop", 2),
    line("lvs_sync_daemon_interface", 2),
    line("use_vmac", 1),
    since(V2_2_0, line("use_vmac_addr", 1)),
    line("vmac_xmit_base", 1),
    line("use_ipvlan", 1),
    list("unicast_peer"),
    line("native_ipv6", 1),
    line("state", 2),
    line("interface", 2),
    line("vrf", 2),
    line("dont_track_primary", 1),
    list("track_interface"),
    list("track_script"),
    list("track_file"),
    list("track_process"),
    list("track_bfd"),
    line("mcast_src_ip", 2),
    line("unicast_src_ip", 2),
    since(V2_2_0, line("mcast_dst_ip", 2)),
    line("virtual_router_id", 2),
    line("unicast_ttl", 2),
    line("version", 2),
    line("priority", 2),
    line("advert_int", 2),
    list("virtual_ipaddress"),
    list("virtual_ipaddress_excluded"),
    list("virtual_routes"),
    list("virtual_rules"),
    line("strict_mode", 1),
    line("preempt_delay", 2),
    line("debug", 2),
    line("garp_master_delay", 2),
    line("garp_master_refresh", 2),
    line("garp_master_repeat", 2),
    line("garp_master_refresh_repeat", 2),
    line("garp_lower_prio_delay", 2),
    line("garp_lower_prio_repeat", 2),
    since(V2_2_4, line("down_timer_adverts", 2)),
    block("authentication", 1, AUTHENTICATION),
    since(V2_4_0, block("auth_hmac", 1, AUTH_HMAC)),
    since(V2_2_8, line("no_virtual_ipaddress", 1)),
    since(V2_3_3, line("owner_ignore_adverts", 1)),
];

const AUTHENTICATION: &[Keyword] = &[line("auth_type", 2), line("auth_pass", 2)];

const AUTH_HMAC: &[Keyword] = &[
    line("key", 1),
    line("active_key", 1),
    line("anti_replay", 1),
    line("time_window", 1),
    line("mode", 1),
];
