//! What the statements of a `vrrp_instance` say, one after the other.

use std::time::Duration;

use ipnet::IpNet;

use super::blocks::{Statement, Visitor, Wanted};
use super::definitions::UNKNOWN;
use super::numbers::{Rest, cidr, ip, mac, number, seconds};
use super::problem::{FilePosition, Problem};
use crate::LinkName;

/// `priority` if it is not given, unless the state is `MASTER`.
pub(super) const DEFAULT_PRIORITY: u8 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    fn of(net: IpNet) -> Self {
        if net.addr().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A value that a statement gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given<T> {
    /// No statement gives it.
    Nothing,
    Value(T),
    /// A statement gives something else.
    Unusable(Problem),
    /// A random number.
    Unknown,
}

/// An address of an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftAddress {
    pub(super) place: FilePosition,
    pub(super) cidr: IpNet,
    /// `dev LINK`.
    pub(super) dev: Option<LinkName>,
    pub(super) uses_vmac: bool,
}

impl DraftAddress {
    pub(super) fn family(&self) -> Family {
        Family::of(self.cidr)
    }
}

/// A `vrrp_instance` as it is written.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a statement that is there or not")]
pub(super) struct Draft {
    pub(super) place: FilePosition,
    pub(super) name: String,
    pub(super) family: Option<Family>,
    pub(super) version: Option<u8>,
    pub(super) interface: Given<LinkName>,
    pub(super) vrid: Given<u8>,
    pub(super) priority: Given<u8>,
    pub(super) is_master: bool,
    pub(super) advert_interval: Option<Duration>,
    /// `None` if only `global_defs` says it.
    pub(super) is_strict: Option<bool>,
    pub(super) uses_vmac: bool,
    pub(super) uses_vmac_addr: bool,
    /// Whether advertisements are sent over the interface below the VMAC.
    pub(super) sends_below_vmac: bool,
    pub(super) uses_ipvlan: bool,
    /// The name of the VMAC or ipvlan link.
    pub(super) vmac_name: Option<LinkName>,
    /// Five bytes leave the last to the virtual router id.
    pub(super) vmac_mac: Option<Vec<u8>>,
    /// The destination of multicast advertisements.
    pub(super) group: Option<std::net::IpAddr>,
    pub(super) is_unicast: bool,
    pub(super) advertised: Vec<DraftAddress>,
    pub(super) excluded: Vec<DraftAddress>,
    pub(super) has_ipv6_gateway: bool,
}

impl Draft {
    fn new(place: FilePosition, name: &str) -> Self {
        Self {
            place,
            name: name.to_owned(),
            family: None,
            version: None,
            interface: Given::Nothing,
            vrid: Given::Nothing,
            priority: Given::Nothing,
            is_master: false,
            advert_interval: None,
            is_strict: None,
            uses_vmac: false,
            uses_vmac_addr: false,
            sends_below_vmac: false,
            uses_ipvlan: false,
            vmac_name: None,
            vmac_mac: None,
            group: None,
            is_unicast: false,
            advertised: Vec::new(),
            excluded: Vec::new(),
            has_ipv6_gateway: false,
        }
    }
}

/// All instances of a configuration.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    pub(super) instances: Vec<Draft>,
    pub(super) problems: Vec<Problem>,
    /// Whether keepalived waits for links that do not exist yet.
    pub(super) is_dynamic: bool,
    /// The block that is being read is an instance.
    is_inside: bool,
}

impl Drafts {
    pub(super) fn new(is_dynamic: bool) -> Self {
        Self { is_dynamic, ..Self::default() }
    }
}

impl Visitor for Drafts {
    fn begin(&mut self, statement: Statement<'_>) -> Wanted {
        let Statement { place, words } = statement;
        if words[0] == "authentication" {
            return Wanted::Yes;
        }
        self.is_inside = words[0] == "vrrp_instance";
        if !self.is_inside {
            return Wanted::Yes;
        }
        let [_, name] = words else {
            let text = match words.len() {
                1 => "vrrp_instance needs a name".to_owned(),
                _ => format!("a vrrp_instance has one name, not {:?}", words[1..].join(" ")),
            };
            self.problems.push(Problem::new(place, text));
            return Wanted::No;
        };
        if let Some(other) = self.instances.iter().find(|other| other.name == *name) {
            let line = other.place.line;
            let text = format!("vrrp_instance {name} is there already, in line {line}");
            self.problems.push(Problem::new(place, text));
            return Wanted::No;
        }
        self.instances.push(Draft::new(place, name));
        Wanted::Yes
    }

