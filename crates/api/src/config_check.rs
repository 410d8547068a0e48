// SPDX-License-Identifier: Apache-2.0
//! The answer of `vipwatch config check`. No route has it: the command reads the file itself.

use serde::{Deserialize, Serialize};

use crate::Schema;

/// The result of a check of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigCheckDocument {
    /// [`Schema::ConfigCheck`]
    pub schema: Schema,
    /// The file.
    pub file: String,
    /// Whether a node would use the file.
    pub is_valid: bool,
    /// Why a node refuses the file; empty if it is valid.
    pub errors: Vec<ConfigErrorItem>,
    /// Settings that have no effect now.
    pub warnings: Vec<String>,
}

/// One error of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigErrorItem {
    /// The line number, from 1; null if the error is not about a line.
    pub line: Option<u32>,
    /// The number of the character in the line, from 1; null if the error is not about a line.
    pub column: Option<u32>,
    /// The message.
    pub text: String,
}
