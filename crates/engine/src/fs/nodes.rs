//! Files by number: attributes, names, directories, xattrs, holds.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_ondisk::objectid;

use super::own::About;
use super::run::{deleting, need, plus};
use super::types::{Attributes, Change, Entry, FileKind, New, Node};
use super::{Filesystem, Inner, acl, namespaces};
use crate::error::{Errno, Error, Passed, Result};
use crate::inode::file::FILE_END;
use crate::inode::{
    FEW, Inode, Location, Name, SetAttributes, SetXattr, Step, letting_go, may_have_flags,
};
use crate::space::Need;
use crate::subvol::{Near, Subvolume};
use crate::txn::Op;

/// Items of a new inode and its name, without the lengths of names.
const CREATE_LEN: usize = 420;
/// Entries that are listed at a time.
const LIST_LEN: usize = 256;

/// What an operation needs that takes a file's last name away, or its last hold.
const LAST_LEAVES: u32 = 5;

impl Inner {
    pub(super) fn subvolume(&self, id: u64) -> Result<Near> {
        self.forest.get_used(&self.core, id)
    }

    /// The inode and its subvolume. ENOENT for stubs, too: what they can do is decided before.
    pub(super) fn find(&self, op: &Op<'_>, node: Node) -> Result<(Near, Arc<Inode>)> {
        let subvolume = self.subvolume(node.subvolume)?;
        let inode = subvolume.tree.get(op, node.ino)?;
        Ok((subvolume, inode))
    }

    /// To be called before the first change of a subvolume: deletes the files without names that a crash has left.
    pub(super) fn ready(&self, node: Node) -> Result<()> {
        self.core.check_writable()?;
        if node.is_stub() {
            return Err(Error::User(Errno::ROFS));
        }
        // Where it is at hand this is all, and else the table knows: nothing is opened for it.
        let near = self.forest.get_near(node.subvolume);
        if near.as_ref().is_some_and(|near| near.is_cleaned.load(Ordering::Acquire)) {
            return Ok(());
        }
        if self.is_cleaned(node.subvolume) {
            near.iter().for_each(|near| near.is_cleaned.store(true, Ordering::Release));
            return Ok(());
        }
        let subvolume = self.read(|_| self.subvolume(node.subvolume))?;
        if subvolume.tree.is_read_only() {
            return Err(Error::User(Errno::ROFS));
        }
        self.clean_up(&subvolume)
    }

    /// Deletes the files without names that a crash has left in a tree, once. Others wait for the same tree only.
    pub(super) fn clean_up(&self, subvolume: &Subvolume) -> Result<()> {
        let first = || Some(Arc::default());
        let turn = self.cleaned.write().entry(subvolume.id).or_insert_with(first).clone();
        if let Some(turn) = turn {
            let _turn = turn.lock();
            if !self.is_cleaned(subvolume.id) {
                self.drop_orphans(subvolume)?;
                self.cleaned.write().insert(subvolume.id, None);
            }
        }
        subvolume.is_cleaned.store(true, Ordering::Release);
        Ok(())
    }

    fn is_cleaned(&self, subvolume: u64) -> bool {
        matches!(self.cleaned.read().get(&subvolume), Some(None))
    }

    /// Deletes the files without names that nobody holds.
    pub(super) fn drop_orphans(&self, subvolume: &Subvolume) -> Result<()> {
        let unnamed = subvolume.is_dead();
        let mut from = 0;
        loop {
            let some = self.read(|op| subvolume.tree.orphans(op, from))?;
            for ino in &some {
                self.drop_orphan(subvolume, *ino, unnamed)?;
            }
            // What they leave goes before the next ones come.
            self.evict(subvolume, unnamed)?;
            let Some(next) = some.last().and_then(|last| last.checked_add(1)) else {
                return Ok(());
            };
            from = next;
        }
    }

    fn drop_orphan(&self, subvolume: &Subvolume, ino: u64, unnamed: bool) -> Result<()> {
        // No more than that: a full filesystem has little to spare, and this comes before every deletion.
        let need = plus(deleting(LAST_LEAVES, 0), letting_go(FEW));
        let about = About::End(Node { subvolume: subvolume.id, ino });
        let cleaned = self.change_about(about, need, |op| {
            if subvolume.is_dead() && !unnamed {
                return Err(Error::User(Errno::NOENT));
            }
            subvolume.tree.cleanup(op, ino)
        });
        self.unless_damaged(subvolume, ino, cleaned)
    }

