// SPDX-License-Identifier: Apache-2.0
//! The node's view of the API server. The crate `web` implements it; the command line connects both.

use std::io;
use std::net::SocketAddr;

use vipwatch_linux::listen::{ListenError, SocketFileLost};

use crate::config::Config;
use crate::view::ApiContext;

/// Why the API server cannot open its sockets.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The unix socket.
    #[error(transparent)]
    Socket(#[from] ListenError),
    /// An address of `web.listen`.
    #[error("cannot listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A file of `[web]`: the certificate, the key, the client CA or the tokens.
    #[error("cannot use the files of [web]")]
    WebFiles {
        /// The file and its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The API server of this process. Dropping it removes the socket file.
pub trait ApiServer {
    /// Starts to answer requests. Clients that have connected before wait until then.
    fn serve(&mut self) -> io::Result<()>;

    /// Whether the socket's file is still the one that this process has made.
    fn check_socket(&self) -> Result<(), SocketFileLost>;

    /// Has the files of `[web]` examined now instead of some seconds later.
    fn reload(&self);
}

/// Opens the sockets of the API server, as the configuration says.
pub type OpenApiServer =
    Box<dyn FnOnce(&Config, ApiContext) -> Result<Box<dyn ApiServer>, ApiServerError>>;
