// SPDX-License-Identifier: Apache-2.0
//! The queue of messages to the thread, with its length.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use super::WriterMessage;

/// The number of messages in a queue. A clone is another handle on the same number.
#[derive(Debug, Clone, Default)]
pub struct QueueLength(Arc<AtomicUsize>);

impl QueueLength {
    /// The number of messages at this moment.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The thread has taken so many messages from the queue.
    pub(super) fn remove(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The end of the queue to which messages are added.
#[derive(Debug, Clone)]
pub(crate) struct MessageSender {
    sender: SyncSender<WriterMessage>,
    length: QueueLength,
}

impl MessageSender {
    pub(super) fn new(sender: SyncSender<WriterMessage>, length: QueueLength) -> Self {
        Self { sender, length }
    }

    /// Adds a message without waiting; false if the queue is full.
    pub(crate) fn try_send(&self, message: WriterMessage) -> bool {
        // ORDER: counted before the thread can take it, so that the number never falls below zero.
        self.length.add();
        let is_sent = self.sender.try_send(message).is_ok();
        if !is_sent {
            self.length.remove(1);
        }
        is_sent
    }

    /// Adds a message, and waits while the queue is full.
    pub(super) fn send(&self, message: WriterMessage) {
        self.length.add();
        let _ = self.sender.send(message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn only_messages_in_the_queue_count() {
        let length = QueueLength::default();
        let (sender, receiver) = sync_channel(2);
        let sender = MessageSender::new(sender, length.clone());
        let sent = [(); 3].map(|()| sender.try_send(WriterMessage::TakeDeliveries));
        assert_eq!(sent, [true, true, false]);
        assert_eq!(length.get(), 2);
        length.remove(receiver.try_iter().count());
        assert_eq!(length.get(), 0);
    }
}
