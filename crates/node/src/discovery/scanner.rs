// SPDX-License-Identifier: Apache-2.0
//! Finds the configuration files of keepalived and reads those that have changed, in one scan after another.
//!
//! - If a valid file becomes invalid, or is being written, its last valid content stays in use.
//! - If a file disappears, its instances are kept for [`super::MISSING_FILE_HOLD`].
//! - While keepalived has not loaded a file as it is now, what it has loaded is in use; also if it ends, until the next one.

mod reading;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vipwatch_core::{InstanceId, NetnsName};
use vipwatch_linux::netns::DIRECTORY;
use vipwatch_linux::root_directory::RootDirectory;

use self::reading::FilePlace;
use super::config_file::ConfigFile;
use super::include::Author;
use super::instance_config::{InstanceConfig, Origin};
use super::loaded_config::PendingEdit;
use super::ordinary_files::{self, OrdinaryFile, is_excluded, is_in_process_root, ordinary_files};
use super::{ConfigLocations, ConfigProblem, DiscoveryResult, read_processes};
use crate::processes::{ProcessNetns, ProcessSource};

/// LIMIT: number of routers: four times as many as the largest known node has. Any user of Neutron's group can create
/// directories.
const MAX_ROUTERS: usize = 20_000;

/// LIMIT: number of instances of all files together.
const MAX_INSTANCES: usize = 40_000;

/// LIMIT: number of problems of all files together.
const MAX_PROBLEMS: usize = 1_000;

/// A directory in `ha_confs`, and the configuration file in it.
#[derive(Debug, Clone)]
struct RouterFile {
    /// The name of the directory: the router id, unless a stranger made the directory.
    directory: Box<str>,
    file: Arc<Path>,
}

/// Scans for instances, again and again.
#[derive(Debug)]
pub struct ConfigScanner {
    locations: ConfigLocations,
    /// The instances of the node's own configuration.
    own: Vec<Arc<InstanceConfig>>,
    /// A hash map, because there are thousands of long paths with the same beginning, and no order is needed.
    files: HashMap<Arc<Path>, Box<ConfigFile>>,
    /// The number of this scan, counted from 1.
    scan_number: u64,
    /// The configurations that processes use or have used.
    sources: Vec<ProcessSource>,
    /// Instances with the id of another one, which have got an id of their own: by file and first id.
    renamed: HashMap<(Arc<Path>, InstanceId), Arc<InstanceConfig>>,
    /// The routers at the last time that `ha_confs` could be listed.
    routers: Vec<RouterFile>,
    /// The root directory of this program: opened once, because there are thousands of files.
    own_root: Option<Arc<RootDirectory>>,
}

impl ConfigScanner {
    /// A scanner that has not scanned yet. `own` are instances that are in no file of keepalived.
    pub fn new(locations: ConfigLocations, own: Vec<Arc<InstanceConfig>>) -> Self {
        Self {
            locations,
            own,
            files: HashMap::new(),
            scan_number: 0,
            sources: Vec::new(),
            renamed: HashMap::new(),
            routers: Vec::new(),
            own_root: RootDirectory::own().ok().map(Arc::new),
        }
    }

    /// A scanner that knows which files the processes of this moment use, for a command that scans once.
    pub fn with_processes(locations: ConfigLocations, own: Vec<Arc<InstanceConfig>>) -> Self {
        let processes = read_processes(&locations);
        let mut scanner = Self::new(locations, own);
        scanner.set_sources(processes.map(|table| table.sources()).unwrap_or_default());
        scanner
    }

    /// Scans the files of these processes, too. The first one of two with the same instance keeps the plain id.
    pub fn set_sources(&mut self, sources: Vec<ProcessSource>) {
        let known_sources: HashMap<&Arc<Path>, &ProcessSource> =
            self.sources.iter().map(|known| (&known.file, known)).collect();
        for source in &sources {
            let known = known_sources.get(&source.file);
            let is_changed = |known: &&ProcessSource| {
                (&known.config_id, known.version, known.process)
                    != (&source.config_id, source.version, source.process)
            };
            if known.is_none_or(is_changed)
                && let Some(file) = self.files.get_mut(&source.file)
            {
                // Conditional lines may give the file another content, and the process may have loaded another one.
                file.stamp = None;
            }
        }
        self.sources = sources;
    }

