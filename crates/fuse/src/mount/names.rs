//! Names: looking them up, making, moving and removing them, and the kernel's hold on what they
//! lead to.

use std::ffi::OsStr;

use buttress::ondisk::item::mode::{DIRECTORY, REGULAR, SYMLINK, TYPE_MASK as TYPE};
use rustix::fs::RenameFlags as LinuxRename;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::Mount;
use super::attributes::decode_device;
use super::store::{Answer, NewInode, RenameFlags, Store};
use crate::protocol::abi::{self, EntryOut};
use crate::protocol::channel::{Reply, Request};

impl<S: Store> Mount<S> {
    pub(super) fn lookup(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let directory = self.node(request.nodeid())?;
        let name = request.body().text()?;
        // The dots come only with file handles, to find the way from a forgotten node to the top.
        let found = match name.as_encoded_bytes() {
            b"." => Some(directory),
            b".." if request.nodeid() == abi::ROOT_ID => Some(directory),
            b".." => Some(self.store.parent(&directory)?),
            _ => self.store.lookup(&directory, name)?,
        };
        found.map_or(Err(Errno::NOENT), |node| self.entry(&node))
    }

    pub(super) fn forget(&self, request: &Request<'_>) {
        if let Ok(abi::ForgetIn { nlookup }) = request.body().read() {
            self.forget_one(request.nodeid(), nlookup);
        }
    }

    pub(super) fn batch_forget(&self, request: &Request<'_>) {
        let mut body = request.body();
        let Ok(abi::BatchForgetIn { count, .. }) = body.read() else { return };
        for _ in 0..count {
            let Ok(abi::ForgetOne { nodeid, nlookup }) = body.read() else { return };
            self.forget_one(nodeid, nlookup);
        }
    }

    fn forget_one(&self, id: u64, count: u64) {
        // The top stays: nothing looks it up.
        if id != abi::ROOT_ID && self.nodes.forget(id, count) {
            self.refused.forgotten(id);
            self.release_node(id);
            self.tell_held();
        }
    }

    pub(super) fn create(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::CreateIn = body.read()?;
        self.may_create(&self.node(request.nodeid())?)?;
        self.make(request, body.text()?, wish.mode & !TYPE | REGULAR, wish.umask, 0)
    }

    pub(super) fn mknod(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::MknodIn = body.read()?;
        if wish.mode & TYPE == REGULAR {
            self.may_create(&self.node(request.nodeid())?)?;
        }
        self.make(request, body.text()?, wish.mode, wish.umask, wish.rdev)
    }

    pub(super) fn mkdir(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::MkdirIn = body.read()?;
        self.make(request, body.text()?, wish.mode & !TYPE | DIRECTORY, wish.umask, 0)
    }

    fn make(
        &self,
        request: &Request<'_>,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
    ) -> Answer<EntryOut> {
        let directory = self.node(request.nodeid())?;
        self.may_add(&directory)?;
        let mut new = self.new_inode(request, mode);
        new.device = decode_device(device);
        new.umask = umask;
        new.inherit = self.has_default_acl(request.nodeid(), &directory)?;
        let (node, attributes) = self.store.create(&directory, name, &new)?;
        self.directory_changed(self.entry_with(&node, &attributes)?)
    }

    pub(super) fn symlink(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let (name, target) = (body.text()?, body.text()?);
        let directory = self.node(request.nodeid())?;
        self.may_add(&directory)?;
        let new = self.new_inode(request, SYMLINK | 0o777);
        let (node, attributes) = self.store.symlink(&directory, name, target, &new)?;
        self.directory_changed(self.entry_with(&node, &attributes)?)
    }

    pub(super) fn temporary(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let wish: abi::CreateIn = request.body().read()?;
        let directory = self.node(request.nodeid())?;
        self.may_add(&directory)?;
        let mut new = self.new_inode(request, wish.mode & !TYPE | REGULAR);
        new.umask = wish.umask;
        new.inherit = self.has_default_acl(request.nodeid(), &directory)?;
        let (node, attributes) = self.store.temporary(&directory, &new)?;
        let entry = self.entry_with(&node, &attributes);
        self.store.release(node);
        entry
    }

    pub(super) fn link(&self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let abi::LinkIn { oldnodeid } = body.read()?;
        let (node, directory) = (self.node(oldnodeid)?, self.node(request.nodeid())?);
        self.may_touch(&node)?;
        self.may_add(&directory)?;
        let attributes = self.store.link(&node, &directory, body.text()?)?;
        self.directory_changed(self.entry_with(&node, &attributes)?)
    }

    pub(super) fn unlink(&self, request: &Request<'_>) -> Answer<()> {
        let directory = self.node(request.nodeid())?;
        let mut body = request.body();
        let name = body.text()?;
        self.may_remove(&directory, name)?;
        self.store.unlink(&directory, name)?;
        self.directory_changed(())
    }

    pub(super) fn rmdir(&self, request: &Request<'_>) -> Answer<()> {
        let directory = self.node(request.nodeid())?;
        let mut body = request.body();
        let name = body.text()?;
        self.may_remove(&directory, name)?;
        self.store.rmdir(&directory, name)?;
        self.directory_changed(())
    }

    pub(super) fn rename(&self, request: &Request<'_>) -> Answer<()> {
        let mut body = request.body();
        let abi::RenameIn { newdir } = body.read()?;
        self.move_name(request, body.text()?, newdir, body.text()?, 0)
    }

    pub(super) fn rename2(&self, request: &Request<'_>) -> Answer<()> {
        let mut body = request.body();
        let wish: abi::Rename2In = body.read()?;
        self.move_name(request, body.text()?, wish.newdir, body.text()?, wish.flags)
    }

    fn move_name(
        &self,
        request: &Request<'_>,
        old: &OsStr,
        to: u64,
        new: &OsStr,
        flags: u32,
    ) -> Answer<()> {
        let known = LinuxRename::from_bits(flags).ok_or(Errno::INVAL)?;
        let NewInode { uid, gid, .. } = self.new_inode(request, 0);
        let flags = RenameFlags {
            no_replace: known.contains(LinuxRename::NOREPLACE),
            exchange: known.contains(LinuxRename::EXCHANGE),
            whiteout: known.contains(LinuxRename::WHITEOUT).then_some((uid, gid)),
        };
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.node(request.nodeid())?, self.node(to)?);
        self.may_remove(&from, old)?;
        self.may_replace(&to, new)?;
        self.store.rename((&from, old), (&to, new), flags)?;
        self.directory_changed(())
    }

    pub(super) fn read_link(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let node = self.node(request.nodeid())?;
        let target = self.store.read_link(&node)?;
        self.accessed(&node);
        Ok(target)
    }
}

/// CREATE and TMPFILE answer with an entry and an open file in one. There are no handles.
pub(super) fn reply_opened(reply: Reply<'_>, entry: Answer<EntryOut>) {
    let open = abi::OpenOut { open_flags: abi::fopen::KEEP_CACHE, ..abi::OpenOut::default() };
    match entry {
        Ok(entry) => reply.parts(&[entry.as_bytes(), open.as_bytes()]),
        Err(errno) => reply.refuse(errno),
    }
}
