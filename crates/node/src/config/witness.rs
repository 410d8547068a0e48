// SPDX-License-Identifier: Apache-2.0
//! The table `[witness]`: on which links adverts are captured.

use glob::Pattern;
use vipwatch_core::LinkName;
use vipwatch_linux::vrrp_capture::CaptureMode;

use super::document::{SettingErrors, Table};

/// Which adverts the node captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WitnessConfig {
    /// Whether the node captures adverts at all.
    pub is_enabled: bool,
    /// Patterns of links on which sent adverts are captured as well.
    pub sent: Vec<Pattern>,
    /// Patterns of links on which no adverts are captured.
    pub excluded: Vec<Pattern>,
}

impl Default for WitnessConfig {
    /// Neutron's links `ha-*` carry little but VRRP.
    fn default() -> Self {
        let sent = Pattern::new("ha-*").into_iter().collect();
        Self { is_enabled: true, sent, excluded: Vec::new() }
    }
}

impl WitnessConfig {
    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let default = Self::default();
        let config = Self {
            is_enabled: table.flag("enabled", errors).unwrap_or(default.is_enabled),
            sent: patterns(&mut table, "sent", errors).unwrap_or(default.sent),
            excluded: patterns(&mut table, "exclude", errors).unwrap_or(default.excluded),
        };
        table.finish(errors);
        config
    }

    /// Which adverts of a link are captured; `None` for no adverts.
    pub fn mode(&self, link: LinkName) -> Option<CaptureMode> {
        let name = link.to_string();
        let is_one_of = |patterns: &[Pattern]| patterns.iter().any(|one| one.matches(&name));
        if !self.is_enabled || is_one_of(&self.excluded) {
            return None;
        }
        Some(if is_one_of(&self.sent) {
            CaptureMode::ReceivedAndSent
        } else {
            CaptureMode::Received
        })
    }
}

/// The patterns of `key`; `None` without the key.
fn patterns(
    table: &mut Table<'_, '_>,
    key: &'static str,
    errors: &mut SettingErrors<'_>,
) -> Option<Vec<Pattern>> {
    let mut patterns = Vec::new();
    for (offset, text) in table.texts(key, errors)? {
        match Pattern::new(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => errors.add(offset, format!("the pattern {text:?}: {}", error.msg)),
        }
    }
    Some(patterns)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn patterns_of_links_decide_which_adverts_are_captured() {
        let mode = |text: &str, link: &str| {
            let config = Config::parse(Path::new("/etc/v.toml"), text).unwrap().witness;
            config.mode(link.parse().unwrap())
        };
        assert_eq!(mode("", "eth0"), Some(CaptureMode::Received));
        assert_eq!(mode("", "ha-1234"), Some(CaptureMode::ReceivedAndSent));
        assert_eq!(mode("[witness]\nenabled = false\n", "eth0"), None);
        let text = "[witness]\nsent = [\"vrrp?\"]\nexclude = \"eth1\"\n";
        assert_eq!(mode(text, "vrrp0"), Some(CaptureMode::ReceivedAndSent));
        assert_eq!(mode(text, "ha-1234"), Some(CaptureMode::Received));
        assert_eq!(mode(text, "eth1"), None);
        let text = "[witness]\nsent = [\"a***\"]\nenable = true\n";
        let errors = Config::parse(Path::new("/etc/v.toml"), text).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("the pattern \"a***\""), "{texts:?}");
        assert!(texts[1].ends_with("did you mean enabled?"), "{texts:?}");
    }
}