    /// What cannot be read cannot be deleted. That is said, and keeps nobody from anything else: it takes space, no more.
    fn unless_damaged(&self, subvolume: &Subvolume, ino: u64, done: Result<()>) -> Result<()> {
        let error = match done {
            Err(error) if matches!(error.errno(), Errno::IO | Errno::UCLEAN) => error,
            done => return done,
        };
        let of = match subvolume.id {
            objectid::DATA_RELOC_TREE => "the tree of relocated data".to_string(),
            id => format!("subvolume {id}"),
        };
        self.core.warn(format!(
            "deleted file {ino} of {of} cannot be removed: {error}; its space stays taken, and the next mount tries again"
        ));
        Ok(())
    }

    /// Evicts the files that are too much for one operation: deletes them in steps, as `btrfs_evict_inode` does in Linux.
    /// `unnamed`: the subvolume counts as deleted, but is a snapshot that has no name yet.
    fn evict(&self, subvolume: &Subvolume, unnamed: bool) -> Result<()> {
        let mut failed = Vec::new();
        while let Some(mut leaving) = subvolume.tree.take_leaving() {
            let about = About::End(Node { subvolume: subvolume.id, ino: leaving.ino() });
            let done = self.in_steps(about, deleting(LAST_LEAVES, 100), |op, extents| {
                // A subvolume that was deleted goes as a whole.
                if subvolume.is_dead() && !unnamed {
                    return Ok(Some(()));
                }
                let step = subvolume.tree.let_go(op, &mut leaving, extents)?;
                Ok((step == Step::Done).then_some(()))
            });
            if done.is_err() {
                failed.push((leaving, done));
            }
        }
        let mut result = Ok(());
        for (leaving, done) in failed {
            result = result.and(self.unless_damaged(subvolume, leaving.ino(), done));
            subvolume.tree.still_leaving(leaving);
        }
        result
    }

    /// The same after an operation that has done its part. What cannot be deleted now is an orphan, and the next operation
    /// of this kind, or the next open, tries again.
    pub(super) fn evict_after(&self, subvolume: u64) {
        if let Ok(subvolume) = self.subvolume(subvolume) {
            let _ = self.evict(&subvolume, false);
        }
    }

    /// Leaves a deleted subvolume to be dropped when the last of its files was released.
    fn let_go(&self, subvolume: u64) {
        if !self.core.read_only && self.forest.is_let_go(subvolume) {
            self.forest.let_go(subvolume);
            self.wake.wake();
        }
    }

