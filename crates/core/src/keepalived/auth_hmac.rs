// SPDX-License-Identifier: Apache-2.0
//! The block `auth_hmac` of an instance: which adverts keepalived signs and accepts. Its keys are not read.

use std::time::Duration;

use super::numbers::{Trailing, number};

/// The range of `time_window`, and the least window that is derived from `advert_int`, in seconds.
const MIN_WINDOW: u64 = 1;
const MAX_WINDOW: u64 = 300;
const MIN_DERIVED_WINDOW: u64 = 5;

/// `mode`: which adverts are signed, and whether one without a signature is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthHmacMode {
    /// Signs its adverts, and drops those without a signature.
    #[default]
    Enforce,
    /// Signs its adverts, and accepts those without a signature.
    Permissive,
    /// Does not sign its adverts, and accepts those without a signature.
    ReceiveOnly,
}

/// The block `auth_hmac` of an instance, without its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthHmac {
    /// `mode`.
    pub mode: AuthHmacMode,
    /// The ids of the keys, in the order of the file. Each is accepted in a received advert.
    pub key_ids: Box<[u8]>,
    /// `active_key`: the key that signs; one of `key_ids`.
    pub active_key: u8,
    /// The greatest accepted difference between the clock and the time in an advert; `None` with
    /// `anti_replay monotonic`, which compares no clocks.
    pub time_window: Option<Duration>,
}

impl AuthHmac {
    /// Whether the adverts of the instance have a signature.
    pub fn signs(&self) -> bool {
        self.mode != AuthHmacMode::ReceiveOnly
    }
}

/// The statements of the block.
#[derive(Debug, Default)]
pub(super) struct AuthHmacDraft {
    mode: AuthHmacMode,
    key_ids: Vec<u8>,
    active_key: Option<u8>,
    is_monotonic: bool,
    time_window: Option<u64>,
}

impl AuthHmacDraft {
    /// Reads a statement. keepalived ignores one with an invalid value.
    pub(super) fn read(&mut self, words: &[String]) {
        let text = words.get(1).map_or("", String::as_str);
        let id = || number(text, 1, 255, Trailing::Rejected).and_then(|id| u8::try_from(id).ok());
        match (words[0].as_str(), text) {
            ("key", _) if words.len() > 2 => {
                self.key_ids.extend(id().filter(|id| !self.key_ids.contains(id)));
            }
            ("active_key", _) => self.active_key = id().or(self.active_key),
            ("anti_replay", "time") => self.is_monotonic = false,
            ("anti_replay", "monotonic") => self.is_monotonic = true,
            ("time_window", _) => {
                let window = number(text, MIN_WINDOW, MAX_WINDOW, Trailing::Rejected);
                self.time_window = window.or(self.time_window);
            }
            ("mode", "enforce") => self.mode = AuthHmacMode::Enforce,
            ("mode", "permissive") => self.mode = AuthHmacMode::Permissive,
            ("mode", "receive-only") => self.mode = AuthHmacMode::ReceiveOnly,
            _ => {}
        }
    }

    /// The block as keepalived uses it; `None` if the active key is not defined, because keepalived then disables it.
    /// `interval` is `advert_int` as it is written.
    pub(super) fn complete(&self, interval: Option<Duration>, is_strict: bool) -> Option<AuthHmac> {
        let active_key = self.active_key.filter(|id| self.key_ids.contains(id))?;
        let derived = 3 * interval.map_or(0, |interval| interval.as_secs());
        let window =
            self.time_window.unwrap_or_else(|| derived.clamp(MIN_DERIVED_WINDOW, MAX_WINDOW));
        Some(AuthHmac {
            mode: if is_strict { AuthHmacMode::Enforce } else { self.mode },
            key_ids: self.key_ids.as_slice().into(),
            active_key,
            time_window: (!self.is_monotonic).then(|| Duration::from_secs(window)),
        })
    }
}
