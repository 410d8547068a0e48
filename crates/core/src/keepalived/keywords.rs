// SPDX-License-Identifier: Apache-2.0
//! The keywords that decide how keepalived's blocks nest.
//!
//! A `{` after an unknown keyword opens no block, and the next `}` ends the block around it. The list of
//! keywords, and which of them open a block or a list, is therefore part of the grammar. Two of keepalived's
//! processes matter here: the first one reads `global_defs`, the VRRP process reads everything about VRRP.
//! Each skips the blocks of the other processes by counting braces.
//!
//! The keywords are those of keepalived 2.1 to 2.4.3: each has the version that knows it first. Not listed are
//! lines that keepalived accepts without a value and that no module reads, such as `timer_expired_backup` and
//! `json_version`: they are read in the same way whether they are known or not. Not listed either are lines of
//! `bfd_instance`, which another process checks.

use super::version::Version;

pub(super) const V2_2_0: Version = Version::new(2, 2, 0);
pub(super) const V2_2_4: Version = Version::new(2, 2, 4);
pub(super) const V2_2_8: Version = Version::new(2, 2, 8);
pub(super) const V2_3_0: Version = Version::new(2, 3, 0);
pub(super) const V2_3_3: Version = Version::new(2, 3, 3);
pub(super) const V2_4_0: Version = Version::new(2, 4, 0);

/// Keywords at the start of a line that are read in the same way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyword {
    /// With a space between two names.
    names: &'static str,
    /// Minimum number of words in the line, with the keyword. With fewer, keepalived does not start.
    pub(super) min_words: usize,
    pub(super) kind: KeywordKind,
    /// An older keepalived does not know the keyword.
    pub(super) since: Version,
}