    /// Runs an operation that changes the subvolume of `node`.
    pub(super) fn change_at<T>(
        &self,
        node: Node,
        need: Need,
        work: impl FnMut(&Op<'_>, &Subvolume, &Arc<Inode>) -> Result<T>,
    ) -> Result<T> {
        self.change_at_about(node, About::Whatever, need, work)
    }

    /// The same, of an operation that says what it lets go of.
    pub(super) fn change_at_about<T>(
        &self,
        node: Node,
        about: About<'_>,
        need: Need,
        mut work: impl FnMut(&Op<'_>, &Subvolume, &Arc<Inode>) -> Result<T>,
    ) -> Result<T> {
        self.ready(node)?;
        let charged_to = if need.charged_to == 0 { node.subvolume } else { need.charged_to };
        self.change_about(about, Need { charged_to, ..need }, |op| {
            let (subvolume, inode) = self.find(op, node)?;
            work(op, &subvolume, &inode)
        })
    }

    /// Where the entry `name` of a directory leads.
    pub(super) fn node_of(&self, dir: Node, name: &[u8], location: Location) -> Result<Node> {
        Ok(match location {
            Location::Inode(ino) => Node { ino, ..dir },
            Location::Subvolume(id) => {
                if self.forest.is_named(&self.core, dir.subvolume, dir.ino, name, id)? {
                    Node::top(id)
                } else {
                    Node::stub(dir.subvolume, id)
                }
            }
        })
    }

    pub(super) fn lookup_in(&self, op: &Op<'_>, dir: Node, name: &[u8]) -> Result<Option<Entry>> {
        if dir.is_stub() {
            return Ok(None);
        }
        let subvolume = self.subvolume(dir.subvolume)?;
        let found = self.lookup_below(op, &subvolume, dir, name)?;
        Ok(found.map(|(node, kind)| Entry { name: name.to_vec(), index: 0, node, kind }))
    }

    /// The same in a subvolume that was found already.
    fn lookup_below(
        &self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        dir: Node,
        name: &[u8],
    ) -> Result<Option<(Node, FileKind)>> {
        match self.lookup_by_hash(op, subvolume, dir, name) {
            Err(why) if self.core.salvages && why.is_damage() => {
                self.lookup_lost(op, subvolume, dir, name)?.map(Some).ok_or(why)
            }
            found => found,
        }
    }

    pub(super) fn lookup_by_hash(
        &self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        dir: Node,
        name: &[u8],
    ) -> Result<Option<(Node, FileKind)>> {
        let inode = subvolume.tree.get(op, dir.ino)?;
        let found = match subvolume.tree.lookup(op, &inode, name) {
            Err(Error::User(Errno::NOENT)) => return Ok(None),
            found => found?,
        };
        let node = self.node_of(dir, name, found.location)?;
        Ok(Some((node, FileKind::of_entry(found.file_type))))
    }

    /// Goes down from `dir` by these names, the next one last, and takes away those that it has gone by: while they lead to directories
    /// of the same subvolume, and no further than "..". The directory that it came to last, and what the last name leads to there; there is
    /// at least one name.
    pub(super) fn descend(
        &self,
        op: &Op<'_>,
        mut dir: Node,
        names: &mut Vec<Cow<'_, [u8]>>,
    ) -> Result<(Node, Node, FileKind)> {
        if dir.is_stub() {
            return Err(Error::User(Errno::NOENT));
        }
        let subvolume = self.subvolume(dir.subvolume)?;
        loop {
            let Some(name) = names.last() else {
                return Ok((dir, dir, FileKind::Directory));
            };
            let found = self.lookup_below(op, &subvolume, dir, name)?;
            let (node, kind) = found.ok_or(Error::User(Errno::NOENT))?;
            names.pop();
            let inside =
                kind == FileKind::Directory && node.subvolume == dir.subvolume && !node.is_stub();
            if !inside || names.last().is_none_or(|next| **next == *b"..") {
                return Ok((dir, node, kind));
            }
            dir = node;
        }
    }

    /// What a name must lead to for something to be done with it.
    pub(super) fn must_find(&self, dir: Node, name: &[u8]) -> Result<Entry> {
        self.read(|op| self.lookup_in(op, dir, name))?.ok_or(Error::User(Errno::NOENT))
    }

    pub(super) fn attributes_of(&self, op: &Op<'_>, node: Node) -> Result<Attributes> {
        if node.is_stub() {
            return Ok(Attributes::of_stub(node));
        }
        let (subvolume, inode) = self.find(op, node)?;
        Ok(Attributes::of(node, &subvolume.tree.attributes(op.core, &inode)))
    }

    /// Makes what `new` describes: with a name, or without one and held.
    fn make(&self, dir: Node, name: Option<&[u8]>, new: &New) -> Result<Attributes> {
        new.times.map_or(Ok(()), |times| Change::to_times(&times).check_times())?;
        let len = CREATE_LEN + 3 * name.map_or(0, <[u8]>::len) + new.target.len();
        let default = match new.inherit {
            true => {
                self.ready(dir)?;
                self.default_acl(dir)?
            }
            false => None,
        };
        let born = acl::inherit(default.as_deref(), new)?;
        let small = new.target.is_empty()
            && born.xattrs.is_empty()
            && name.is_some_and(|name| name.len() <= Name::SHORT_MAX);
        let need = Need { small, ..need(6, len + born.xattrs_len()) };
        self.change_at(dir, need, |op, subvolume, parent| {
            let made = match name {
                Some(name) => {
                    may_gain_names(subvolume, dir)?;
                    subvolume.tree.create(op, parent, name, &new.inode(born.mode)?)?
                }
                None => subvolume.tree.create_unnamed(op, parent, &new.inode(born.mode)?)?,
            };
            for (name, value) in &born.xattrs {
                subvolume.tree.set_xattr(op, &made, name, value, SetXattr::Any)?;
            }
            if let Some(times) = &new.times {
                let now = made.attributes_now();
                let set = Change::to_times(times).against(&now);
                subvolume.tree.set_attributes(op, &made, &set)?;
            }
            let node = Node { ino: made.ino, ..dir };
            Ok(Attributes::of(node, &subvolume.tree.attributes(op.core, &made)))
        })
    }

    pub(super) fn default_acl(&self, dir: Node) -> Result<Option<Vec<u8>>> {
        self.read(|op| {
            let (subvolume, inode) = self.find(op, dir)?;
            match subvolume.tree.xattr(op, &inode, acl::DEFAULT) {
                Err(Error::User(Errno::NODATA)) => Ok(None),
                found => found.map(Some),
            }
        })
    }

    /// Some entries from index `from` on, and the index where the others begin. `told` says what may be passed over.
    fn list(
        &self,
        dir: Node,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
    ) -> Result<(Vec<Entry>, Option<u64>)> {
        if dir.is_stub() {
            return Ok((Vec::new(), None));
        }
        self.read(|op| {
            let (subvolume, inode) = self.find(op, dir)?;
            let mut found = Vec::new();
            let listed = subvolume.tree.read_directory_past(op, &inode, from, told, |entry| {
                let (name, kind) = (entry.name.to_vec(), FileKind::of_entry(entry.file_type));
                found.push((name, entry.index, entry.location, kind));
                if found.len() < LIST_LEN {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            // Those before what cannot be read are listed; it is met again by who goes on.
            let is_cut = match listed {
                Err(why) if found.is_empty() => return Err(why),
                listed => listed.is_err() || found.len() == LIST_LEN,
            };
            let last = found.last().map(|(_, index, ..)| *index).filter(|_| is_cut);
            let mut entries = Vec::new();
            for (name, index, location, kind) in found {
                // Names are listed by index and found by hash. Where those differ, which only happens in a damaged
                // directory, whoever lists sees what whoever looks the name up finds, as in Linux.
                let (location, kind) = match subvolume.tree.lookup(op, &inode, &name) {
                    Ok(found) => (found.location, FileKind::of_entry(found.file_type)),
                    Err(_) => (location, kind),
                };
                match self.node_of(dir, &name, location) {
                    Ok(node) => entries.push(Entry { name, index, node, kind }),
                    Err(why) => told(Passed::Unreadable(why))?,
                }
            }
            Ok((entries, last.and_then(|last| last.checked_add(1))))
        })
    }

    pub(super) fn list_all(
        &self,
        dir: Node,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
        each: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let mut next = Some(from);
        while let Some(from) = next {
            let (entries, others) = self.list(dir, from, told)?;
            if !entries.into_iter().all(&mut *each) {
                return Ok(());
            }
            next = others;
        }
        Ok(())
    }
}

impl Filesystem {
    /// What `name` in `dir` leads to.
    pub fn lookup(&self, dir: Node, name: &[u8]) -> Result<Option<Entry>> {
        self.inner().read(|op| self.inner().lookup_in(op, dir, name))
    }

    /// What `stat` tells.
    pub fn attributes(&self, node: Node) -> Result<Attributes> {
        self.inner().read(|op| self.inner().attributes_of(op, node))
    }

    /// Changes what `change` names; answers the attributes after. A file of many extents is cut in steps: whoever looks at
    /// it meanwhile sees sizes in between, and so does who comes after a crash.
    pub fn set_attributes(&self, node: Node, change: &Change) -> Result<Attributes> {
        change.check_times()?;
        let inner = self.inner();
        let set = |op: &Op<'_>, subvolume: &Subvolume, inode: &Arc<Inode>| {
            let set: SetAttributes = change.against(&inode.attributes_now());
            Ok(Attributes::of(node, &subvolume.tree.set_attributes(op, inode, &set)?))
        };
        let Some(size) = change.size else { return inner.change_at(node, need(1, 0), set) };
        inner.ready(node)?;
        // What would be refused at the end is so before anything is cut.
        if let Some(flags) = change.flags {
            inner.read(|op| {
                let (_, inode) = inner.find(op, node)?;
                may_have_flags(&inode.attributes_now(), flags)
            })?;
        }
        // The end of a sector is written anew; a full filesystem can always cut files to nothing.
        let data = if size == 0 { 0 } else { 2 * buttress_ondisk::SECTOR };
        let mut end = FILE_END;
        let need = Need { data, charged_to: node.subvolume, ..deleting(2, 200) };
        inner.in_steps(About::End(node), need, |op, extents| {
            let (subvolume, inode) = inner.find(op, node)?;
            match subvolume.tree.shorten(op, &inode, size, &mut end, extents)? {
                Step::Again => Ok(None),
                Step::Done => set(op, &subvolume, &inode).map(Some),
            }
        })
    }

    /// Makes a file, directory, symbolic link or special file. EEXIST when the name is taken.
    pub fn create(&self, dir: Node, name: &[u8], new: &New) -> Result<Attributes> {
        self.inner().make(dir, Some(name), new)
    }

    /// Makes a file without a name, which [`Filesystem::link`] may give it. It comes held: it is deleted with the
    /// last [`Filesystem::release`] unless it has a name then. EINVAL for a directory.
    pub fn create_unnamed(&self, dir: Node, new: &New) -> Result<Attributes> {
        if new.kind == FileKind::Directory {
            return Err(Error::User(Errno::INVAL));
        }
        self.inner().make(dir, None, new)
    }

    /// Gives a file a name more. EXDEV in another subvolume.
    pub fn link(&self, node: Node, dir: Node, name: &[u8]) -> Result<Attributes> {
        if node.subvolume != dir.subvolume {
            return Err(Error::User(Errno::XDEV));
        }
        self.inner().change_at(dir, need(5, 260 + 3 * name.len()), |op, subvolume, parent| {
            may_gain_names(subvolume, dir)?;
            let inode = subvolume.tree.get(op, node.ino)?;
            subvolume.tree.link(op, &inode, parent, name)?;
            Ok(Attributes::of(node, &subvolume.tree.attributes(op.core, &inode)))
        })
    }

    /// Removes a name that is not a directory's. Answers what it led to, which is gone when that was its last name and
    /// nobody holds it.
    pub fn unlink(&self, dir: Node, name: &[u8]) -> Result<Node> {
        let inner = self.inner();
        let entry = inner.must_find(dir, name)?;
        if entry.kind == FileKind::Directory {
            return Err(Error::User(Errno::ISDIR));
        }
        let need = plus(deleting(LAST_LEAVES, 0), letting_go(FEW));
        let about = About::Entry(dir, name);
        let node = inner.change_at_about(dir, about, need, |op, subvolume, parent| {
            let inode = subvolume.tree.unlink(op, parent, name)?;
            Ok(Node { ino: inode.ino, ..dir })
        })?;
        inner.evict_after(dir.subvolume);
        Ok(node)
    }

    /// Removes an empty directory; an empty subvolume, too.
    pub fn rmdir(&self, dir: Node, name: &[u8]) -> Result<Node> {
        let inner = self.inner();
        let entry = inner.must_find(dir, name)?;
        if entry.kind != FileKind::Directory {
            return Err(Error::User(Errno::NOTDIR));
        }
        if entry.node.is_stub() || entry.node.is_top() {
            inner.delete_subvolume(dir, name, None, true)?;
            return Ok(entry.node);
        }
        let about = About::Entry(dir, name);
        inner.change_at_about(dir, about, deleting(6, 0), |op, subvolume, parent| {
            let inode = subvolume.tree.rmdir(op, parent, name)?;
            Ok(Node { ino: inode.ino, ..dir })
        })
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, node: Node) -> Result<Vec<u8>> {
        let inner = self.inner();
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.read_link(op, &inode)
        })
    }

    /// Lists a directory in the order of indexes, from `from` on (0 for all), without "." and "..", until `each` answers
    /// `false`. `each` may call into the filesystem.
    pub fn read_dir(
        &self,
        dir: Node,
        from: u64,
        each: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let inner = self.inner();
        inner.list_all(dir, from, &mut |passed| inner.core.only_names(passed), each)
    }

    /// Lists a whole directory as far as it goes: what cannot be listed is told and passed over. Where only is read, names that the listing has lost
    /// are looked for by their hashes; they come last, and have no index.
    pub fn read_dir_past(
        &self,
        dir: Node,
        told: &mut dyn FnMut(Error),
        each: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let (mut is_damaged, mut goes_on) = (false, true);
        let mut passed = |passed: Passed| {
            is_damaged |= matches!(passed, Passed::Unreadable(_));
            told(passed.why());
            Ok(())
        };
        let inner = self.inner();
        inner.list_all(dir, 0, &mut passed, &mut |entry| {
            goes_on = each(entry);
            goes_on
        })?;
        let is_to_go_on = is_damaged && goes_on && inner.core.read_only;
        if is_to_go_on { inner.list_lost(dir, told, each) } else { Ok(()) }
    }

    /// The value of an xattr.
    pub fn get_xattr(&self, node: Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let inner = self.inner();
        if node.is_stub() {
            return Ok(None);
        }
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            match subvolume.tree.xattr(op, &inode, name) {
                Err(Error::User(Errno::NODATA)) => Ok(None),
                found => found.map(Some),
            }
        })
    }

