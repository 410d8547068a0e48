// SPDX-License-Identifier: Apache-2.0
//! System calls. This is the only crate that contains `unsafe`. It contains no policy: no code here depends on the
//! role of an instance.
//!
//! - Netlink: [`monitor`] follows one namespace over one socket, [`netns_watcher`] follows all namespaces of a
//!   node, [`netns_query`] reads the links and addresses of a namespace once, [`netlink`] is the codec and the
//!   socket.
//! - Network: [`announce`] builds and sends ARP and neighbour discovery frames, [`netns`] opens and enters
//!   namespaces, [`sysctl`] writes kernel parameters, [`vrrp_capture`] receives VRRP adverts.
//! - Files: [`dnotify`] watches few directories (drop-in), [`inotify`] watches thousands (node), [`mod@file`] reads and
//!   replaces files, [`protected_file`] refuses files that other users can change or read, [`lock`] gives one process exclusive use of a directory.
//! - Sockets: [`listen`] opens unix sockets, [`peer`] reads the credentials of the other end.
//! - Other processes: [`process_table`] reads them, [`process_exit`] reports their end, [`root_directory`] opens files as
//!   they see them. [`program`] checks and starts a
//!   program by its descriptor, [`descendants`] ends everything that it has started, [`passed_socket`] passes a socket.
//! - This process and its threads: [`process`], [`signal`], [`privilege`], [`account`], [`worker`] (threads that the watchdog
//!   supervises), [`wake_queue`] (a queue that wakes a `poll`), [`file_table`] (a thread with files of its own), [`clock`].

/// Implements [`AsFd`](std::os::fd::AsFd) with the file descriptor of a field.
#[macro_export]
macro_rules! as_fd {
    ($owner:ident.$field:tt) => {
        impl ::std::os::fd::AsFd for $owner {
            fn as_fd(&self) -> ::std::os::fd::BorrowedFd<'_> {
                ::std::os::fd::AsFd::as_fd(&self.$field)
            }
        }
    };
}

pub mod account;
pub mod announce;
pub mod clock;
pub mod descendants;
pub mod dnotify;
pub mod file;
pub mod file_table;
pub mod inotify;
pub mod listen;
pub mod lock;
pub mod monitor;
pub mod netlink;
pub mod netns;
pub mod netns_query;
pub mod netns_watcher;
mod packet_filter;
pub mod passed_socket;
pub mod peer;
pub mod privilege;
pub mod process;
pub mod process_exit;
pub mod process_table;
pub mod process_usage;
pub mod program;
pub mod protected_file;
pub mod root_directory;
pub mod signal;
pub mod sysctl;
pub mod vrrp_capture;
pub mod wake_queue;
pub mod worker;
