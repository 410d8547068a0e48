//! Finds what there is to watch on this node, in the files that keepalived is run with.
//!
//! Two kinds of places: `<state_path>/ha_confs/ID/keepalived.conf`, where Neutron's L3 agent
//! writes one for each HA router, and ordinary keepalived's own configuration. A file that
//! cannot be read or understood is a problem with its name and line, and keeps nothing else
//! from being found.
//!
//! A [`ConfigScanner`] looks again and again. It reads what has changed, and of a file that has become
//! wrong, or is being written, it keeps the last good reading. A file that disappears counts as gone only
//! after [`MISSING_FILE_HOLD`].

mod include;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use vipwatch_core::keepalived::{Impact, Problem, VrrpInstance};
use vipwatch_core::{InstanceId, LinkName, NetnsName};
use vipwatch_linux::netns::{DIRECTORY, Netns, NetnsError};

use self::include::{Loaded, OpenedFiles};

/// How long a file must have been left alone before it is believed.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How long the last reading of a file stays in use after the file has disappeared. Editors, `cp` and
/// configuration management remove a file and write it again within less.
pub const MISSING_FILE_HOLD: Duration = Duration::from_secs(5);

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigLocations {
    /// Neutron's `state_path`.
    pub neutron: PathBuf,
    /// keepalived's own configuration.
    pub keepalived: PathBuf,
    /// Decides keepalived's conditional lines (`@id`), as its option `-i` does; the host name without
    /// its domain if there is none.
    pub config_id: Option<String>,
}

impl ConfigLocations {
    /// The configuration id in force.
    pub fn config_id(&self) -> String {
        self.config_id.clone().unwrap_or_else(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            host.split('.').next().unwrap_or_default().to_owned()
        })
    }
}

impl Default for ConfigLocations {
    fn default() -> Self {
        Self {
            neutron: PathBuf::from("/var/lib/neutron"),
            keepalived: PathBuf::from("/etc/keepalived/keepalived.conf"),
            config_id: None,
        }
    }
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A router of Neutron's.
    Neutron,
    /// An instance of ordinary keepalived.
    Keepalived,
    /// One of our own configuration.
    Own,
}

impl Origin {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Neutron => "neutron",
            Self::Keepalived => "keepalived",
            Self::Own => "vipwatch",
        }
    }
}

/// Something to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceConfig {
    /// What to call it.
    pub id: InstanceId,
    /// Whose it is.
    pub origin: Origin,
    /// Where its addresses are; `None` for the node's own namespace.
    pub netns: Option<NetnsName>,
    /// The file that says so.
    pub file: Arc<Path>,
    /// What it says.
    pub vrrp: Arc<VrrpInstance>,
}

impl InstanceConfig {
    /// The addresses that make it primary. A router's floating addresses come and go with the
    /// agent's work: there the one that keepalived advertises decides.
    pub fn watched(&self) -> Vec<(LinkName, IpNet)> {
        let addresses = self.vrrp.addresses.iter();
        let counts = |is_excluded: bool| match self.origin {
            Origin::Neutron => !is_excluded,
            Origin::Keepalived | Origin::Own => true,
        };
        addresses
            .filter(|address| counts(address.is_excluded))
            .map(|address| (address.link, address.cidr))
            .collect()
    }
}

/// What was wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file.
    pub file: PathBuf,
    /// The line, where there is one.
    pub line: Option<u32>,
    /// What.
    pub text: String,
}

/// Everything that was found.
#[derive(Debug, Default)]
pub struct DiscoveryResult {
    /// What there is to watch, in order of their ids.
    pub instances: Vec<Arc<InstanceConfig>>,
    /// What was wrong.
    pub problems: Vec<ConfigProblem>,
    /// Something is being written just now: it is worth looking again after [`SETTLE`].
    pub is_unsettled: bool,
    /// A file is missing: when the first of them counts as gone, unless it has returned.
    pub hold_ends_in: Option<Duration>,
}

