// SPDX-License-Identifier: Apache-2.0
//! Reading ranges of keys at one revision, and transactions.

use etcd_client::{Compare, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::{EtcdConnection, EtcdError};
use crate::view::StoredValue;

/// The maximum number of operations in a transaction. etcd accepts 128 by default.
pub const MAX_OPERATIONS: usize = 100;

/// The number of keys in one answer.
const PAGE: i64 = 500;

/// The number of keys of one range in the answer to a transaction with many ranges.
const RANGE_PAGE: i64 = 50;

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
}

impl EtcdConnection {
    /// Reads one key; returns its value and the revision of etcd.
    pub async fn read_key(&self, key: &str) -> Result<(Option<StoredValue>, i64), EtcdError> {
        let mut kv = self.kv();
        let mut answer = self.answer("a read", kv.get(key, None)).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((answer.take_kvs().first().map(stored), revision))
    }

    /// The current revision of etcd, as a majority of its members knows it.
    pub async fn revision(&self, key: &str) -> Result<i64, EtcdError> {
        Ok(self.read_key(key).await?.1)
    }

    /// The current revision of etcd, and the cluster of etcd that it belongs to.
    pub(crate) async fn position(&self, key: &str) -> Result<EtcdPosition, EtcdError> {
        let mut kv = self.kv();
        let answer = self.answer("a read", kv.get(key, None)).await?;
        let header = answer.header();
        Ok(EtcdPosition {
            cluster: header.map_or(0, etcd_client::ResponseHeader::cluster_id),
            revision: header.map_or(0, etcd_client::ResponseHeader::revision),
        })
    }

    /// The first key of the range from `begin` up to `end`, without its value; `None` if the range is empty.
    pub(crate) async fn first_key(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> Result<Option<Vec<u8>>, EtcdError> {
        let options = GetOptions::new().with_range(end).with_limit(1).with_keys_only();
        let mut answer = self.get(begin, options).await?;
        Ok(answer.take_kvs().first().map(|entry| entry.key().to_vec()))
    }

    /// Reads all keys with a prefix, at `revision` or at the current one (0), in pages. Returns the revision.
    pub async fn read_prefix(
        &self,
        prefix: &str,
        revision: i64,
        mut page: impl FnMut(Vec<StoredValue>),
    ) -> Result<i64, EtcdError> {
        let mut cursor = Cursor { next: prefix.as_bytes().to_vec(), limit: PAGE, revision };
        let end = prefix_end(prefix);
        while let Some(values) = self.read_page(&mut cursor, &end).await? {
            page(values);
        }
        Ok(cursor.revision)
    }

    /// The next page; `None` after the last one. A page that is too long is read again in smaller ones.
    async fn read_page(
        &self,
        cursor: &mut Cursor,
        end: &[u8],
    ) -> Result<Option<Vec<StoredValue>>, EtcdError> {
        if cursor.next.is_empty() {
            return Ok(None);
        }
        loop {
            let options = GetOptions::new().with_range(end).with_limit(cursor.limit);
            let options = options.with_revision(cursor.revision);
            let mut answer = match self.get(&cursor.next, options).await {
                Err(EtcdError::TooLong { .. }) if cursor.limit > 1 => {
                    cursor.limit = (cursor.limit / 8).max(1);
                    continue;
                }
                Err(EtcdError::TooLong { .. }) => {
                    // A foreign value that is longer than this client accepts: its key is enough to count it.
                    let options = GetOptions::new().with_range(end).with_limit(1).with_keys_only();
                    self.get(&cursor.next, options.with_revision(cursor.revision)).await?
                }
                answer => answer?,
            };
            if cursor.revision == 0 {
                cursor.revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            }
            let has_more = answer.more();
            let values: Vec<StoredValue> = answer.take_kvs().iter().map(stored).collect();
            cursor.next = match answer_end(&values) {
                Some(next) if has_more => next,
                _ => Vec::new(),
            };
            return Ok(Some(values));
        }
    }

    async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse, EtcdError> {
        let mut kv = self.kv();
        self.answer("a read", kv.get(key, Some(options))).await
    }

    /// Reads many prefixes at one revision, with few requests.
    pub async fn read_prefixes(
        &self,
        prefixes: &[String],
        revision: i64,
        mut range: impl FnMut(RangeValues),
    ) -> Result<(), EtcdError> {
        let mut batches: Vec<&[String]> = prefixes.chunks(MAX_OPERATIONS).rev().collect();
        while let Some(batch) = batches.pop() {
            match self.read_batch(batch, revision).await {
                Ok(answers) => {
                    for (prefix, mut answer) in batch.iter().zip(answers) {
                        let values = answer.take_kvs().iter().map(stored).collect();
                        let mut values = RangeValues { prefix: prefix.clone(), values };
                        if answer.more() {
                            self.read_rest(&mut values, revision).await?;
                        }
                        range(values);
                    }
                }
                Err(EtcdError::TooLong { .. }) if batch.len() > 1 => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([second, first]);
                }
                Err(EtcdError::TooLong { .. }) => {
                    let mut values = RangeValues { prefix: batch[0].clone(), values: Vec::new() };
                    self.read_rest(&mut values, revision).await?;
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
    ) -> Result<Vec<GetResponse>, EtcdError> {
        let read = |prefix: &String| {
            let options = GetOptions::new().with_range(prefix_end(prefix)).with_limit(RANGE_PAGE);
            TxnOp::get(prefix.as_str(), Some(options.with_revision(revision)))
        };
        let operations: Vec<TxnOp> = prefixes.iter().map(read).collect();
        let mut kv = self.kv();
        let answer = self.answer("a read", kv.txn(Txn::new().and_then(operations))).await?;
        let answers = answer.op_responses().into_iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(answer) => Some(answer),
            _ => None,
        });
        Ok(answers.collect())
    }

    /// Reads the keys of a range after those that are there already.
    async fn read_rest(&self, range: &mut RangeValues, revision: i64) -> Result<(), EtcdError> {
        let next = answer_end(&range.values).unwrap_or_else(|| range.prefix.as_bytes().to_vec());
        let mut cursor = Cursor { next, limit: PAGE, revision };
        let end = prefix_end(&range.prefix);
        while let Some(values) = self.read_page(&mut cursor, &end).await? {
            range.values.extend(values);
        }
        Ok(())
    }

    /// Carries out the operations if all comparisons are true; else reads `key`.
    pub async fn commit(
        &self,
        compares: Vec<Compare>,
        operations: Vec<TxnOp>,
        key: &str,
    ) -> Result<TxnResult, EtcdError> {
        let txn = Txn::new().when(compares).and_then(operations);
        let txn = txn.or_else(vec![TxnOp::get(key, None)]);
        let mut kv = self.kv();
        let answer = self.answer("a transaction", kv.txn(txn)).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let is_done = answer.succeeded();
        let mut found = None;
        if !is_done && let Some(TxnOpResponse::Get(read)) = answer.op_responses().first() {
            found = read.kvs().first().map(stored);
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

/// The first key after the last one of these.
fn answer_end(values: &[StoredValue]) -> Option<Vec<u8>> {
    let mut next = values.last()?.key.clone().into_bytes();
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
pub(crate) fn stored(entry: &KeyValue) -> StoredValue {
    StoredValue {
        key: String::from_utf8_lossy(entry.key()).into_owned(),
        value: entry.value().to_vec(),
        mod_revision: entry.mod_revision(),
        create_revision: entry.create_revision(),
        lease: entry.lease(),
    }
}
