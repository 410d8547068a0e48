// SPDX-License-Identifier: Apache-2.0
//! Reading ranges of keys at one revision, and transactions.

use std::ops::ControlFlow;

use super::messages::{
    Compare, KeyValue, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest,
};
use super::{EtcdConnection, EtcdError};
use crate::view::StoredValue;

/// The maximum number of operations in a transaction. etcd accepts 128 by default.
pub const MAX_OPERATIONS: usize = 100;

/// The number of keys in one answer.
const PAGE: i64 = 500;

/// The number of keys of one range in the answer to a transaction with many ranges.
const RANGE_PAGE: i64 = 50;

/// The number of keys in one answer without values.
const KEY_PAGE: i64 = 5000;

/// The result of a transaction.
#[derive(Debug)]
pub struct TxnResult {
    /// Whether all comparisons were true, and the operations were carried out.
    pub is_done: bool,
    /// The revision of etcd after it.
    pub revision: i64,
    /// The key of [`EtcdConnection::commit`] if it was read, and exists.
    pub found: Option<StoredValue>,
}

/// A revision, and the cluster of etcd that counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EtcdPosition {
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
}

/// The values of a range at one revision.
#[derive(Debug)]
pub struct RangeValues {
    /// The prefix of the range.
    pub prefix: String,
    /// The keys and values, in the order of the keys.
    pub values: Vec<StoredValue>,
    /// The number of keys after the last value that were not read, because of a [`ReadLimit`].
    pub left: u64,
}

/// How much of a range is read. The last page may exceed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit {
    /// The number of keys.
    pub records: usize,
    /// The bytes of keys and values.
    pub bytes: usize,
}

/// A part of a range.
#[derive(Debug)]
pub struct RangePage {
    /// The keys and values, in the order of the keys.
    pub values: Vec<StoredValue>,
    /// The number of keys of the range after them.
    pub left: u64,
}

/// A part of a range without its values.
#[derive(Debug)]
pub(crate) struct KeyPage {
    /// The keys in their order, with their revisions.
    pub(crate) keys: Vec<(String, i64)>,
    /// Whether the range has no more keys.
    pub(crate) is_last: bool,
}

impl KeyPage {
    fn of(answer: RangeResponse) -> Self {
        let is_last = !answer.more || answer.kvs.is_empty();
        let keys = answer.kvs.into_iter().map(|entry| (text(entry.key), entry.mod_revision));
        Self { keys: keys.collect(), is_last }
    }
}

impl EtcdConnection {
    /// Reads one key; returns its value and the revision of etcd.
    pub async fn read_key(&self, key: &str) -> Result<(Option<StoredValue>, i64), EtcdError> {
        let answer = self.call("a read", single(key)).await?;
        Ok((answer.kvs.into_iter().next().map(stored), revision(answer.header)))
    }

    /// The current revision of etcd, as a majority of its members knows it.
    pub async fn revision(&self, key: &str) -> Result<i64, EtcdError> {
        Ok(self.read_key(key).await?.1)
    }

    /// The current revision of etcd, and the cluster of etcd that it belongs to.
    pub(crate) async fn position(&self, key: &str) -> Result<EtcdPosition, EtcdError> {
        let header = self.call("a read", single(key)).await?.header;
        let cluster = header.map_or(0, |header| header.cluster_id);
        Ok(EtcdPosition { cluster, revision: revision(header) })
    }