/// Looks into `places`, once.
pub fn discover(places: &ConfigLocations) -> DiscoveryResult {
    ConfigScanner::new(places.clone(), Vec::new()).look()
}

/// Says why `file` cannot be a configuration of keepalived's: it does not exist, is binary, or begins with
/// a byte order mark. For a file that an operator names.
pub fn check_file(file: &Path) -> io::Result<()> {
    include::check(file)
}

/// What tells one state of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// What one configuration said, and what was wrong with it when it was last looked at.
#[derive(Debug, Clone)]
struct Reading {
    /// `None` for one that must be read each time: others are included in it.
    stamp: Option<Stamp>,
    netns: Option<NetnsName>,
    instances: Vec<Arc<VrrpInstance>>,
    problems: Vec<ConfigProblem>,
    is_good: bool,
    /// The files that it consists of, where they are several.
    files: Vec<PathBuf>,
    /// When the file was first found to be missing; `None` while it is there.
    missing_since: Option<Instant>,
    /// When it was last asked for.
    round: u64,
    /// What was made of it last; kept, so that what has not changed is the very same.
    found: Vec<Arc<InstanceConfig>>,
}

/// What a router's directory is called, which may not be an id.
type InstanceName = Box<str>;

/// Looks again and again.
#[derive(Debug)]
pub struct ConfigScanner {
    places: ConfigLocations,
    own: Vec<Arc<InstanceConfig>>,
    /// Looked up by the thousand, and in no order: paths are long, and begin alike.
    readings: HashMap<Arc<Path>, Box<Reading>>,
    /// Which look this is.
    round: u64,
    /// The routers that there were when they could last be listed.
    routers: Vec<(InstanceName, Arc<Path>)>,
    is_begun: bool,
}

impl ConfigScanner {
    /// Has not looked yet. `own` are instances that are in no file of keepalived's.
    pub fn new(places: ConfigLocations, own: Vec<Arc<InstanceConfig>>) -> Self {
        let (readings, routers) = (HashMap::new(), Vec::new());
        Self { places, own, readings, round: 0, routers, is_begun: false }
    }

    /// Looks elsewhere from now on. What is known of files that stay is kept.
    pub fn redirect(&mut self, places: ConfigLocations, own: Vec<Arc<InstanceConfig>>) {
        if places.config_id() != self.places.config_id() {
            // Every file may say something else now.
            self.readings.values_mut().for_each(|reading| reading.stamp = None);
        }
        self.places = places;
        self.own = own;
    }

    /// Each router's directory: news of its configuration are worth another look.
    pub fn routers(&self) -> impl Iterator<Item = &Path> {
        self.routers.iter().filter_map(|(_, file)| file.parent())
    }

