// SPDX-License-Identifier: Apache-2.0
//! Notices that files have changed, and keeps their errors.

use vipwatch_core::ErrorChain;
use vipwatch_linux::file::FileStamp;
use vipwatch_node::config::WebFile;

use super::file::WebFileError;

/// Files that are read together.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    files: Vec<WebFile>,
    /// The files as they were when they were last read; `None` for a file that was missing.
    stamps: Vec<Option<FileStamp>>,
    state: ReadState,
}

#[derive(Debug, PartialEq, Eq)]
enum ReadState {
    /// The content of the files is in use.
    InUse,
    /// The files were not valid when they were last read, for the first time.
    FailedOnce,
    /// The files are not valid, for this reason.
    Rejected(String),
    /// A file was deleted, or this process may no longer read it; with the error.
    Withdrawn(String),
}

impl WatchedFiles {
    /// Files that are about to be read for the first time.
    pub(super) fn new(files: Vec<WebFile>) -> Self {
        Self { stamps: stamps(&files), files, state: ReadState::InUse }
    }

    /// The content that `read` returns, if a file has changed and all are valid.
    pub(super) fn changed_content<T>(
        &mut self,
        read: impl FnOnce() -> Result<T, WebFileError>,
    ) -> Option<T> {
        let stamps = stamps(&self.files);
        // A file that could not be read, for example without a free file descriptor, is read again.
        if stamps == self.stamps && self.state == ReadState::InUse {
            return None;
        }
        self.stamps = stamps;
        match read() {
            Ok(content) => {
                self.state = ReadState::InUse;
                let names: Vec<String> = self.files.iter().map(ToString::to_string).collect();
                tracing::info!(files = names.join(" "), "files of the web server have changed");
                Some(content)
            }
            Err(error) => {
                let text = || ErrorChain(&error).to_string();
                self.state = match self.state {
                    _ if error.is_withdrawn() => ReadState::Withdrawn(text()),
                    ReadState::InUse => ReadState::FailedOnce,
                    _ => ReadState::Rejected(text()),
                };
                None
            }
        }
    }

    /// Why the content of the files is not in use.
    pub(super) fn rejection(&self) -> Option<&str> {
        match &self.state {
            ReadState::InUse | ReadState::FailedOnce => None,
            ReadState::Rejected(reason) | ReadState::Withdrawn(reason) => Some(reason),
        }
    }

    /// Whether a file was deleted, or this process may no longer read it.
    pub(super) fn are_withdrawn(&self) -> bool {
        matches!(self.state, ReadState::Withdrawn(_))
    }
}

fn stamps(files: &[WebFile]) -> Vec<Option<FileStamp>> {
    let stamp = |file: &WebFile| FileStamp::at(&file.path()?).ok();
    files.iter().map(stamp).collect()
}