    fn statement(&mut self, statement: Statement<'_>) {
        let Some(draft) = self.instances.last_mut().filter(|_| self.is_inside) else { return };
        let text = statement.argument();
        let mut wrong = |text: String| self.problems.push(Problem::new(statement.place, text));
        match statement.words[0].as_str() {
            "interface" => draft.take_interface(text, statement.place),
            "virtual_router_id" => draft.take_vrid(text, statement.place),
            "priority" => draft.take_priority(text, &mut wrong),
            // BACKUP behind MASTER is ignored; any other word is taken for BACKUP.
            "state" => draft.is_master = text == "MASTER" || draft.is_master && text == "BACKUP",
            "advert_int" => draft.take_advert_interval(text, &mut wrong),
            "version" => draft.take_version(text),
            "native_ipv6" if draft.family != Some(Family::V4) => {
                (draft.family, draft.version) = (Some(Family::V6), Some(3));
            }
            "strict_mode" => draft.is_strict = truth(text).or(draft.is_strict),
            "mcast_src_ip" | "unicast_src_ip" => {
                draft.family = draft.family.or(ip(text).map(|ip| Family::of(ip.into())));
            }
            "mcast_dst_ip" => draft.take_group(text),
            "use_vmac" => self.take_vmac(statement),
            "use_vmac_addr" => draft.uses_vmac_addr = true,
            "vmac_xmit_base" => draft.sends_below_vmac = true,
            "use_ipvlan" => self.take_ipvlan(statement),
            _ => {}
        }
    }

    fn entry(&mut self, keyword: &str, entry: Statement<'_>) {
        let Some(draft) = self.instances.last_mut().filter(|_| self.is_inside) else { return };
        match keyword {
            "virtual_ipaddress" => match address(entry, self.is_dynamic, &mut self.problems) {
                Some(address)
                    if *draft.family.get_or_insert(address.family()) == address.family() =>
                {
                    draft.advertised.push(address);
                }
                Some(address) => {
                    let text = format!(
                        "keepalived ignores {}: the addresses of {} before it are of the other family",
                        address.cidr, draft.name
                    );
                    self.problems.push(Problem::note(entry.place, text));
                }
                None => {}
            },
            "virtual_ipaddress_excluded" => {
                draft.excluded.extend(address(entry, self.is_dynamic, &mut self.problems));
            }
            "unicast_peer" => {
                if let Some(peer) = ip(&entry.words[0]) {
                    let family = Family::of(peer.into());
                    draft.is_unicast |= *draft.family.get_or_insert(family) == family;
                }
            }
            "virtual_routes" => draft.has_ipv6_gateway |= is_ipv6_gateway(entry.words),
            _ => {}
        }
    }

    fn nesting(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    fn refuse(&mut self, problem: Problem) {
        self.problems.push(problem);
    }
}

impl Draft {
    /// Whether both send their advertisements over one link, if both have the same interface.
    pub(super) fn shares_link(&self, other: &Self) -> bool {
        let has_own =
            |draft: &Self| (draft.uses_vmac && !draft.sends_below_vmac) || draft.uses_ipvlan;
        match (has_own(self), has_own(other)) {
            (false, false) => true,
            (true, true) => {
                !self.uses_ipvlan && !other.uses_ipvlan && self.vmac_mac == other.vmac_mac
            }
            _ => false,
        }
    }

    fn take_interface(&mut self, text: &str, place: FilePosition) {
        let name = &self.name;
        if text.contains(UNKNOWN) {
            return self.interface = Given::Unknown;
        }
        let error = match text.parse::<LinkName>() {
            Ok(_) if text == "lo" => "it is the loopback interface".to_owned(),
            Ok(link) => return self.interface = Given::Value(link),
            Err(error) => error.to_string(),
        };
        let text = format!("{name} has no interface, {text:?} cannot be one ({error})");
        // A name that is too long is ignored, any other is looked for.
        if error != too_long() || !matches!(self.interface, Given::Value(_)) {
            self.interface = Given::Unusable(Problem::refused(place, text));
        }
    }

