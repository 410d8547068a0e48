// SPDX-License-Identifier: Apache-2.0
//! A certificate authority, and curl as a client of a server with its certificates.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vipwatch_testkit::monitor::output_of;

use crate::curl::{CurlAnswer, parse_answer};
use crate::support::write;

pub(crate) use vipwatch_testkit::authority::{EXPIRED, ONE_YEAR, SignedCertificate};

/// An authority for the servers of these tests.
pub(crate) struct Authority(vipwatch_testkit::Authority);

impl Authority {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(vipwatch_testkit::Authority::new(directory))
    }

    /// The certificate of the authority.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.file()
    }

    /// A certificate for the addresses of the tests and for clients. `validity` are arguments of `openssl ca`.
    pub(crate) fn sign(&self, name: &str, validity: &[&str]) -> SignedCertificate {
        let servers = ["DNS:localhost", "IP:127.0.0.1", "IP:::1", "IP:198.51.100.1"];
        self.0.sign(name, &servers.map(str::to_owned), validity)
    }

    /// Runs curl in a new process made by `command` on a server with a certificate of this authority.
    pub(crate) fn output(
        &self,
        mut command: Command,
        address: SocketAddr,
        args: &[&str],
        path: &str,
    ) -> Output {
        command.args(["-sS", "-i", "--max-time", "30", "--globoff", "--cacert"]).arg(self.file());
        command.args(args).arg(format!("https://{address}{path}"));
        output_of(&mut command)
    }

    /// As [`Self::output`]; the answer must be one of HTTP.
    #[track_caller]
    pub(crate) fn curl(&self, address: SocketAddr, args: &[&str], path: &str) -> CurlAnswer {
        let output = self.output(Command::new("curl"), address, args, path);
        parse_answer(&output.stdout).unwrap_or_else(|| panic!("curl {args:?} {path}: {output:?}"))
    }
}

/// Writes a file that only its owner can read, in the place of the one before.
pub(crate) fn replace_secret(path: &Path, text: &str) {
    let new = path.with_extension("new");
    write(&new, text);
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
