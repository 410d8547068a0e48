// SPDX-License-Identifier: Apache-2.0
//! One configuration file of keepalived: its parsed content, and the instances that were made from it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use vipwatch_core::keepalived::{Configuration, Harm, Impact, Problem, VrrpInstance};
use vipwatch_core::{InstanceId, NetnsName};
use vipwatch_linux::file::FileStamp;

use super::include::{self, ConfigRequest, Loaded};
use super::instance_config::{InstanceConfig, Origin, router_netns};
use super::loaded_config::PendingEdit;
use super::{ConfigProblem, DiscoveryResult};
use crate::processes::{ProcessNetns, ProcessSource, unnamed_netns};

/// LIMIT: number of problems of one configuration that are kept. The first ones name the cause of the others.
const MAX_PROBLEMS: usize = 100;

/// The content of a configuration file, and its problems in the last scan.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigFile {
    /// `None` if the file must be parsed in every scan, because it includes others, or uses the environment.
    pub(super) stamp: Option<FileStamp>,
    /// The namespace that the file names with `net_namespace`.
    pub(super) netns: Option<NetnsName>,
    /// A boxed slice, because a vector would keep the memory of the parser's larger list.
    pub(super) vrrp_instances: Box<[Arc<VrrpInstance>]>,
    pub(super) problems: Vec<ConfigProblem>,
    /// Whether keepalived would use the file: it can be read, and all its problems are notes.
    pub(super) is_valid: bool,
    /// What keepalived may lose when it reads the file.
    pub(super) harm: Harm,
    /// Whether the instances of the file are all known: no problem can hide one.
    pub(super) has_all_instances: bool,
    /// This file and those that it includes; empty if it includes none.
    pub(super) files: Vec<PathBuf>,
    /// Why this is not the content of the file; `None` if it is.
    pub(super) pending: Option<PendingEdit>,
    /// When a scan first found what its process has loaded changing; `None` while it does not.
    pub(super) changing_since: Option<Instant>,
    /// When a scan first found the file missing; `None` while it exists.
    pub(super) missing_since: Option<Instant>,
    /// The number of the last scan that used the file.
    pub(super) scan_number: u64,
    /// The instances in the file. An unchanged instance stays the same `Arc` from scan to scan.
    pub(super) instances: Vec<Arc<InstanceConfig>>,
}

/// A parsed file, and the time at which it or the youngest file that it includes was written.
pub(super) struct ParsedFile {
    pub(super) content: ConfigFile,
    pub(super) written: Option<SystemTime>,
}

/// The problems of a file while another content is in use.
pub(super) fn last_valid(problems: Vec<ConfigProblem>) -> Vec<ConfigProblem> {
    problems.into_iter().map(ConfigProblem::with_last_valid).collect()
}

