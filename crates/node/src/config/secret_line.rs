// SPDX-License-Identifier: Apache-2.0
//! A secret of one line outside the configuration: the value of a header, or a URL.

use super::protected_file::ProtectedFileError;
use super::web::WebFile;

/// A secret outside the configuration that cannot be used. The text never contains a part of it.
#[derive(Debug, thiserror::Error)]
#[error("{setting} = {file}")]
pub struct SecretError {
    pub(super) setting: String,
    pub(super) file: WebFile,
    pub(super) source: SecretProblem,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SecretProblem {
    #[error(transparent)]
    File(ProtectedFileError),
    #[error("it is empty")]
    Empty,
    #[error("it contains a line break before its end")]
    LineBreak,
    #[error("it contains a control character, or a character that is not ASCII")]
    NotPrintable,
    #[error("its content is not a URL that begins with http:// or https://")]
    NotUrl,
    #[error("credentials would be sent to another host without encryption")]
    Unencrypted,
}

impl SecretError {
    /// What to do.
    pub fn hint(&self) -> String {
        let hint = match &self.source {
            SecretProblem::File(error) => return error.hint(),
            SecretProblem::Empty => "write the whole value to the file",
            SecretProblem::LineBreak | SecretProblem::NotPrintable => {
                "the file is one line of printable ASCII characters, for example: Bearer TOKEN"
            }
            SecretProblem::NotUrl => "the file is one line, for example: https://HOST/PATH",
            SecretProblem::Unencrypted => {
                "use https://, or set allow_credentials_over_http = true for the target"
            }
        };
        hint.to_owned()
    }
}

/// The line in `text`, the content of a file, without the line break at its end.
pub(super) fn secret_line(
    text: Result<String, ProtectedFileError>,
) -> Result<String, SecretProblem> {
    let text = text.map_err(SecretProblem::File)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    if line.trim().is_empty() {
        return Err(SecretProblem::Empty);
    }
    if line.contains(['\n', '\r']) {
        return Err(SecretProblem::LineBreak);
    }
    if !line.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(SecretProblem::NotPrintable);
    }
    Ok(line.to_owned())
}
