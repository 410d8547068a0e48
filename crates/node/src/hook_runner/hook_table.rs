// SPDX-License-Identifier: Apache-2.0
//! The hooks of the configuration file, by source and name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vipwatch_core::ErrorChain;
use vipwatch_history::DeliverySource;

use super::protocol::{HookDefinition, RunRequest, VERSION};
use crate::config::{Config, ConfigError, FILE};

/// Why a request does not fit the configuration of the runner.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error(
        "the node and the hook runner have different versions of the protocol ({node} and {VERSION}): restart the older one"
    )]
    Version { node: u32 },
    #[error("{} has no hook with the name {hook:?}{advice}", file.display())]
    NotConfigured { file: PathBuf, hook: String, advice: String },
    #[error("the hook {hook:?} is different in {}{advice}", file.display())]
    Different { file: PathBuf, hook: String, advice: String },
    #[error("the hook runner cannot use its configuration: {0}")]
    Configuration(String),
}

/// The hooks of one version of the file.
#[derive(Debug)]
pub(super) struct HookTable {
    /// `None` for the default file.
    file: Option<PathBuf>,
    hooks: BTreeMap<(&'static str, String), HookDefinition>,
}

impl HookTable {
    /// Reads the file.
    pub(super) fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let config = Config::load_hooks(file)?;
        let of_rules = config.rules.iter().flat_map(|rule| &rule.hooks);
        let of_rules = of_rules.map(|hook| (DeliverySource::Node, hook));
        let of_receiver = config.receiver.iter().flat_map(|receiver| &receiver.hooks);
        let of_receiver = of_receiver.map(|hook| (DeliverySource::Receiver, hook));
        let hooks = of_rules.chain(of_receiver);
        let hooks =
            hooks.map(|(source, hook)| ((source.as_str(), hook.name.clone()), (&**hook).into()));
        Ok(Self { file: file.map(Path::to_owned), hooks: hooks.collect() })
    }

    /// A table without hooks, if the file cannot be read at the start.
    pub(super) fn empty(file: Option<&Path>) -> Self {
        Self { file: file.map(Path::to_owned), hooks: BTreeMap::new() }
    }

    /// The number of hooks.
    pub(super) fn len(&self) -> usize {
        self.hooks.len()
    }

    /// The definition of the requested hook. If it is not that of this table, the file may have changed: it is read
    /// again.
    pub(super) fn find(&self, request: &RunRequest) -> Result<HookDefinition, Mismatch> {
        if request.version != VERSION {
            return Err(Mismatch::Version { node: request.version });
        }
        self.find_here(request).or_else(|_| {
            let failed = |error| Mismatch::Configuration(ErrorChain(&error).to_string());
            Self::load(self.file.as_deref()).map_err(failed)?.find_here(request)
        })
    }

    fn find_here(&self, request: &RunRequest) -> Result<HookDefinition, Mismatch> {
        let file = self.file.as_deref().unwrap_or(Path::new(FILE)).to_owned();
        let hook = &request.hook;
        let advice = advice(&file, request.file.as_deref());
        let is_named = |key: &&(&str, String)| key.0 == request.source && key.1 == *hook;
        match self.hooks.keys().find(is_named).map(|key| &self.hooks[key]) {
            Some(definition) if *definition == request.definition => Ok(definition.clone()),
            Some(_) => Err(Mismatch::Different { file, hook: hook.clone(), advice }),
            None => Err(Mismatch::NotConfigured { file, hook: hook.clone(), advice }),
        }
    }
}

/// The hint about a hook that the runner's `file` does not have. `of_node` is the file that the node has read.
fn advice(file: &Path, of_node: Option<&str>) -> String {
    let absolute = std::path::absolute(file).unwrap_or_default();
    match of_node {
        Some(of_node) if Path::new(of_node) != absolute => format!(
            "; the node has read {of_node}: set the same file for both, by VIPWATCH_CONFIG or --config"
        ),
        _ => ": reload the node".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_both_files_if_the_node_has_read_another_one() {
        let file = Path::new("/etc/vipwatch/vipwatch.toml");
        assert_eq!(advice(file, Some("/etc/vipwatch/vipwatch.toml")), ": reload the node");
        assert_eq!(advice(file, None), ": reload the node");
        let text = advice(file, Some("/srv/other.toml"));
        assert!(text.contains("the node has read /srv/other.toml"), "{text}");
    }
}
