// SPDX-License-Identifier: Apache-2.0
//! A queue between threads with an eventfd: the consumer can wait for it with `poll` or `epoll`, together with
//! its other descriptors. The workspace has no other pair of a queue and an eventfd.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

/// The queue. A clone is another handle on the same queue. The descriptor is readable while the queue has
/// entries.
///
/// `C` is the collection that holds the entries: a `Vec` keeps all of them in order, a `BTreeMap` keeps the
/// newest entry of each key and is therefore bounded by the number of keys.
///
/// BOUND: the queue itself has no limit. Each use says in a comment what bounds it.
pub struct WakeQueue<T, C = Vec<T>> {
    shared: Arc<Shared<C>>,
    entry: PhantomData<fn(T)>,
}

struct Shared<C> {
    entries: Mutex<C>,
    wakeup: OwnedFd,
}

impl<T> WakeQueue<T> {
    /// An empty queue that keeps every entry, in order.
    pub fn new() -> io::Result<Self> {
        Self::empty()
    }
}

impl<K: Ord, V> WakeQueue<(K, V), BTreeMap<K, V>> {
    /// An empty queue that keeps the newest value of each key, in the order of the keys.
    pub fn newest_per_key() -> io::Result<Self> {
        Self::empty()
    }
}

impl<T, C: Default + Extend<T>> WakeQueue<T, C> {
    fn empty() -> io::Result<Self> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { entries: Mutex::default(), wakeup });
        Ok(Self { shared, entry: PhantomData })
    }

    /// Adds one entry and wakes the consumer.
    pub fn push(&self, entry: T) {
        self.push_all([entry]);
    }

    /// Adds several entries and wakes the consumer once.
    pub fn push_all(&self, entries: impl IntoIterator<Item = T>) {
        if let Ok(mut all) = self.shared.entries.lock() {
            all.extend(entries);
        }
        let _ = rustix::io::write(&self.shared.wakeup, &1_u64.to_ne_bytes());
    }

    /// Removes and returns all entries.
    pub fn take_all(&self) -> C {
        // ORDER: the eventfd is reset before the entries are taken. An entry that is added in between makes it
        // readable again.
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wakeup, &mut count);
        self.shared.entries.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl<T, C> Clone for WakeQueue<T, C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), entry: PhantomData }
    }
}

impl<T, C> fmt::Debug for WakeQueue<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeQueue").field("wakeup", &self.shared.wakeup).finish_non_exhaustive()
    }
}

impl<T, C> AsFd for WakeQueue<T, C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(queue: &impl AsFd) -> bool {
        let mut polled = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_until_the_entries_are_taken() {
        let queue = WakeQueue::new().unwrap();
        assert!(!is_readable(&queue));
        queue.push_all([1, 2]);
        queue.clone().push(3);
        assert!(is_readable(&queue));
        assert_eq!(queue.take_all(), [1, 2, 3]);
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_queue_by_key_keeps_the_newest_value_of_each_key() {
        let queue = WakeQueue::newest_per_key().unwrap();
        queue.push_all([("b", 1), ("a", 2), ("b", 3)]);
        assert_eq!(queue.take_all(), BTreeMap::from([("a", 2), ("b", 3)]));
    }
}
