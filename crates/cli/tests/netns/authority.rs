// SPDX-License-Identifier: Apache-2.0
//! A certificate authority (`openssl`), and curl as a client of a server with its certificates.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::run;

use crate::curl::{CurlAnswer, parse_answer};
use crate::support::write;

/// An authority with its files in a directory.
pub(crate) struct Authority {
    directory: PathBuf,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct SignedCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

const CURVE: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// The settings of `openssl ca`, which alone can sign certificates that have expired.
const SETTINGS: &str = "[ca]\ndefault_ca = d\n[d]\ndatabase = index.txt\nnew_certs_dir = .\n\
    rand_serial = yes\ndefault_md = sha256\npolicy = p\nunique_subject = no\n\
    copy_extensions = copy\n[p]\ncommonName = supplied\n";

impl Authority {
    pub(crate) fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let authority = Self { directory: directory.to_owned() };
        write(&directory.join("ca.cnf"), SETTINGS);
        write(&directory.join("index.txt"), "");
        let request = ["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "3650"];
        authority.openssl(&[&request, &CURVE[..], &["-subj", "/CN=vipwatch test"]].concat());
        authority
    }

    /// The certificate of the authority.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// A certificate for the addresses of the tests and for clients. `validity` are arguments of `openssl ca`.
    pub(crate) fn sign(&self, name: &str, validity: &[&str]) -> SignedCertificate {
        let [key, request, certificate] =
            ["key", "csr", "pem"].map(|suffix| format!("{name}.{suffix}"));
        let subject = format!("/CN={name}");
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1,IP:198.51.100.1";
        let usage = "extendedKeyUsage=serverAuth,clientAuth";
        let make = ["req", "-keyout", &key, "-out", &request, "-subj", &subject];
        let make = [&make, &CURVE[..], &["-addext", names, "-addext", usage]].concat();
        self.openssl(&make);
        let sign = ["ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.pem"];
        let files = ["-keyfile", "ca.key", "-in", &request, "-out", &certificate];
        self.openssl(&[&sign, &files[..], validity].concat());
        let signed = SignedCertificate {
            certificate: self.directory.join(certificate),
            key: self.directory.join(key),
        };
        std::fs::set_permissions(&signed.key, PermissionsExt::from_mode(0o600)).unwrap();
        signed
    }

    fn openssl(&self, args: &[&str]) {
        run(Command::new("openssl").args(args).current_dir(&self.directory));
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

/// Valid for a year.
pub(crate) const ONE_YEAR: [&str; 2] = ["-days", "365"];

/// Valid in January 2020.
pub(crate) const EXPIRED: [&str; 4] =
    ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"];

/// Writes a file that only its owner can read, in the place of the one before.
pub(crate) fn replace_secret(path: &Path, text: &str) {
    let new = path.with_extension("new");
    write(&new, text);
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