impl Keyword {
    pub(super) fn has(&self, word: &str) -> bool {
        self.names.split(' ').any(|name| name == word)
    }
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

const fn lines(min_words: usize, names: &'static str) -> Keyword {
    Keyword { names, min_words, kind: KeywordKind::Line, since: V2_1 }
}

const fn lists(names: &'static str) -> Keyword {
    Keyword { names, min_words: 1, kind: KeywordKind::List, since: V2_1 }
}

const fn block(names: &'static str, min_words: usize, keywords: &'static [Keyword]) -> Keyword {
    Keyword { names, min_words, kind: KeywordKind::Block(keywords), since: V2_1 }
}

const fn skipped(names: &'static str) -> Keyword {
    Keyword { names, min_words: 1, kind: KeywordKind::Skipped, since: V2_1 }
}

/// The lines outside of blocks, which the first process reads.
const FIRST_LINES: &str = "instance linkbeat_use_polling namespace_with_ipsets net_namespace \
    net_namespace_ipvs use_pid_dir";

/// The keywords of the first process.
pub(super) const FIRST_PROCESS: &[Keyword] = &[
    lines(1, FIRST_LINES),
    lines(2, "child_wait_time"),
    block("global_defs", 1, GLOBAL),
    skipped("SSL virtual_server virtual_server_group"),
    skipped("static_ipaddress static_routes static_rules"),
    skipped("bfd_instance garp_group interface_up_down_delays linkbeat_interfaces"),
    skipped("track_file track_group vrrp_track_file vrrp_track_process"),
    skipped("vrrp_instance vrrp_script vrrp_sync_group"),
];

/// The keywords of the VRRP process.
pub(super) const VRRP_PROCESS: &[Keyword] = &[
    skipped(FIRST_LINES),
    skipped("child_wait_time global_defs"),
    skipped("SSL virtual_server virtual_server_group"),
    lists("static_ipaddress static_routes static_rules"),
    lists("interface_up_down_delays linkbeat_interfaces"),
    block("bfd_instance", 1, &[]),
    block("garp_group", 1, GARP_GROUP),
    block("track_file vrrp_track_file", 2, &[]),
    block("track_group", 1, &[lists("group")]),
    block("vrrp_instance", 1, INSTANCE),
    block("vrrp_script", 2, &[lines(2, "fall interval rise timeout user weight")]),
    block("vrrp_sync_group", 1, SYNC_GROUP),
    block("vrrp_track_process", 2, TRACK_PROCESS),
];

const GLOBAL: &[Keyword] = &[
    lists("notification_email"),
    lines(1, "default_interface dynamic_interfaces vrrp_strict"),
    lines(2, "bfd_process_name checker_process_name lvs_process_name vrrp_process_name"),
    lines(2, "bfd_rlimit_rtime checker_rlimit_rtime vrrp_rlimit_rtime"),
    lines(2, "bfd_rlimit_rttime checker_rlimit_rttime vrrp_rlimit_rttime"),
    lines(2, "config_save_dir process_name random_seed smtp_connect_timeout smtp_server umask"),
    lines(2, "nftables_ipvs_priority nftables_ipvs_start_fwmark nftables_priority"),
    lines(2, "vrrp_garp_interval vrrp_garp_lower_prio_delay vrrp_garp_lower_prio_repeat"),
    lines(2, "vrrp_garp_master_delay vrrp_garp_master_refresh vrrp_garp_master_refresh_repeat"),
    lines(2, "vrrp_garp_master_repeat vrrp_gna_interval"),
    lines(2, "vrrp_mcast_group4 vrrp_mcast_group6 vrrp_startup_delay vrrp_version"),
    since(V2_2_0, lines(2, "vmac_addr_prefix vmac_prefix")),
    since(V2_2_4, lines(2, "vrrp_down_timer_adverts")),
    since(V2_3_0, lines(2, "snmp_rs_stats_update_interval snmp_vs_stats_update_interval")),
    since(V2_3_3, lines(1, "vrrp_owner_ignore_adverts")),
    since(V2_4_0, lines(1, "vrrp_delay_after_boot")),
];

const GARP_GROUP: &[Keyword] =
    &[lists("interfaces"), lines(2, "garp_interval gna_interval interface")];

const SYNC_GROUP: &[Keyword] = &[
    lists("group track_bfd track_file track_interface track_process track_script"),
    lines(2, "notify notify_backup notify_fault notify_master notify_stop"),
];

const TRACK_PROCESS: &[Keyword] =
    &[lines(2, "delay fork_delay process quorum quorum_max terminate_delay")];

const INSTANCE: &[Keyword] = &[
    lists("track_bfd track_file track_interface track_process track_script unicast_peer"),
    lists("virtual_ipaddress virtual_ipaddress_excluded virtual_routes virtual_rules"),
    block("authentication", 1, &[lines(2, "auth_pass auth_type")]),
    since(V2_4_0, block("auth_hmac", 1, AUTH_HMAC)),
    lines(1, "dont_track_primary native_ipv6 strict_mode use_ipvlan use_vmac vmac_xmit_base"),
    since(V2_2_0, lines(1, "use_vmac_addr")),
    since(V2_2_8, lines(1, "no_virtual_ipaddress")),
    since(V2_3_3, lines(1, "owner_ignore_adverts")),
    lines(2, "advert_int debug interface lvs_sync_daemon_interface preempt_delay priority state"),
    lines(2, "garp_lower_prio_delay garp_lower_prio_repeat garp_master_delay garp_master_refresh"),
    lines(2, "garp_master_refresh_repeat garp_master_repeat"),
    lines(2, "mcast_src_ip unicast_src_ip unicast_ttl version virtual_router_id vrf"),
    lines(2, "notify notify_backup notify_fault notify_master notify_master_rx_lower_pri"),
    lines(2, "notify_stop"),
    since(V2_2_0, lines(2, "mcast_dst_ip")),
    since(V2_2_4, lines(2, "down_timer_adverts")),
];

const AUTH_HMAC: &[Keyword] = &[lines(1, "active_key anti_replay key mode time_window")];