    /// The first key of the range from `begin` up to `end`, without its value; `None` if the range is empty.
    pub(crate) async fn first_key(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> Result<Option<Vec<u8>>, EtcdError> {
        let mut range = range(begin, end, 1);
        range.keys_only = true;
        let answer = self.call("a read", range).await?;
        Ok(answer.kvs.into_iter().next().map(|entry| entry.key))
    }

    /// Reads the keys with a prefix, at `revision` or at the current one (0), in pages, until `page` breaks off. Returns
    /// the revision.
    pub async fn read_prefix(
        &self,
        prefix: &str,
        revision: i64,
        mut page: impl FnMut(RangePage) -> ControlFlow<()>,
    ) -> Result<i64, EtcdError> {
        let mut cursor = Cursor { next: prefix.as_bytes().to_vec(), limit: PAGE, revision };
        let end = prefix_end(prefix);
        while let Some(values) = self.read_page(&mut cursor, &end).await? {
            if page(values).is_break() {
                break;
            }
        }
        Ok(cursor.revision)
    }

    /// The next page; `None` after the last one. A page that is too long is read again in smaller ones.
    async fn read_page(
        &self,
        cursor: &mut Cursor,
        end: &[u8],
    ) -> Result<Option<RangePage>, EtcdError> {
        if cursor.next.is_empty() {
            return Ok(None);
        }
        loop {
            let mut range = range(&cursor.next, end, cursor.limit);
            range.revision = cursor.revision;
            let answer = match self.call("a read", range.clone()).await {
                Err(EtcdError::TooLong { .. }) if cursor.limit > 1 => {
                    cursor.limit = (cursor.limit / 8).max(1);
                    continue;
                }
                Err(EtcdError::TooLong { .. }) => {
                    // A foreign value that is longer than this client accepts: its key is enough to count it.
                    range.keys_only = true;
                    self.call("a read", range).await?
                }
                answer => answer?,
            };
            if cursor.revision == 0 {
                cursor.revision = revision(answer.header);
            }
            cursor.next = match answer_end(&answer.kvs) {
                Some(next) if answer.more => next,
                _ => Vec::new(),
            };
            let left = left(&answer);
            let values = answer.kvs.into_iter().map(stored).collect();
            return Ok(Some(RangePage { values, left }));
        }
    }

    /// Reads many prefixes at one revision, with few requests, and each up to its limit.
    pub async fn read_prefixes(
        &self,
        prefixes: &[String],
        revision: i64,
        limit: impl Fn(&str) -> ReadLimit,
        mut range: impl FnMut(RangeValues),
    ) -> Result<(), EtcdError> {
        let mut batches: Vec<&[String]> = prefixes.chunks(MAX_OPERATIONS).rev().collect();
        while let Some(batch) = batches.pop() {
            match self.read_batch(batch, revision).await {
                Ok(answers) => {
                    for (prefix, answer) in batch.iter().zip(answers) {
                        let next = answer_end(&answer.kvs).filter(|_| answer.more);
                        let left = left(&answer);
                        let values = answer.kvs.into_iter().map(stored).collect();
                        let mut values = RangeValues { prefix: prefix.clone(), values, left };
                        if let Some(next) = next {
                            self.read_rest(&mut values, next, revision, limit(prefix)).await?;
                        }
                        range(values);
                    }
                }
                Err(EtcdError::TooLong { .. }) if batch.len() > 1 => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([second, first]);
                }
                Err(EtcdError::TooLong { .. }) => {
                    let (prefix, begin) = (batch[0].clone(), batch[0].as_bytes().to_vec());
                    let limit = limit(&prefix);
                    let mut values = RangeValues { prefix, values: Vec::new(), left: 0 };
                    self.read_rest(&mut values, begin, revision, limit).await?;
                    range(values);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read_batch(
        &self,
        prefixes: &[String],
        revision: i64,
    ) -> Result<impl Iterator<Item = RangeResponse>, EtcdError> {
        let read = |prefix: &String| {
            let mut range = range(prefix.as_bytes(), &prefix_end(prefix), RANGE_PAGE);
            range.revision = revision;
            RequestOp::range(range)
        };
        let success = prefixes.iter().map(read).collect();
        let answer = self.call("a read", TxnRequest { success, ..TxnRequest::default() }).await?;
        Ok(answer.responses.into_iter().filter_map(|answer| answer.response_range))
    }

    /// Reads the keys of many prefixes at one revision, without their values, in pages and with few requests.
    pub(crate) async fn read_keys(
        &self,
        prefixes: &[String],
        revision: i64,
        mut page: impl FnMut(&str, KeyPage),
    ) -> Result<(), EtcdError> {
        let mut batches: Vec<&[String]> = prefixes.chunks(MAX_OPERATIONS).rev().collect();
        while let Some(batch) = batches.pop() {
            let read = |prefix: &String| {
                RequestOp::range(keys(prefix.as_bytes(), prefix, revision, KEY_PAGE))
            };
            let success = batch.iter().map(read).collect();
            match self.call("a read", TxnRequest { success, ..TxnRequest::default() }).await {
                Ok(answer) => {
                    let ranges = answer.responses.into_iter().filter_map(|it| it.response_range);
                    for (prefix, answer) in batch.iter().zip(ranges) {
                        let next = answer_end(&answer.kvs).filter(|_| answer.more);
                        page(prefix, KeyPage::of(answer));
                        self.read_rest_keys(prefix, next, revision, &mut page).await?;
                    }
                }
                Err(EtcdError::TooLong { .. }) if batch.len() > 1 => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([second, first]);
                }
                Err(EtcdError::TooLong { .. }) => {
                    let begin = Some(batch[0].as_bytes().to_vec());
                    self.read_rest_keys(&batch[0], begin, revision, &mut page).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the keys of a prefix from `next` on. A page that is too long is read again in smaller ones.
    async fn read_rest_keys(
        &self,
        prefix: &str,
        mut next: Option<Vec<u8>>,
        revision: i64,
        page: &mut impl FnMut(&str, KeyPage),
    ) -> Result<(), EtcdError> {
        let mut limit = KEY_PAGE;
        while let Some(begin) = &next {
            let answer = match self.call("a read", keys(begin, prefix, revision, limit)).await {
                Err(EtcdError::TooLong { .. }) if limit > 1 => {
                    limit = (limit / 8).max(1);
                    continue;
                }
                answer => answer?,
            };
            next = answer_end(&answer.kvs).filter(|_| answer.more);
            page(prefix, KeyPage::of(answer));
        }
        Ok(())
    }

    /// Reads the keys of a range from `next` on, up to the limit.
    async fn read_rest(
        &self,
        range: &mut RangeValues,
        next: Vec<u8>,
        revision: i64,
        limit: ReadLimit,
    ) -> Result<(), EtcdError> {
        let mut cursor = Cursor { next, limit: PAGE, revision };
        let end = prefix_end(&range.prefix);
        let mut bytes: usize = range.values.iter().map(StoredValue::bytes).sum();
        while range.values.len() < limit.records && bytes < limit.bytes {
            let Some(page) = self.read_page(&mut cursor, &end).await? else { break };
            bytes += page.values.iter().map(StoredValue::bytes).sum::<usize>();
            range.values.extend(page.values);
            range.left = page.left;
        }
        Ok(())
    }

    /// Carries out the operations if all comparisons are true; else reads `key`.
    pub async fn commit(
        &self,
        compares: Vec<Compare>,
        operations: Vec<RequestOp>,
        key: &str,
    ) -> Result<TxnResult, EtcdError> {
        let failure = vec![RequestOp::range(single(key))];
        let txn = TxnRequest { compare: compares, success: operations, failure };
        let answer = self.call("a transaction", txn).await?;
        let (is_done, revision) = (answer.succeeded, revision(answer.header));
        let mut found = None;
        if !is_done && let Some(read) = answer.responses.into_iter().next() {
            let values = read.response_range.into_iter().flat_map(|range| range.kvs);
            found = values.map(stored).next();
        }
        Ok(TxnResult { is_done, revision, found })
    }
}

/// The position in a range.
struct Cursor {
    /// The first key of the next page; empty after the last page.
    next: Vec<u8>,
    limit: i64,
    /// 0 before the first page, if the current revision is wanted.
    revision: i64,
}

/// A read of one key.
fn single(key: &str) -> RangeRequest {
    RangeRequest { key: key.as_bytes().to_vec(), ..RangeRequest::default() }
}

/// A read of the keys from `begin` up to `end`.
fn range(begin: &[u8], end: &[u8], limit: i64) -> RangeRequest {
    let (key, range_end) = (begin.to_vec(), end.to_vec());
    RangeRequest { key, range_end, limit, ..RangeRequest::default() }
}

/// A read of the keys with a prefix from `begin` on, without their values.
fn keys(begin: &[u8], prefix: &str, revision: i64, limit: i64) -> RangeRequest {
    let range = range(begin, &prefix_end(prefix), limit);
    RangeRequest { revision, keys_only: true, ..range }
}

/// The revision of etcd in an answer.
pub(crate) fn revision(header: Option<ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// The number of keys in a range after those of the answer.
fn left(answer: &RangeResponse) -> u64 {
    let count = u64::try_from(answer.count).unwrap_or(0);
    let read = u64::try_from(answer.kvs.len()).unwrap_or(u64::MAX);
    if answer.more { count.saturating_sub(read) } else { 0 }
}

/// The first key after the last one of these. It has the bytes of the key: the text of a key that is not UTF-8 may sort
/// before the key, and a read would not end.
fn answer_end(entries: &[KeyValue]) -> Option<Vec<u8>> {
    let mut next = entries.last()?.key.clone();
    next.push(0);
    Some(next)
}

/// The first key that is greater than all keys with this prefix.
pub(crate) fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // A prefix of vipwatch is ASCII, so that its last byte can grow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A key and its value. A key that is not UTF-8 is foreign: its text cannot be the key of a record.
pub(crate) fn stored(entry: KeyValue) -> StoredValue {
    let KeyValue { key, value, mod_revision, create_revision, lease } = entry;
    StoredValue { key: text(key), value, mod_revision, create_revision, lease }
}

/// The text of a key.
pub(crate) fn text(key: Vec<u8>) -> String {
    String::from_utf8(key)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