    fn take_vrid(&mut self, text: &str, place: FilePosition) {
        if text.contains(UNKNOWN) {
            return self.vrid = Given::Unknown;
        }
        if let Some(vrid) = byte(text) {
            self.vrid = Given::Value(vrid);
        } else if !matches!(self.vrid, Given::Value(_)) {
            let text = format!("virtual_router_id of {} is 1 to 255, not {text:?}", self.name);
            self.vrid = Given::Unusable(Problem::refused(place, text));
        }
    }

    fn take_priority(&mut self, text: &str, wrong: &mut dyn FnMut(String)) {
        let name = &self.name;
        if text.contains(UNKNOWN) {
            return self.priority = Given::Unknown;
        }
        self.priority = Given::Value(byte(text).unwrap_or_else(|| {
            wrong(format!(
                "priority of {name} is 1 to 255, not {text:?}: keepalived takes {DEFAULT_PRIORITY}"
            ));
            DEFAULT_PRIORITY
        }));
    }

    fn take_advert_interval(&mut self, text: &str, wrong: &mut dyn FnMut(String)) {
        match seconds(text) {
            Some(interval) => self.advert_interval = Some(interval),
            None => wrong(format!(
                "advert_int of {} is 0.01 to 255 seconds, not {text:?}: keepalived ignores it",
                self.name
            )),
        }
    }

    fn take_version(&mut self, text: &str) {
        let version =
            number(text, 2, 3, Rest::Ignored).and_then(|number| u8::try_from(number).ok());
        let Some(version) = version else { return };
        let is_other = self.version.is_some_and(|known| known != version);
        let is_too_old = version == 2 && self.family == Some(Family::V6);
        if !is_other && !is_too_old {
            self.version = Some(version);
        }
    }

    fn take_group(&mut self, text: &str) {
        let Some(group) = ip(text) else { return };
        let family = Family::of(group.into());
        if *self.family.get_or_insert(family) == family && group.is_multicast() {
            self.group = Some(group);
        }
    }
}

impl Drafts {
    /// `use_vmac [NAME] [MAC]`, in any order.
    fn take_vmac(&mut self, statement: Statement<'_>) {
        let (words, place) = (statement.words, statement.place);
        for word in words.iter().skip(1).take(2) {
            let is_taken = self.is_vmac_name_taken(word);
            let Some(draft) = self.instances.last_mut() else { return };
            if word.contains(':') {
                draft.vmac_mac = draft.vmac_mac.take().or_else(|| mac(word));
            } else if draft.vmac_name.is_none() && !is_taken {
                draft.vmac_name = link(word, place, &mut self.problems);
            }
        }
        if let Some(draft) = self.instances.last_mut() {
            draft.uses_vmac = true;
        }
    }

    /// `use_ipvlan [bridge|private|vepa] [ADDRESS] [NAME]`, in any order.
    fn take_ipvlan(&mut self, statement: Statement<'_>) {
        let Some(draft) = self.instances.last_mut() else { return };
        if std::mem::replace(&mut draft.uses_ipvlan, true) {
            return;
        }
        for word in statement.words.iter().skip(1) {
            let is_taken = self.is_vmac_name_taken(word);
            let Some(draft) = self.instances.last_mut() else { return };
            if matches!(word.as_str(), "bridge" | "private" | "vepa") {
                continue;
            }
            if let Some(address) = cidr(word) {
                draft.family.get_or_insert(Family::of(address));
            } else if draft.vmac_name.is_none() && !is_taken {
                draft.vmac_name = link(word, statement.place, &mut self.problems);
            }
        }
    }

