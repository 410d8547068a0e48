// SPDX-License-Identifier: Apache-2.0
//! A certificate authority for tests, made with `openssl`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// An authority with its files in a directory.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct SignedCertificate {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with the key.
    pub key: PathBuf,
}

/// Valid for a year.
pub const ONE_YEAR: [&str; 2] = ["-days", "365"];

/// Valid in January 2020.
pub const EXPIRED: [&str; 4] = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"];

const CURVE: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// The settings of `openssl ca`, which alone can sign certificates that have expired.
const SETTINGS: &str = "[ca]\ndefault_ca = d\n[d]\ndatabase = index.txt\nnew_certs_dir = .\n\
    rand_serial = yes\ndefault_md = sha256\npolicy = p\nunique_subject = no\n\
    copy_extensions = copy\n[p]\ncommonName = supplied\n";

impl Authority {
    /// Makes an authority in `directory`.
    pub fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).expect("create the directory of the authority");
        let authority = Self { directory: directory.to_owned() };
        authority.write("ca.cnf", SETTINGS);
        authority.write("index.txt", "");
        let request = ["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "3650"];
        authority.openssl(&[&request, &CURVE[..], &["-subj", "/CN=vipwatch test"]].concat());
        authority
    }

    /// The certificate of the authority.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// A certificate for servers with these addresses or names (`IP:127.0.0.1`, `DNS:localhost`) and for clients.
    /// `validity` are arguments of `openssl ca`: [`ONE_YEAR`] or [`EXPIRED`].
    pub fn sign(&self, name: &str, servers: &[String], validity: &[&str]) -> SignedCertificate {
        let [key, request, certificate] =
            ["key", "csr", "pem"].map(|suffix| format!("{name}.{suffix}"));
        let subject = format!("/CN={name}");
        let names = format!("subjectAltName={}", servers.join(","));
        let usage = "extendedKeyUsage=serverAuth,clientAuth";
        let make = ["req", "-keyout", &key, "-out", &request, "-subj", &subject];
        let make = [&make, &CURVE[..], &["-addext", &names, "-addext", usage]].concat();
        self.openssl(&make);
        let sign = ["ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.pem"];
        let files = ["-keyfile", "ca.key", "-in", &request, "-out", &certificate];
        self.openssl(&[&sign, &files[..], validity].concat());
        let signed = SignedCertificate {
            certificate: self.directory.join(certificate),
            key: self.directory.join(key),
        };
        std::fs::set_permissions(&signed.key, PermissionsExt::from_mode(0o600))
            .expect("set the permissions of the key");
        signed
    }

    fn openssl(&self, args: &[&str]) {
        run(Command::new("openssl").args(args).current_dir(&self.directory));
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::File::create(self.directory.join(name))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("write a file of the authority");
    }
}
