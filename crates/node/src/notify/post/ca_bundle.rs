// SPDX-License-Identifier: Apache-2.0
//! CA certificates, read from a file once and again when the file changes.

use std::io;
use std::path::{Path, PathBuf};

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};
use vipwatch_linux::file::FileStamp;

/// Where distributions keep the certificates of the authorities that the system trusts.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A file with CA certificates.
#[derive(Debug)]
pub(crate) struct CaBundle {
    path: PathBuf,
    /// The state of the file that was examined last; `None` if there was no file.
    stamp: Option<FileStamp>,
}

impl CaBundle {
    /// Reads `file`, or the system's bundle if no file is named.
    pub(crate) fn open(file: Option<&Path>) -> io::Result<(Self, RootCerts)> {
        let system = || SYSTEM_BUNDLES.map(Path::new).into_iter().find(|path| path.exists());
        let path = file.or_else(system).ok_or_else(|| {
            let candidates = SYSTEM_BUNDLES.join(", ");
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("none of these files exists: {candidates}"),
            )
        })?;
        // ORDER: the stamp is taken before the file is read. A change in between is then noticed later.
        let stamp = FileStamp::at(path).ok();
        Ok((Self { path: path.to_owned(), stamp }, read(path)?))
    }

    /// The certificates, if the file has changed since it was examined last and can be read. Otherwise `None`; a file
    /// that cannot be read is logged once.
    pub(crate) fn changed(&mut self) -> Option<RootCerts> {
        let stamp = FileStamp::at(&self.path).ok();
        if stamp == self.stamp {
            return None;
        }
        self.stamp = stamp;
        let file = self.path.display();
        match read(&self.path) {
            Ok(certificates) => {
                tracing::info!(%file, "CA bundle has changed");
                Some(certificates)
            }
            Err(error) => {
                tracing::warn!(%file, %error, "cannot read CA bundle: certificates read before stay in use");
                None
            }
        }
    }
}

/// The certificates in a file; an error if there is none.
pub(crate) fn read(path: &Path) -> io::Result<RootCerts> {
    let text = std::fs::read(path)?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(io::Error::other("no certificate in the file"));
    }
    Ok(RootCerts::from(certificates))
}