    fn is_vmac_name_taken(&self, name: &str) -> bool {
        let names = self.instances.iter().filter_map(|other| other.vmac_name);
        names.into_iter().any(|other| other.to_string() == name)
    }
}

/// The name of a link of an instance's own; one that keepalived ignores is a problem.
fn link(word: &str, place: FilePosition, problems: &mut Vec<Problem>) -> Option<LinkName> {
    let ignored = |error| {
        let text = format!("keepalived ignores the name {word:?} of a VMAC: {error}");
        problems.push(Problem::note(place, text));
    };
    word.parse().map_err(ignored).ok()
}

fn too_long() -> String {
    crate::NameError::TooLong { limit: LinkName::LIMIT }.to_string()
}

fn byte(text: &str) -> Option<u8> {
    number(text, 1, 255, Rest::Refused).and_then(|number| u8::try_from(number).ok())
}

/// No word at all is yes.
fn truth(word: &str) -> Option<bool> {
    match word {
        "" | "true" | "on" | "yes" => Some(true),
        "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// `::/0 via GATEWAY …`, or `default via GATEWAY …` with one of IPv6.
fn is_ipv6_gateway(words: &[String]) -> bool {
    let via = words.iter().skip_while(|word| *word != "via").nth(1);
    let via = via.and_then(|text| text.parse::<std::net::IpAddr>().ok());
    let is_default = ["::/0", "default", "default6"].contains(&words[0].as_str());
    is_default && via.is_some_and(|via| via.is_ipv6())
}

/// `IP[/LENGTH] [dev LINK] [brd IP] [label NAME] [peer IP] [use_vmac] …`.
fn address(
    entry: Statement<'_>,
    is_dynamic: bool,
    problems: &mut Vec<Problem>,
) -> Option<DraftAddress> {
    let Statement { place, words } = entry;
    let text = &words[0];
    if words.iter().any(|word| word.contains(UNKNOWN)) {
        problems.push(Problem::note(place, "an address that is random cannot be known"));
        return None;
    }
    let Some(cidr) = cidr(text) else {
        problems.push(Problem::new(place, format!("{text:?} is not an address")));
        return None;
    };
    let mut address = DraftAddress { place, cidr, dev: None, uses_vmac: false };
    let problem = match options(&mut address, &words[1..]) {
        Ok(()) => return Some(address),
        Err(Left::NoLink(why)) if !is_dynamic => Problem::refused(
            place,
            format!("{text} cannot be on a link that does not exist, {why}"),
        ),
        Err(Left::NoLink(why) | Left::Option(why)) => {
            Problem::new(place, format!("keepalived ignores {text}: {why}"))
        }
    };
    problems.push(problem);
    None
}

/// Why keepalived leaves an address out.
enum Left {
    /// No link can have the name of its `dev`.
    NoLink(String),
    /// An option that it cannot have.
    Option(String),
}

/// Takes the words behind an address; says why keepalived leaves the address out.
fn options(address: &mut DraftAddress, words: &[String]) -> Result<(), Left> {
    let mut words = words.iter();
    let is_ipv4 = address.family() == Family::V4;
    while let Some(word) = words.next() {
        let mut value =
            || words.next().ok_or_else(|| Left::Option(format!("{word} needs a value")));
        match word.as_str() {
            "dev" => {
                let name = value()?;
                if address.dev.is_some() {
                    return Err(Left::Option("it has more than one dev".to_owned()));
                }
                let wrong = |error| Left::NoLink(format!("dev {name:?}: {error}"));
                address.dev = Some(name.parse().map_err(wrong)?);
            }
            "brd" | "broadcast" => {
                let broadcast = value()?;
                let is_valid = matches!(broadcast.as_str(), "+" | "-")
                    || broadcast.parse::<std::net::Ipv4Addr>().is_ok();
                if !is_ipv4 || !is_valid {
                    let why = format!("it cannot have the broadcast address {broadcast:?}");
                    return Err(Left::Option(why));
                }
            }
            "label" if value()?.len() > LinkName::LIMIT => {
                let why = format!("its label is longer than {} bytes", LinkName::LIMIT);
                return Err(Left::Option(why));
            }
            "peer" => {
                let peer = value()?.parse::<std::net::IpAddr>().ok().map(IpNet::from);
                // The length of the peer counts, and it has none of its own.
                if let Some(peer) = peer.filter(|peer| Family::of(*peer) == address.family()) {
                    address.cidr = IpNet::new(address.cidr.addr(), peer.max_prefix_len())
                        .unwrap_or(address.cidr);
                }
            }
            "scope" | "preferred_lft" => drop(value()?),
            "use_vmac" => address.uses_vmac = true,
            _ => {}
        }
    }
    Ok(())
}
