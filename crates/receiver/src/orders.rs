//! What a receiver that runs is told to do: another policy, another socket, somebody to forget, an end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use vipwatch_core::InstanceId;

use crate::server::Policy;

/// One order.
#[derive(Debug)]
pub(crate) enum Order {
    /// From now on, this holds.
    Policy(Policy),
    /// From now on, monitors report here. Whoever is being served is served.
    Listen(OwnedFd),
    /// These are not there any more.
    Forget(Vec<InstanceId>),
    /// It is over.
    Stop,
}

/// Where orders wait.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    list: Mutex<Vec<Order>>,
    bell: OwnedFd,
}

impl Orders {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { list: Mutex::default(), bell }) })
    }

    pub(crate) fn give(&self, order: Order) {
        if let Ok(mut list) = self.shared.list.lock() {
            list.push(order);
        }
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<Order> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
        self.shared.list.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}
