//! Where the data of a file on a live mount are: FUSE has no FIEMAP, so the mount is asked by its control words, some extents at a time.

use std::fs::File;

use buttress::{FileExtent, fiemap_flags};
use buttress_fuse::client;
use rustix::io::Errno;

use super::host::handle_path;
use super::{FileError, Result};

/// The extents of a file that is open.
pub(super) struct Extents {
    file: File,
    /// Where to go on; nothing at the end.
    next: Option<u64>,
    ready: std::vec::IntoIter<FileExtent>,
}

impl Extents {
    /// Of a regular file on a live mount. Its pages are written first.
    pub fn of(file: File) -> Result<Extents> {
        file.sync_data()?;
        let mut extents = Extents { file, next: None, ready: Vec::new().into_iter() };
        match extents.more(0) {
            Err(_) if !client::is_live(&handle_path(&extents.file)) => {
                let text =
                    "it is on no mount of buttress; `filefrag` tells what other filesystems say";
                let errno = Errno::OPNOTSUPP.raw_os_error();
                Err(FileError { errno, text: text.to_owned() })
            }
            begun => begun.map(|()| extents),
        }
    }

    fn more(&mut self, from: u64) -> Result<()> {
        let found = client::fiemap(&handle_path(&self.file), from)?;
        let extent = |one: client::ExtentFacts| FileExtent {
            logical: one.logical,
            physical: one.physical,
            length: one.length,
            flags: one.flags,
        };
        let found: Vec<FileExtent> = found.into_iter().map(extent).collect();
        // A mount that does not go on must not keep anybody for ever.
        let last = found.last().filter(|last| last.flags & fiemap_flags::LAST == 0);
        self.next = last.map(FileExtent::end).filter(|end| *end > from);
        self.ready = found.into_iter();
        Ok(())
    }
}

impl Iterator for Extents {
    type Item = Result<FileExtent>;

    fn next(&mut self) -> Option<Result<FileExtent>> {
        loop {
            if let Some(next) = self.ready.next() {
                return Some(Ok(next));
            }
            if let Err(error) = self.next.take().map(|from| self.more(from))? {
                return Some(Err(error));
            }
        }
    }
}