    /// The other directories in which news are: that of the routers, and those of ordinary files.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        let included = self.readings.values().flat_map(|reading| &reading.files);
        let files = included.chain([&self.places.keepalived]);
        let parents = files.filter_map(|file| Some(file.parent()?.to_owned()));
        parents.chain([self.places.neutron.join("ha_confs")]).collect()
    }

    /// Looks.
    pub fn look(&mut self) -> DiscoveryResult {
        let mut discovery = DiscoveryResult::default();
        self.round += 1;
        let mut taken = Taken::default();
        for own in &self.own {
            taken.add(Arc::clone(own), &mut discovery);
        }
        self.list_routers(&mut discovery);
        let names = netns_names();
        let missing = self.missing_routers();
        let routers = std::mem::take(&mut self.routers);
        for (id, file) in routers.iter().chain(&missing) {
            if let Some(reading) = self.read(file, &mut discovery) {
                reading.as_router(id, file, &names, &mut discovery);
            }
        }
        self.routers = routers;
        let ordinary: Arc<Path> = self.places.keepalived.as_path().into();
        if let Some(reading) = self.read(&ordinary, &mut discovery) {
            reading.as_ordinary(&ordinary, &mut discovery);
        }
        let round = self.round;
        self.readings.retain(|_, reading| reading.round == round);
        for reading in self.readings.values() {
            discovery.problems.extend(reading.problems.iter().cloned());
            for found in &reading.found {
                taken.add(Arc::clone(found), &mut discovery);
            }
        }
        self.is_begun = true;
        discovery.instances.sort_by(|a, b| a.id.cmp(&b.id));
        discovery.problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        discovery
    }

    /// Lists the routers; those of before, if that cannot be done.
    fn list_routers(&mut self, discovery: &mut DiscoveryResult) {
        let confs = self.places.neutron.join("ha_confs");
        let listed = std::fs::read_dir(&confs)
            .and_then(std::iter::Iterator::collect::<Result<Vec<_>, io::Error>>);
        match listed {
            Ok(entries) => {
                let is_directory =
                    |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_file());
                let readings = &self.readings;
                self.routers = entries
                    .iter()
                    .filter(|entry| is_directory(entry))
                    .map(|entry| {
                        let id = entry.file_name().to_string_lossy().into();
                        let file = entry.path().join("keepalived.conf");
                        // There are thousands, each known in many places.
                        let known = readings.get_key_value(file.as_path());
                        (id, known.map_or_else(|| file.into(), |(known, _)| Arc::clone(known)))
                    })
                    .collect();
            }
            // A node without Neutron is nothing to talk about.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.routers.clear(),
            Err(error) => discovery.problem(&confs, None, format!("cannot list it: {error}")),
        }
    }

    /// Routers that were there at the last look, and whose directory is missing now.
    fn missing_routers(&self) -> Vec<(InstanceName, Arc<Path>)> {
        let confs = self.places.neutron.join("ha_confs");
        let listed: HashSet<&Path> = self.routers.iter().map(|(_, file)| &**file).collect();
        let is_missing = |file: &Path| file.starts_with(&confs) && !listed.contains(file);
        let readings = self.readings.iter().filter(|(file, _)| is_missing(file));
        let id = |reading: &Reading| {
            let router = reading.found.first().filter(|found| found.origin == Origin::Neutron);
            router.map(|found| found.id.as_str().into())
        };
        readings.filter_map(|(file, reading)| Some((id(reading)?, Arc::clone(file)))).collect()
    }

    /// Whether `file` is missing, and its last reading is still in use.
    pub fn is_held(&self, file: &Path) -> bool {
        self.readings.get(file).is_some_and(|reading| reading.missing_since.is_some())
    }

    /// The last reading of `file`, which is missing, or which includes `missing`; `None` if that counts as gone.
    fn hold(
        &mut self,
        file: &Arc<Path>,
        missing: &Path,
        discovery: &mut DiscoveryResult,
    ) -> Option<&mut Reading> {
        let reading = self.readings.get_mut(file)?;
        let has_place = |found: &Arc<InstanceConfig>| match (&found.netns, found.origin) {
            // Neutron's agent deletes the namespace of a router with its directory.
            (Some(netns), Origin::Neutron) => !matches!(
                Netns::open(netns),
                Err(NetnsError::Missing(_) | NetnsError::NotANamespace(_))
            ),
            _ => true,
        };
        if !reading.found.iter().any(has_place) {
            return None;
        }
        let since = *reading.missing_since.get_or_insert_with(Instant::now);
        let left = MISSING_FILE_HOLD.checked_sub(since.elapsed()).filter(|left| !left.is_zero())?;
        let ends_in = &mut discovery.hold_ends_in;
        *ends_in = Some(ends_in.map_or(left, |first| first.min(left)));
        let seconds = MISSING_FILE_HOLD.as_secs();
        let text = format!("the file is missing; its instances are kept for {seconds} s");
        (reading.stamp, reading.problems) = (None, vec![problem(missing, None, text)]);
        reading.round = self.round;
        Some(reading)
    }

    /// A file that the last reading of `file` included, that does not exist any more, and that `reading` lacks.
    fn missing_include(&self, file: &Arc<Path>, reading: &Reading) -> Option<PathBuf> {
        let known = self.readings.get(file)?;
        let is_missing = |old: &&PathBuf| !reading.files.contains(old) && !old.exists();
        known.files.iter().find(is_missing).cloned()
    }

    /// What `file` says, which is read if it is another than before; `None` if there is none, and
    /// nothing known.
    fn read(&mut self, file: &Arc<Path>, discovery: &mut DiscoveryResult) -> Option<&mut Reading> {
        let round = self.round;
        let found = match std::fs::metadata(file) {
            Ok(metadata) => Ok(Stamp::of(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.hold(file, file, discovery);
            }
            Err(error) => Err(error),
        };
        let known = self.readings.get_mut(file);
        let reading = match found {
            Err(error) => {
                let mut reading = Reading::empty();
                reading.problems = vec![problem(file, None, format!("cannot read it: {error}"))];
                reading
            }
            Ok(stamp) if known.as_ref().is_some_and(|known| known.stamp == Some(stamp)) => {
                let known = self.readings.get_mut(file)?;
                (known.round, known.missing_since) = (round, None);
                return Some(known);
            }
            Ok(stamp) => {
                let (mut reading, written) = Reading::of(file, &self.places.config_id(), stamp);
                if let Some(missing) = self.missing_include(file, &reading)
                    && self.hold(file, &missing, discovery).is_some()
                {
                    return self.readings.get_mut(file).map(|known| &mut **known);
                }
                if let Some(known) = self.readings.get_mut(file) {
                    known.missing_since = None;
                }
                // A file that was written just now may not be written to its end. At the start
                // there is nothing better.
                let age = written.and_then(|written| written.elapsed().ok());
                if age.is_some_and(|age| age < SETTLE) {
                    discovery.is_unsettled = true;
                    if self.is_begun {
                        let known = self.readings.get_mut(file)?;
                        known.round = round;
                        return Some(known);
                    }
                    reading.stamp = None;
                }
                reading
            }
        };
        let known =
            self.readings.entry(Arc::clone(file)).or_insert_with(|| Box::new(Reading::empty()));
        known.round = round;
        if known.is_good && !reading.is_good {
            // What is wrong now was right before: the last good reading stands.
            (known.stamp, known.problems) = (reading.stamp, reading.problems);
        } else {
            let found = std::mem::take(&mut known.found);
            **known = Reading { round, found, ..reading };
        }
        Some(known)
    }
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Reading {
    fn empty() -> Self {
        Self {
            stamp: None,
            netns: None,
            instances: Vec::new(),
            problems: Vec::new(),
            is_good: false,
            files: Vec::new(),
            missing_since: None,
            round: 0,
            found: Vec::new(),
        }
    }

    /// Reads `file` and what it includes; tells when the youngest of them was written.
    fn of(file: &Path, config_id: &str, stamp: Stamp) -> (Self, Option<SystemTime>) {
        let Loaded { configuration, problems, opened } = include::load(file, config_id);
        let OpenedFiles { files, unread, written, has_includes } = opened;
        let mut reading = Self::empty();
        reading.is_good = unread.is_empty();
        for (path, error) in unread {
            reading.problems.push(problem(&path, None, format!("cannot read it: {error}")));
        }
        for Problem { position, text, impact } in problems {
            reading.is_good &= impact == Impact::Note;
            let file = files.get(position.file).map_or(file, PathBuf::as_path);
            reading.problems.push(problem(file, Some(position.line), text));
        }
        reading.stamp = (!has_includes).then_some(stamp);
        if has_includes {
            reading.files = files;
        }
        reading.netns = configuration.netns;
        reading.instances = configuration.instances.into_iter().map(Arc::new).collect();
        (reading, written)
    }

    /// A router of Neutron's: one instance, called after the directory it is in.
    fn as_router(
        &mut self,
        id: &str,
        file: &Arc<Path>,
        names: &HashSet<String>,
        discovery: &mut DiscoveryResult,
    ) {
        let id: InstanceId = match id.parse() {
            Ok(id) => id,
            Err(error) => {
                let text = format!("its directory cannot be an id: {error}");
                return discovery.problem(file, None, text);
            }
        };
        let Some(vrrp) = self.instances.first() else { return self.found.clear() };
        if vrrp.addresses.iter().all(|address| address.is_excluded) {
            let text = "there is no address that would make it primary".to_owned();
            self.found.clear();
            return discovery.problem(file, Some(vrrp.position.line), text);
        }
        let netns = router_netns(&id, |name| names.contains(name));
        if netns.is_none() {
            discovery.problem(file, None, format!("{id} cannot be the name of a namespace"));
        }
        let is_same = |found: &Arc<InstanceConfig>| found.netns == netns && found.vrrp == *vrrp;
        if !self.found.first().is_some_and(is_same) {
            let (vrrp, file) = (Arc::clone(vrrp), Arc::clone(file));
            self.found =
                vec![Arc::new(InstanceConfig { id, origin: Origin::Neutron, netns, file, vrrp })];
        }
    }

    fn as_ordinary(&mut self, file: &Arc<Path>, discovery: &mut DiscoveryResult) {
        let before = std::mem::take(&mut self.found);
        for vrrp in &self.instances {
            let id = match InstanceId::of_name(&vrrp.name) {
                Ok(id) => id,
                Err(error) => {
                    let text = format!("vrrp_instance {:?} cannot be an id: {error}", vrrp.name);
                    discovery.problem(file, Some(vrrp.position.line), text);
                    continue;
                }
            };
            let (netns, file, vrrp) = (self.netns.clone(), Arc::clone(file), Arc::clone(vrrp));
            let found = InstanceConfig { id, origin: Origin::Keepalived, netns, file, vrrp };
            let same = before.iter().find(|before| ***before == found);
            self.found.push(same.map_or_else(|| Arc::new(found), Arc::clone));
        }
    }
}

/// Whose ids are given away.
#[derive(Default)]
struct Taken(HashMap<InstanceId, Arc<Path>>);

impl Taken {
    fn add(&mut self, found: Arc<InstanceConfig>, discovery: &mut DiscoveryResult) {
        if let Some(other) = self.0.get(&found.id) {
            let text = format!("{} is there already, in {}", found.id, other.display());
            let line = found.vrrp.position.line;
            return discovery.problem(&found.file, Some(line), text);
        }
        self.0.insert(found.id.clone(), Arc::clone(&found.file));
        discovery.instances.push(found);
    }
}

impl DiscoveryResult {
    fn problem(&mut self, file: &Path, line: Option<u32>, text: String) {
        self.problems.push(problem(file, line, text));
    }
}

fn problem(file: &Path, line: Option<u32>, text: String) -> ConfigProblem {
    ConfigProblem { file: file.to_owned(), line, text }
}

/// The names of all namespaces, read at once: there may be thousands.
fn netns_names() -> HashSet<String> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The namespace of a router: that of its own, or, with distributed routers, of its source
/// address translation, where the HA link is then.
fn router_netns(id: &InstanceId, exists: impl FnOnce(&str) -> bool) -> Option<NetnsName> {
    let with = |prefix: &str| format!("{prefix}-{id}");
    let snat = Some(with("snat")).filter(|name| exists(name));
    snat.unwrap_or_else(|| with("qrouter")).parse().ok()
}

/// The namespace of one router of Neutron's; `None` if its id cannot be in a name.
pub fn netns_of_router(id: &InstanceId) -> Option<NetnsName> {
    router_netns(id, |name| Path::new(DIRECTORY).join(name).exists())
}

#[cfg(test)]
mod tests;
