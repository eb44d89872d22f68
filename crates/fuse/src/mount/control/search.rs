//! TREE_SEARCH: items of any tree, for programs that know the format.
//!
//! The struct has room for 3992 bytes of items. A bigger item is passed over in the kernel's first
//! version of this ioctl by EOVERFLOW when it is the first, and by ending the answer otherwise.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::abi::{SEARCH_BYTES, SearchHeader, SearchKey};
use super::ioctl::{Output, input};
use super::{Control, FoundItem, Mount, TreeKey};
use crate::mount::store::Answer;
use crate::protocol::channel::Request;

impl<S: Control> Mount<S> {
    pub(super) fn tree_search(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        self.require_master(request)?;
        let mut key: SearchKey = input(bytes)?;
        let tree = match key.tree_id {
            0 => self.store.identity(&self.node(request.nodeid())?).within(),
            id => id,
        };
        let mut found = Found::new(key.nr_items);
        let from = tree_key(key.min_objectid, key.min_type, key.min_offset);
        let to = tree_key(key.max_objectid, key.max_type, key.max_offset);
        let transids = key.min_transid..=key.max_transid;
        self.store.search(tree, from, to, key.min_transid, &mut |item| {
            !transids.contains(&item.transid) || found.push(&item)
        })?;
        if found.count == 0 && found.too_big {
            return Err(Errno::OVERFLOW);
        }
        key.nr_items = found.count;
        let mut answer = key.as_bytes().to_vec();
        answer.append(&mut found.bytes);
        answer.resize(SEARCH_BYTES, 0);
        Ok(Output { bytes: answer, ..Output::default() })
    }
}

/// Types above a byte mean the highest.
fn tree_key(objectid: u64, kind: u32, offset: u64) -> TreeKey {
    TreeKey { objectid, kind: u8::try_from(kind).unwrap_or(u8::MAX), offset }
}

/// Items on their way into the answer.
struct Found {
    bytes: Vec<u8>,
    count: u32,
    limit: u32,
    too_big: bool,
}

impl Found {
    fn new(limit: u32) -> Self {
        Self { bytes: Vec::new(), count: 0, limit, too_big: false }
    }

    /// Adds an item; `false`: the answer is full.
    fn push(&mut self, item: &FoundItem<'_>) -> bool {
        let room = SEARCH_BYTES - size_of::<SearchKey>() - self.bytes.len();
        if self.count >= self.limit {
            return false;
        }
        let Ok(len) = u32::try_from(item.data.len()) else { return false };
        if size_of::<SearchHeader>() + item.data.len() > room {
            self.too_big = true;
            return false;
        }
        let header = SearchHeader {
            transid: item.transid,
            objectid: item.key.objectid,
            offset: item.key.offset,
            kind: u32::from(item.key.kind),
            len,
        };
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(item.data);
        self.count += 1;
        true
    }
}
