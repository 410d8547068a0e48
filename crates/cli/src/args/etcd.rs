// SPDX-License-Identifier: Apache-2.0
//! Options that name etcd, for `vipwatch cluster` without a node.
//!
//! The options are accepted before `cluster`, after `cluster` and after its subcommand, so clap does not read the variables
//! of the environment: [`EtcdOptions::or`] joins the three places first, and [`EtcdOptions::or_environment`] fills the rest.

use std::path::PathBuf;

use clap::Args as Arguments;

use crate::failure::{CommandError, ExitStatus};

/// Options that name etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
#[expect(clippy::doc_markdown, reason = "clap prints variables in this form, without backticks")]
#[command(next_help_heading = "etcd, instead of a node")]
pub(crate) struct EtcdOptions {
    /// Read etcd at these addresses instead of a node's view: `http://HOST:PORT` or `https://HOST:PORT`, with commas
    /// between them [env: VIPWATCH_ETCD]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Read the cluster with this name [default: default] [env: VIPWATCH_DOMAIN]
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// Trust servers with a certificate of this authority [default: those of the system] [env: VIPWATCH_ETCD_CA]
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Present this client certificate [env: VIPWATCH_ETCD_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Use this private key of the client certificate [env: VIPWATCH_ETCD_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// Log in to etcd as this user [env: VIPWATCH_ETCD_USER]
    #[arg(long, value_name = "USER")]
    pub(crate) etcd_user: Option<String>,
    /// Read the password of the user from this file [env: VIPWATCH_ETCD_PASSWORD_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_password_file: Option<PathBuf>,
}

impl EtcdOptions {
    /// These options, and those of `other` that are not set here.
    pub(crate) fn or(self, other: &Self) -> Self {
        let other = other.clone();
        Self {
            etcd: if self.etcd.is_empty() { other.etcd } else { self.etcd },
            domain: self.domain.or(other.domain),
            etcd_ca: self.etcd_ca.or(other.etcd_ca),
            etcd_cert: self.etcd_cert.or(other.etcd_cert),
            etcd_key: self.etcd_key.or(other.etcd_key),
            etcd_user: self.etcd_user.or(other.etcd_user),
            etcd_password_file: self.etcd_password_file.or(other.etcd_password_file),
        }
    }

    /// These options, and the variables of the environment for those that are not set.
    pub(crate) fn or_environment(self) -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let etcd = text("VIPWATCH_ETCD").unwrap_or_default();
        let etcd = etcd.split(',').map(str::trim).filter(|url| !url.is_empty());
        self.or(&Self {
            etcd: etcd.map(str::to_owned).collect(),
            domain: text("VIPWATCH_DOMAIN"),
            etcd_ca: path("VIPWATCH_ETCD_CA"),
            etcd_cert: path("VIPWATCH_ETCD_CERT"),
            etcd_key: path("VIPWATCH_ETCD_KEY"),
            etcd_user: text("VIPWATCH_ETCD_USER"),
            etcd_password_file: path("VIPWATCH_ETCD_PASSWORD_FILE"),
        })
    }

    /// An error if an option is set although --etcd is not: the answer comes from a node, which has settings of its own.
    pub(crate) fn check_needless(&self) -> Result<(), CommandError> {
        if *self == Self::default() {
            return Ok(());
        }
        let message = "--domain and the options of etcd need --etcd";
        let hint = "give the address of etcd with --etcd or VIPWATCH_ETCD; without it, the node on this machine answers with its own settings";
        Err(CommandError::new(ExitStatus::Usage, message).hint(hint))
    }

    /// An error if an option is set: another command than `cluster` does not read etcd.
    pub(crate) fn check_unused(&self) -> Result<(), CommandError> {
        if *self == Self::default() {
            return Ok(());
        }
        let message = "only `vipwatch cluster` reads etcd";
        let hint = "the other commands query the node on this machine: leave out --etcd, --domain and the options after them";
        Err(CommandError::new(ExitStatus::Usage, message).hint(hint))
    }
}