    /// Scans these locations from now on. The content of files that stay is kept.
    pub fn set_locations(&mut self, locations: ConfigLocations, own: Vec<Arc<InstanceConfig>>) {
        if locations.config_id() != self.locations.config_id() {
            // Conditional lines may give every file another content.
            self.files.values_mut().for_each(|file| file.stamp = None);
        }
        self.locations = locations;
        self.own = own;
    }

    /// The file of each router, in a directory of its own. A change there makes a scan worthwhile.
    pub(super) fn router_files(&self) -> Vec<Arc<Path>> {
        self.routers.iter().map(|router| Arc::clone(&router.file)).collect()
    }

    /// The other directories in which a change makes a scan worthwhile: those of ordinary and included files.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        let included = self.files.values().flat_map(|file| &file.files);
        let of_processes = self.sources.iter().map(|source| &*source.file);
        let files = included.map(PathBuf::as_path).chain(of_processes);
        let files = files.filter(|file| !is_in_process_root(file));
        let parents = files.filter_map(|file| Some(file.parent()?.to_owned()));
        let ha_confs = self.ha_confs();
        let parents = parents.filter(|directory| !directory.starts_with(&ha_confs));
        let named = ordinary_files::directories(&self.locations);
        parents.chain(named).collect()
    }

    /// The files that are missing, and the instances of which are kept for a while.
    pub(super) fn held(&self) -> Vec<Arc<Path>> {
        let held = self.files.iter().filter(|(_, content)| content.missing_since.is_some());
        held.map(|(file, _)| Arc::clone(file)).collect()
    }

    /// The files of which the content is not in use, because it is changing or the running keepalived has not loaded it.
    pub(crate) fn pending(&self) -> HashMap<Arc<Path>, PendingEdit> {
        let pending = self.files.iter();
        let pending =
            pending.filter_map(|(file, content)| Some((Arc::clone(file), content.pending?)));
        // A process that has ended changes no address.
        pending.filter(|(_, pending)| *pending != PendingEdit::Ended).collect()
    }

    /// Lists the files, reads those that have changed, and returns all instances.
    pub fn scan(&mut self) -> DiscoveryResult {
        self.scan_with(&mut || {})
    }

    /// The same; calls `progress` before each file.
    pub(super) fn scan_with(&mut self, progress: &mut dyn FnMut()) -> DiscoveryResult {
        let mut result = DiscoveryResult::default();
        self.scan_number += 1;
        self.list_routers(&mut result);
        let netns_names = netns_names();
        let missing = self.missing_routers();
        let routers = std::mem::take(&mut self.routers);
        for RouterFile { directory, file } in routers.iter().chain(&missing) {
            progress();
            if let Some(content) = self.read_router(file, &mut result) {
                content.update_router(directory, file, &netns_names, &mut result);
            }
        }
        self.routers = routers;
        let order = self.read_ordinary(&mut result, progress);
        let scan_number = self.scan_number;
        self.files.retain(|_, file| file.scan_number == scan_number);
        self.collect_instances(&order, &mut result);
        result.instances.sort_by(|a, b| a.id.cmp(&b.id));
        result.problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        result.problems.truncate(MAX_PROBLEMS);
        result
    }

    /// Reads the files of ordinary keepalived; returns them in the order in which their instances get their ids.
    fn read_ordinary(
        &mut self,
        result: &mut DiscoveryResult,
        progress: &mut dyn FnMut(),
    ) -> Vec<Arc<Path>> {
        let ha_confs = self.ha_confs();
        let sources = self.sources_without_routers();
        let mut files = ordinary_files(&self.locations, &sources, &ha_confs);
        let listed: HashSet<Arc<Path>> = files.iter().map(|file| Arc::clone(&file.file)).collect();
        // A file that matched a pattern may be missing for a moment.
        let is_missing = |file: &&Arc<Path>| {
            !file.starts_with(&ha_confs)
                && !listed.contains(*file)
                && !file.exists()
                && !is_in_process_root(file)
        };
        let missing = self.files.keys().filter(is_missing).cloned();
        files.extend(missing.map(|file| OrdinaryFile { file, source: None }));
        for OrdinaryFile { file, source } in &files {
            progress();
            if let Some(content) = self.read_used_by(file, source.as_ref(), result) {
                content.update_ordinary(file, source.as_ref(), result);
            }
        }
        files.into_iter().map(|file| file.file).collect()
    }

    /// Puts the instances of all files into the result. `order` are the ordinary files. An id of another file gets the name
    /// of the namespace or of the file as its end; an id that occurs twice nevertheless is a problem.
    fn collect_instances(&mut self, order: &[Arc<Path>], result: &mut DiscoveryResult) {
        let mut files_by_id: HashMap<InstanceId, Arc<Path>> = HashMap::new();
        let ordinary: HashSet<&Arc<Path>> = order.iter().collect();
        let routers = self.files.iter().filter(|(file, _)| !ordinary.contains(file));
        let ordinary = order.iter().filter_map(|file| self.files.get_key_value(file));
        let in_files = routers.chain(ordinary).flat_map(|(_, file)| &file.instances);
        let mut renamed = HashMap::new();
        for instance in self.own.iter().chain(in_files) {
            if result.instances.len() >= MAX_INSTANCES {
                let text = format!("more than {MAX_INSTANCES} instances: the rest is not followed");
                result.problem(&instance.file, None, text);
                result.may_hide_instances = true;
                break;
            }
            let mut instance = Arc::clone(instance);
            if let Some(other) = files_by_id.get(&instance.id) {
                let is_free = |id: &InstanceId| !files_by_id.contains_key(id);
                let id = other_id(&instance).filter(|_| *other != instance.file).filter(is_free);
                let Some(id) = id else {
                    let text = format!(
                        "instance id {} is already used in {}",
                        instance.id,
                        other.display()
                    );
                    result.problem(&instance.file, Some(instance.vrrp.position.line), text);
                    continue;
                };
                let key = (Arc::clone(&instance.file), instance.id.clone());
                let other = InstanceConfig { id, ..(*instance).clone() };
                let known = self.renamed.get(&key).filter(|known| ***known == other);
                // An instance that has not changed stays the same `Arc`.
                instance = known.map_or_else(|| Arc::new(other), Arc::clone);
                renamed.insert(key, Arc::clone(&instance));
            }
            files_by_id.insert(instance.id.clone(), Arc::clone(&instance.file));
            result.instances.push(instance);
        }
        self.renamed = renamed;
        for file in self.files.values() {
            result.may_hide_instances |= !file.has_all_instances;
            result.problems.extend(file.problems.iter().cloned());
        }
    }

    /// The sources, except those of an agent in a container: its routers are found by their files.
    fn sources_without_routers(&self) -> Vec<ProcessSource> {
        let instances = self.files.values().flat_map(|file| &file.instances);
        let routers = instances.filter(|instance| instance.origin == Origin::Neutron);
        let namespaces: HashSet<&NetnsName> =
            routers.filter_map(|instance| instance.netns.as_ref()).collect();
        let is_router = |source: &&ProcessSource| {
            let ProcessNetns::Named(name) = &source.netns else { return false };
            source.is_foreign && namespaces.contains(name)
        };
        self.sources.iter().filter(|source| !is_router(source)).cloned().collect()
    }

    /// The directory with the directories of the routers.
    pub(super) fn ha_confs(&self) -> PathBuf {
        self.locations.neutron.join("ha_confs")
    }

    /// Lists the routers. If that fails, the routers of the last scan stay.
    fn list_routers(&mut self, result: &mut DiscoveryResult) {
        let ha_confs = self.ha_confs();
        let listed = std::fs::read_dir(&ha_confs).and_then(|entries| {
            entries.take(MAX_ROUTERS + 1).collect::<Result<Vec<_>, io::Error>>()
        });
        let is_directory =
            |entry: &&std::fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_file());
        let router = |entry: &std::fs::DirEntry| {
            let directory = entry.file_name().to_string_lossy().into();
            let file = entry.path().join("keepalived.conf");
            // There are thousands of paths, each used in many places: a known one is shared.
            let known = self.files.get_key_value(file.as_path());
            let file = known.map_or_else(|| file.into(), |(known, _)| Arc::clone(known));
            RouterFile { directory, file }
        };
        match listed {
            Ok(entries) if entries.len() > MAX_ROUTERS => {
                let text = format!("the directory has more than {MAX_ROUTERS} entries");
                let problem = ConfigProblem::new(&ha_confs, None, text);
                result.problems.push(problem.with_last_valid());
                result.may_hide_instances = true;
            }
            Ok(entries) => {
                let routers = entries.iter().filter(is_directory).map(router);
                let is_wanted = |router: &RouterFile| !is_excluded(&self.locations, &router.file);
                self.routers = routers.filter(is_wanted).collect();
            }
            // A host without Neutron has no such directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.routers.clear(),
            Err(error) => {
                let text = format!("cannot list the directory: {error}");
                let problem = ConfigProblem::new(&ha_confs, None, text);
                result.problems.push(problem.with_last_valid());
                result.may_hide_instances = true;
            }
        }
    }

    /// The routers of the last scan that have no directory any more.
    fn missing_routers(&self) -> Vec<RouterFile> {
        let ha_confs = self.ha_confs();
        let listed: HashSet<&Path> = self.routers.iter().map(|router| &*router.file).collect();
        let is_missing = |file: &Path| file.starts_with(&ha_confs) && !listed.contains(file);
        let missing = self.files.iter().filter(|(file, _)| is_missing(file));
        let first = missing.filter_map(|(file, content)| Some((file, content.instances.first()?)));
        first
            .filter(|(_, instance)| instance.origin == Origin::Neutron)
            .map(|(file, instance)| {
                let directory = instance.id.as_str().into();
                RouterFile { directory, file: Arc::clone(file) }
            })
            .collect()
    }

    /// A router's file. What its process has loaded does not matter: the agent never changes the address that decides the
    /// role.
    fn read_router(
        &mut self,
        file: &Arc<Path>,
        result: &mut DiscoveryResult,
    ) -> Option<&mut ConfigFile> {
        self.read(file, &FilePlace::own(file, Author::Neutron), None, result)
    }

    /// An ordinary keepalived's file; `source` is the process that uses it.
    fn read_used_by(
        &mut self,
        file: &Arc<Path>,
        source: Option<&ProcessSource>,
        result: &mut DiscoveryResult,
    ) -> Option<&mut ConfigFile> {
        let own = || FilePlace::own(file, Author::Operator);
        let place = source.map_or_else(own, |source| FilePlace::of(file, source));
        self.read(file, &place, source, result)
    }
}

/// Another id for an instance with an id that another one has: with the name of its namespace, or of its file.
fn other_id(instance: &InstanceConfig) -> Option<InstanceId> {
    if !matches!(instance.origin, Origin::Keepalived | Origin::Container) {
        return None;
    }
    // The name of a container's namespace may change with each start, on which an id must not depend.
    let is_stable =
        |netns: &&NetnsName| netns.process().is_none() && instance.origin != Origin::Container;
    let end = match instance.netns.as_ref().filter(is_stable) {
        Some(netns) => netns.as_str().to_owned(),
        None => instance.file.file_stem()?.to_string_lossy().into_owned(),
    };
    InstanceId::of_name(&format!("{}.{end}", instance.vrrp.name)).ok()
}

/// The names of all namespaces. They are listed once for each scan, because there may be thousands.
fn netns_names() -> HashSet<String> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