impl ConfigFile {
    /// A file that could not be read.
    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        let problem = ConfigProblem::new(file, None, format!("cannot read the file: {error}"));
        Self { problems: vec![problem], ..Self::default() }
    }

    /// A file that does not exist, although keepalived runs with it. `loaded` says what it has loaded.
    pub(super) fn missing(file: &Path, loaded: &str) -> Self {
        let text = format!("the file is missing; keepalived still runs {loaded}");
        let problems = vec![ConfigProblem::new(file, None, text)];
        Self { problems, harm: Harm::Refused, ..Self::default() }
    }

    /// Whether this is still the content in use, for a file with this stamp that `source` uses.
    pub(super) fn is_current(&self, stamp: FileStamp, source: Option<&ProcessSource>) -> bool {
        let is_loaded_at = |at| source.is_some_and(|source| source.has_loaded_at(at));
        self.stamp == Some(stamp)
            && match self.pending {
                None => true,
                Some(PendingEdit::Changing) => false,
                Some(PendingEdit::Ended) => !source.is_some_and(ProcessSource::is_running),
                Some(PendingEdit::NotLoaded { loaded_at, .. }) => is_loaded_at(loaded_at),
            }
    }

    /// Whether keepalived has loaded other settings, or a reload of this content would change what it loses.
    pub(super) fn differs_from(&self, loaded: &Configuration) -> bool {
        let is_same = |(own, loaded): (&Arc<VrrpInstance>, &VrrpInstance)| {
            **own == VrrpInstance { position: own.position, ..loaded.clone() }
        };
        self.netns != loaded.netns
            || self.vrrp_instances.len() != loaded.instances.len()
            || !self.vrrp_instances.iter().zip(&loaded.instances).all(is_same)
            || self.harm > loaded.harm
            || loaded.harm == Harm::AddressesLost && self.harm < loaded.harm
    }

    /// The content of `file`, with the settings that keepalived has loaded in place of its own. Its problems stay.
    pub(super) fn with_loaded(
        self,
        file: &Path,
        loaded: Configuration,
        loaded_at: SystemTime,
    ) -> Self {
        let is_valid = !loaded.is_refused();
        let is_refused = self.harm > loaded.harm;
        let mut problems = last_valid(self.problems);
        if loaded.harm == Harm::AddressesLost {
            let text = "keepalived lost addresses when it read this file: it does not know a block before them";
            let problem = ConfigProblem::new(file, None, text.to_owned()).with_last_valid();
            problems.insert(0, ConfigProblem { loses_addresses: true, ..problem });
        }
        Self {
            netns: loaded.netns,
            vrrp_instances: loaded.instances.into_iter().map(Arc::new).collect(),
            problems,
            is_valid,
            has_all_instances: is_valid,
            pending: Some(PendingEdit::NotLoaded { loaded_at, is_refused }),
            ..self
        }
    }

    /// Parses a file and the files that it includes.
    pub(super) fn parse(request: ConfigRequest<'_>, stamp: FileStamp) -> ParsedFile {
        let loaded = include::load(request);
        let file = request.root.shown(request.file);
        let Loaded { configuration, problems, files, unread, written, has_includes, may_quote } =
            loaded;
        let is_valid =
            unread.is_empty() && problems.iter().all(|problem| problem.impact < Impact::Ignored);
        let has_all_instances = unread.is_empty()
            && !problems.iter().any(|problem| problem.impact.may_hide_instances());
        let harm = configuration.harm;
        let mut content = Self { is_valid, harm, has_all_instances, ..Self::default() };
        let count = unread.len() + problems.len() + problems.left_out();
        for (path, error) in unread.into_iter().take(MAX_PROBLEMS) {
            let text = format!("cannot read the file: {error}");
            content.problems.push(ConfigProblem::new(&path, None, text));
        }
        let left = MAX_PROBLEMS - content.problems.len();
        for Problem { position, message, impact } in problems.iter().take(left) {
            let file = files.get(position.file).unwrap_or(&file);
            let text = message.text(may_quote).to_owned();
            let problem = ConfigProblem::new(file, Some(position.line), text);
            let loses_addresses = *impact == Impact::AddressesLost;
            let is_harmless = !impact.may_hide_instances() && !loses_addresses;
            content.problems.push(ConfigProblem { loses_addresses, is_harmless, ..problem });
        }
        if count > MAX_PROBLEMS {
            let text = format!("{} more problems are not listed", count - MAX_PROBLEMS);
            content.problems.push(ConfigProblem::new(&file, None, text));
        }
        // The environment of a later process may differ.
        let is_complete = !has_includes && !configuration.uses_environment;
        content.stamp = is_complete.then_some(stamp);
        if has_includes {
            content.files = files;
        }
        content.netns = configuration.netns;
        content.vrrp_instances = configuration.instances.into_iter().map(Arc::new).collect();
        ParsedFile { content, written }
    }

    /// Makes the instance of a Neutron router. Its id is the name of its directory; `netns_names` are the names
    /// of all namespaces.
    pub(super) fn update_router(
        &mut self,
        directory: &str,
        file: &Arc<Path>,
        netns_names: &HashSet<String>,
        result: &mut DiscoveryResult,
    ) {
        let id: InstanceId = match directory.parse() {
            Ok(id) => id,
            Err(error) => {
                let text = format!("the name of its directory is no router id: {error}");
                return result.problem(file, None, text);
            }
        };
        let Some(vrrp) = self.vrrp_instances.first() else { return self.instances.clear() };
        if vrrp.addresses.iter().all(|address| address.is_excluded) {
            let text = "no address can make the router primary: all are excluded".to_owned();
            self.instances.clear();
            // The other addresses may have problems.
            result.may_hide_instances |= !self.is_valid;
            return result.problem(file, Some(vrrp.position.line), text);
        }
        let netns = router_netns(&id, |name| netns_names.contains(name));
        if netns.is_none() {
            result.problem(
                file,
                None,
                format!("router id {id} does not fit into the name of a namespace"),
            );
        }
        let is_same = |known: &Arc<InstanceConfig>| known.netns == netns && known.vrrp == *vrrp;
        if !self.instances.first().is_some_and(is_same) {
            let (vrrp, file) = (Arc::clone(vrrp), Arc::clone(file));
            let router = InstanceConfig { id, origin: Origin::Neutron, netns, file, vrrp };
            self.instances = vec![Arc::new(router)];
        }
    }

    /// Makes the instances of ordinary keepalived: one for each `vrrp_instance`. `source` is the process that uses the
    /// file: its addresses are in its namespace.
    pub(super) fn update_ordinary(
        &mut self,
        file: &Arc<Path>,
        source: Option<&ProcessSource>,
        result: &mut DiscoveryResult,
    ) {
        let known = std::mem::take(&mut self.instances);
        let known: HashMap<&InstanceId, &Arc<InstanceConfig>> =
            known.iter().map(|instance| (&instance.id, instance)).collect();
        let is_foreign = source.is_some_and(|source| source.is_foreign);
        let origin = if is_foreign { Origin::Container } else { Origin::Keepalived };
        let netns = self.netns_of(source);
        for vrrp in &self.vrrp_instances {
            let Ok(id) = InstanceId::of_name(&vrrp.name) else {
                let text = "the name of this vrrp_instance cannot be an instance id".to_owned();
                result.problem(file, Some(vrrp.position.line), text);
                continue;
            };
            let (netns, file, vrrp) = (netns.clone(), Arc::clone(file), Arc::clone(vrrp));
            let instance = InstanceConfig { id, origin, netns, file, vrrp };
            let same = known.get(&instance.id).filter(|known| ****known == instance);
            self.instances.push(same.map_or_else(|| Arc::new(instance), |same| Arc::clone(same)));
        }
    }

    /// The namespace of the instances: that of the process, or the one that the file names. The file of a container
    /// cannot choose a namespace of this machine.
    fn netns_of(&self, source: Option<&ProcessSource>) -> Option<NetnsName> {
        let Some(source) = source else { return self.netns.clone() };
        let named = self.netns.clone().filter(|_| !source.is_foreign);
        match &source.netns {
            ProcessNetns::Named(name) => Some(name.clone()),
            // Between its start and its change of the namespace, keepalived is in that of its parent.
            ProcessNetns::Own | ProcessNetns::Unreadable => named,
            ProcessNetns::Unnamed => named.or_else(|| source.process.map(unnamed_netns)),
        }
    }
}
