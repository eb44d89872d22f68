//! Where the kernel and our mount differ and that is right.

use buttress::{Allocate, Rename};
use rustix::io::Errno;

use super::calls::Answer;
use crate::model::{Content, Model, PAGE};
use crate::ops::Op;

/// A difference with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excuse {
    /// A word for it.
    pub word: &'static str,
    /// What differs.
    pub what: &'static str,
    /// Why that is right.
    pub why: &'static str,
}

const STUB: Excuse = Excuse {
    word: "stub",
    what: "the empty directory that stands for a subvolume in a snapshot: its mode, its owner, its times, whether they can \
           be changed, and the errno of changing it",
    why: "nothing of it is on the disk: the kernel makes it up from the directory above, lets chmod, chown and utimes change \
          what it has made up until it forgets it, and refuses the rest by EACCES, EPERM or EOPNOTSUPP, as nothing is \
          implemented for it; here it is a read-only directory of root, and the errno is EROFS",
};
const WHICH_REFUSAL: Excuse = Excuse {
    word: "which-refusal",
    what: "which errno, where one of them is EROFS",
    why: "several refusals hold at once: over FUSE the kernel does not know that a subvolume is read-only, so its other \
          checks come before ours",
};
const OPENING: Excuse = Excuse {
    word: "opening",
    what: "EROFS for opening a file of a read-only subvolume for writing, where we let it be opened",
    why: "FUSE asks nobody about an open (that is what makes it fast); whoever then writes gets EROFS, and whoever stores to \
          mapped pages is told by msync(2), by close(2), and by the next syncfs(2); the pages show it until they are dropped",
};
const PUNCH: Excuse = Excuse {
    word: "punch",
    what: "the times of a file after a hole was punched where it has nothing but zeros",
    why: "both leave them as they are where all of that is a hole; but what is a hole for one may be a sector of zeros for \
          the other (see `zeros`), and where the range starts within a sector, the kernel sees no more of the hole than the \
          length of the range in whole sectors, and writes such a sector behind it",
};
const LARGER_XATTR: Excuse = Excuse {
    word: "larger-xattr",
    what: "ENOSPC for replacing an xattr by a larger value, which we set",
    why: "the kernel cannot make an item larger when the old and the new value together do not fit into a leaf; ours is \
          written anew",
};
const HELD: Excuse = Excuse {
    word: "held",
    what: "changes through a file that was opened before its subvolume became read-only",
    why: "the kernel lets them pass, we refuse them by EROFS: a read-only subvolume does not change; left out",
};

const EXCHANGED: Excuse = Excuse {
    word: "exchanged",
    what: "a directory that stands where a snapshot's source has a subvolume, exchanged with something else",
    why: "the kernel looks for a name that such a directory does not have, and aborts its transaction (6.18); left out",
};

const ZEROS: Excuse = Excuse {
    word: "zeros",
    what: "whether a sector of zeros is data, a hole or reserved space",
    why: "where a file is cut, grown or punched within a sector that is a hole or reserved, the kernel writes a sector of \
          zeros, and we leave it as it is; `tree` accepts that",
};

const LOST_SIZE: Excuse = Excuse {
    word: "lost-size",
    what: "reserving space behind the end of a file (FALLOC_FL_KEEP_SIZE) where holes have items (^no-holes)",
    why: "a file that grows into space that was reserved before the last mount loses its new size in the kernel: it came back \
          with 4,096 bytes instead of 16,384, the rest of what was written gone; left out",
};

/// All differences that are right, and what is left out because the two filesystems would go apart.
pub const TABLE: [Excuse; 9] =
    [STUB, WHICH_REFUSAL, OPENING, PUNCH, LARGER_XATTR, ZEROS, HELD, LOST_SIZE, EXCHANGED];

/// The reason why an operation is not run at all.
pub fn left_out(model: &Model, no_holes: bool, op: &Op) -> Option<&'static Excuse> {
    if !no_holes && reserves_behind(model, op) {
        return Some(&LOST_SIZE);
    }
    if let Op::Rename { from, to, how: Rename::Exchange } = op
        && [from, to].iter().any(|at| is_stub(model, at))
    {
        return Some(&EXCHANGED);
    }
    let changed = match op {
        Op::Write { at, .. }
        | Op::Truncate { at, .. }
        | Op::Allocate { at, .. }
        | Op::SetXattr { at, .. }
        | Op::RemoveXattr { at, .. }
        | Op::Chmod { at, .. }
        | Op::Chown { at, .. }
        | Op::Utimes { at, .. }
        | Op::Clone { to: at, .. } => at,
        _ => return None,
    };
    (changed.starts_with('@') && is_read_only(model, changed)).then_some(&HELD)
}