    /// Whether a file is known to have no xattrs; nothing is read to find that out.
    pub fn is_without_xattrs(&self, node: Node) -> bool {
        let inner = self.inner();
        let look = |op: &Op<'_>| {
            let (subvolume, inode) = inner.find(op, node)?;
            Ok(subvolume.tree.is_without_xattrs(&inode))
        };
        !node.is_stub() && inner.read(look).unwrap_or(false)
    }

    /// The names of all xattrs, sorted.
    pub fn list_xattrs(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let inner = self.inner();
        if node.is_stub() {
            return Ok(Vec::new());
        }
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            let names = subvolume.tree.xattrs(op, &inode)?;
            Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
        })
    }

    /// Sets an xattr. What an ACL means for the mode is the caller's business. EOPNOTSUPP outside the namespaces that btrfs has (`user.`, `trusted.`,
    /// `security.`, `btrfs.` and the two ACLs), EINVAL for a namespace without a name and for what is no ACL, EACCES for a default ACL of what is no directory.
    pub fn set_xattr(&self, node: Node, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        namespaces::check(name, value)?;
        let need = need(2, 60 + name.len() + value.len());
        self.inner().change_at(node, need, |op, subvolume, inode| {
            if name == acl::DEFAULT && !inode.attributes_now().is_directory() {
                return Err(Error::User(Errno::ACCESS));
            }
            subvolume.tree.set_xattr(op, inode, name, value, how)
        })
    }

    /// Removes an xattr; ENODATA when there is none.
    pub fn remove_xattr(&self, node: Node, name: &[u8]) -> Result<()> {
        let about = About::Xattr(node, name);
        self.inner().change_at_about(node, about, deleting(2, 0), |op, subvolume, inode| {
            subvolume.tree.remove_xattr(op, inode, name)
        })
    }

    /// Keeps a file, named or not, until [`Filesystem::release`]. ENOENT when it is gone already.
    pub fn hold(&self, node: Node) -> Result<()> {
        let inner = self.inner();
        if node.is_stub() {
            return Ok(());
        }
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.hold(&inode)
        })
    }

    /// Ends a hold that [`Filesystem::hold`] or [`Filesystem::create_unnamed`] began. The last one deletes a file that has no name. EINVAL where nobody holds it.
    pub fn release(&self, node: Node) -> Result<()> {
        let inner = self.inner();
        if node.is_stub() {
            return Ok(());
        }
        let release = |op: &Op<'_>| match inner.find(op, node) {
            Ok((subvolume, inode)) => subvolume.tree.release(op, &inode),
            // Its subvolume was deleted.
            Err(Error::User(Errno::NOENT)) => Ok(()),
            Err(error) => Err(error),
        };
        let nameless = inner.read(|op| match inner.attributes_of(op, node) {
            Ok(attributes) => Ok(attributes.nlink == 0),
            Err(Error::User(Errno::NOENT)) => Ok(false),
            Err(error) => Err(error),
        })?;
        if !nameless || inner.core.check_writable().is_err() {
            inner.read(release)?;
            inner.let_go(node.subvolume);
            return Ok(());
        }
        let need = plus(deleting(LAST_LEAVES, 0), letting_go(FEW));
        inner.change_about(About::End(node), need, release)?;
        inner.evict_after(node.subvolume);
        inner.let_go(node.subvolume);
        Ok(())
    }
}

/// As in Linux, the top directory of a deleted subvolume, which somebody may have open, gains no names.
pub(super) fn may_gain_names(subvolume: &Subvolume, dir: Node) -> Result<()> {
    if dir.is_top() && subvolume.is_dead() { Err(Error::User(Errno::NOENT)) } else { Ok(()) }
}
