//! A box into which threads put things, and which somebody who waits for many can wait for, too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

/// The box; a clone is the same one. It can be read, for `poll` and its like, when something is in it.
#[derive(Debug)]
pub struct WakeQueue<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    things: Mutex<Vec<T>>,
    bell: OwnedFd,
}

impl<T> WakeQueue<T> {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { things: Mutex::default(), bell }) })
    }

    /// Puts something in.
    pub fn put(&self, thing: T) {
        self.put_all([thing]);
    }

    /// Puts some in, and rings once.
    pub fn put_all(&self, things: impl IntoIterator<Item = T>) {
        if let Ok(mut all) = self.shared.things.lock() {
            all.extend(things);
        }
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }

    /// Takes out everything, in the order in which it was put in.
    pub fn take(&self) -> Vec<T> {
        // ORDER: the bell before the things. What is put in meanwhile rings again.
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
        self.shared.things.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl<T> Clone for WakeQueue<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> AsFd for WakeQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}