/// The reason why two answers may differ.
pub fn excuse(model: &Model, op: &Op, theirs: &Answer, ours: &Answer) -> Option<&'static Excuse> {
    let alike = theirs.seen == ours.seen;
    match (&theirs.result, &ours.result) {
        (Err(_), Err(_)) if alike && op.paths().iter().any(|at| meets_stub(model, at)) => {
            Some(&STUB)
        }
        (Ok(_), Err(Errno::ROFS)) if alike && changed_stub(model, op).is_some() => Some(&STUB),
        (Err(Errno::ROFS), Err(_)) | (Err(_), Err(Errno::ROFS)) if alike => Some(&WHICH_REFUSAL),
        (Err(Errno::ROFS), Ok(_))
            if alike && op.paths().iter().any(|at| is_read_only(model, at)) =>
        {
            Some(&OPENING)
        }
        (Err(Errno::NOSPC), Ok(_)) if matches!(op, Op::SetXattr { .. }) => Some(&LARGER_XATTR),
        (Ok(_), Ok(_)) if matches!(op, Op::Allocate { mode: Allocate::PunchHole, .. }) => {
            let timeless = theirs.seen.iter().zip(&ours.seen).all(|(a, b)| a.what == b.what);
            (timeless && has_zeros(model, op)).then_some(&PUNCH)
        }
        _ => None,
    }
}

fn is_read_only(model: &Model, at: &str) -> bool {
    let node = model.resolve(at);
    node.is_ok_and(|node| model.volumes.get(&node.subvolume).is_some_and(|it| it.read_only))
}

/// Whether a path leads to a stub or into one.
fn meets_stub(model: &Model, at: &str) -> bool {
    let dir = at.trim_end_matches('/').rsplit_once('/').map_or("", |(dir, _)| dir);
    is_stub(model, at) || is_stub(model, dir)
}

/// Whether an operation may reserve space behind the end of a file.
fn reserves_behind(model: &Model, op: &Op) -> bool {
    let Op::Allocate { at, mode, offset, len } = op else { return false };
    let keeps = matches!(
        mode,
        Allocate::Reserve { keep_size: true } | Allocate::ZeroRange { keep_size: true }
    );
    let size = model.resolve(at).ok().and_then(|node| model.content(node)).map(Content::size);
    keeps && size.is_some_and(|size| offset + len > size)
}

/// Whether a file has nothing but zeros where an operation punches a hole.
fn has_zeros(model: &Model, op: &Op) -> bool {
    let Op::Allocate { at, offset, len, .. } = op else { return false };
    let punched = offset / PAGE..(offset + len).div_ceil(PAGE);
    let content = model.resolve(at).ok().and_then(|node| model.content(node));
    content.is_some_and(|content| !content.pages().any(|page| punched.contains(&page)))
}

/// The stub whose attributes an operation changes.
pub fn changed_stub<'op>(model: &Model, op: &'op Op) -> Option<&'op str> {
    match op {
        Op::Chmod { at, .. } | Op::Chown { at, .. } | Op::Utimes { at, .. } => {
            is_stub(model, at).then_some(at)
        }
        _ => None,
    }
}

/// Whether a path leads to a stub.
pub fn is_stub(model: &Model, at: &str) -> bool {
    model.resolve(at).is_ok_and(|node| node.is_stub())
}

/// The sort of a difference: the operation's word and the words of the answers that differ.
pub fn sort(op: &Op, theirs: &Answer, ours: &Answer) -> String {
    let (op, theirs, ours) = (op.to_string(), theirs.to_string(), ours.to_string());
    let mut sort = op.split(' ').next().unwrap_or_default().to_owned();
    let pairs = theirs.split(' ').zip(ours.split(' '));
    for (number, (word, other)) in pairs.enumerate().filter(|(_, (word, other))| word != other) {
        sort += &format!(" {number}:{word}/{other}");
    }
    sort
}

/// What btrfs-progs say, and the errno that it stands for. The longer ones come first.
pub const SAID: [(&str, Errno); 12] = [
    ("target path already exists", Errno::EXIST),
    ("File exists", Errno::EXIST),
    ("Read-only file system", Errno::ROFS),
    ("Directory not empty", Errno::NOTEMPTY),
    ("name too long", Errno::NAMETOOLONG),
    ("File name too long", Errno::NAMETOOLONG),
    ("No such file or directory", Errno::NOENT),
    ("Not a directory", Errno::NOTDIR),
    ("Invalid argument", Errno::INVAL),
    ("Operation not permitted", Errno::PERM),
    ("No space left", Errno::NOSPC),
    ("not a subvolume", Errno::INVAL),
];

/// An errno by its name.
pub fn name(errno: Errno) -> String {
    format!("{errno:?}")
}
