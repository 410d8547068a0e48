// SPDX-License-Identifier: Apache-2.0
//! Many packet sockets, spread over several tables of file descriptors.
//!
//! The kernel waits for an RCU grace period in each `close` of a packet socket, some 12 ms. If all sockets were in the
//! table of the process, a killed process with 1,000 of them would be gone after 12 s only. The threads of several tables
//! end at the same time and share grace periods: 32 tables with 32 sockets each take less than a second.

use std::io;

use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkName, NetnsName};

use super::{AdvertCapture, CaptureMode, close_all};
use crate::file_table::FileTable;
use crate::netns::{Netns, NetnsError, NetnsId};

/// With fewer tables than this, a table gets few sockets; with more, as many as one may have.
const MANY_TABLES: usize = 32;
const FEW_SOCKETS: usize = 8;
const MAX_SOCKETS: usize = 32;

/// The settings of the capture on one link.
#[derive(Debug, Clone)]
pub struct CaptureRequest {
    /// The link.
    pub link: LinkName,
    /// Which adverts.
    pub mode: CaptureMode,
    /// The size of the receive buffer: [`buffer_bytes`](super::buffer_bytes).
    pub buffer_bytes: usize,
    /// The multicast groups of the adverts.
    pub groups: Box<[Mac]>,
}

/// Names a socket of [`CaptureTables`] until it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureId {
    table: u32,
    slot: usize,
}

/// Sockets that were opened together.
#[derive(Debug)]
pub struct OpenedCaptures {
    /// Their namespace; `None` for that of the process.
    pub netns: Option<NetnsId>,
    /// One for each of the first requests, at least one.
    pub captures: Vec<io::Result<CaptureId>>,
}

/// Owns the sockets. The handle itself has no descriptor.
#[derive(Debug, Default)]
pub struct CaptureTables {
    tables: Vec<CaptureTable>,
    /// The number of the next table.
    next: u32,
}

#[derive(Debug)]
struct CaptureTable {
    number: u32,
    /// A socket keeps its place until it is closed.
    files: FileTable<Vec<Option<AdvertCapture>>>,
    /// Number of open sockets.
    count: usize,
}

impl CaptureTables {
    /// Opens sockets in the namespace with this name, or in that of the calling thread: as many of the requests as one
    /// table has room for, at least one. Call it again for the rest.
    pub fn open(
        &mut self,
        netns: Option<&NetnsName>,
        requests: &[CaptureRequest],
    ) -> Result<OpenedCaptures, NetnsError> {
        let limit = self.sockets_per_table();
        let table = match self.table_with_room(limit) {
            Ok(table) => table,
            Err(error) => return Ok(OpenedCaptures { netns: None, captures: vec![Err(error)] }),
        };
        let room = limit.saturating_sub(table.count).clamp(1, requests.len().max(1));
        let requests = &requests[..room.min(requests.len())];
        let number = table.number;
        let opened = table.files.run(|files| {
            let (netns, sockets) = open_all(netns, requests)?;
            let captures = sockets.into_iter().map(|socket| {
                socket.map(|socket| CaptureId { table: number, slot: insert(files, socket) })
            });
            Ok(OpenedCaptures { netns, captures: captures.collect() })
        });
        if let Ok(opened) = &opened {
            table.count += opened.captures.iter().flatten().count();
        }
        self.end_empty_tables();
        opened
    }

    /// Calls `visit` with each of these sockets and the value beside it, on the threads of the tables and one at a time.
    /// `visit` must use no other descriptor.
    pub fn for_each<L: Send>(
        &mut self,
        mut sockets: Vec<(CaptureId, L)>,
        mut visit: impl FnMut(L, &mut AdvertCapture) + Send,
    ) {
        sockets.sort_by_key(|(id, _)| *id);
        let is_visited = |table: &&mut CaptureTable| {
            sockets.binary_search_by_key(&table.number, |(id, _)| id.table).is_ok()
        };
        let tables = self.tables.iter_mut().filter(is_visited);
        let (numbers, mut tables): (Vec<u32>, Vec<_>) =
            tables.map(|table| (table.number, &mut table.files)).unzip();
        let mut left = sockets.into_iter().peekable();
        FileTable::run_each(&mut tables, |position, files| {
            while let Some((id, value)) = left.next_if(|(id, _)| id.table == numbers[position]) {
                if let Some(Some(socket)) = files.get_mut(id.slot) {
                    visit(value, socket);
                }
            }
        });
    }

    /// Closes these sockets, and waits until they are closed.
    pub fn close(&mut self, sockets: &[CaptureId]) {
        for table in &mut self.tables {
            let own = sockets.iter().filter(|id| id.table == table.number);
            let slots: Vec<usize> = own.map(|id| id.slot).collect();
            if slots.is_empty() {
                continue;
            }
            table.count -= slots.len();
            table.files.begin(move |files| {
                close_all(slots.into_iter().filter_map(|slot| files[slot].take()).collect());
            });
        }
        self.tables.iter_mut().for_each(|table| table.files.wait());
        self.end_empty_tables();
    }

    fn sockets_per_table(&self) -> usize {
        if self.tables.len() < MANY_TABLES { FEW_SOCKETS } else { MAX_SOCKETS }
    }

    /// The table with the fewest sockets, or a new one. If no thread can be started, a table gets more than `limit`.
    fn table_with_room(&mut self, limit: usize) -> io::Result<&mut CaptureTable> {
        let emptiest = (0..self.tables.len()).min_by_key(|index| self.tables[*index].count);
        let index = match emptiest {
            Some(index) if self.tables[index].count < limit => index,
            fallback => match FileTable::start("capture") {
                Ok(files) => {
                    self.tables.push(CaptureTable { number: self.next, files, count: 0 });
                    self.next += 1;
                    self.tables.len() - 1
                }
                Err(error) => fallback.ok_or(error)?,
            },
        };
        Ok(&mut self.tables[index])
    }

    fn end_empty_tables(&mut self) {
        self.tables.retain(|table| table.count > 0);
    }
}

/// Opens the sockets in the table of the calling thread. The thread that enters the namespace shares that table.
fn open_all(
    netns: Option<&NetnsName>,
    requests: &[CaptureRequest],
) -> Result<(Option<NetnsId>, Vec<io::Result<AdvertCapture>>), NetnsError> {
    let open = || requests.iter().cloned().map(AdvertCapture::open).collect();
    match netns.map(Netns::open).transpose()? {
        Some(netns) => Ok((Some(netns.id()), netns.visit(open)?)),
        None => Ok((None, open())),
    }
}

/// Puts a socket into the first free place.
fn insert(files: &mut Vec<Option<AdvertCapture>>, socket: AdvertCapture) -> usize {
    let slot = files.iter().position(Option::is_none).unwrap_or_else(|| {
        files.push(None);
        files.len() - 1
    });
    files[slot] = Some(socket);
    slot
}
