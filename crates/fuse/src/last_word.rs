//! What the process of a mount says at its end: that its last commit is written, or why it is not.
//!
//! Nobody listens to such a process any more, but whoever unmounts waits for it to end. So it has a file in memory from the beginning, and
//! writes its last word into that before it lets go of the device. Whoever unmounts opens the file before, by what /proc shows of the
//! process, and reads it in the end: no word is one, too, as a process that was killed in its last commit says nothing. A file in memory
//! needs no directory that could be full or read-only, and leaves nothing behind. Its first line is the number of the mount, by which
//! the process is found where the kernel does not tell whose connection it has.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

/// What the file is called in /proc, between `/memfd:` and ` (deleted)`.
const NAME: &str = "buttress-last-word";
/// The word that all is written. Others are errors.
const WRITTEN: &str = "written";
/// Longest word, in bytes.
const BYTES_MAX: usize = 4096;

/// The file of this process.
pub(crate) struct LastWord(File);

impl LastWord {
    /// `None` where the system has no such files: whoever unmounts believes then that all is well when the process has ended.
    pub(crate) fn begin() -> Option<Self> {
        // Some systems refuse others, and old ones do not know that.
        let sealed = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
        let file = sealed.or_else(|_| memfd_create(NAME, MemfdFlags::CLOEXEC));
        file.ok().map(|file| Self(file.into()))
    }

    /// This is the number of the mount that the process serves (`st_dev`).
    pub(crate) fn serves(&self, (major, minor): (u32, u32)) {
        // Which also takes the memory that the last word needs.
        let _else_found_by_the_kernels_word =
            (&self.0).write_all(format!("{major}:{minor}\n").as_bytes());
    }

    /// The last commit is over.
    pub(crate) fn say<E: std::fmt::Display>(&self, committed: Result<&(), E>) {
        let said = committed.map_or_else(|error| error.to_string(), |_| WRITTEN.to_owned());
        // Where there is no memory for it there is no word, which says enough.
        let _said = (&self.0).write_all(said.as_bytes());
    }
}

/// The file of another process, for one who waits for its end.
pub(crate) struct Ear(File);

/// What one has heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Written,
    Failed(String),
}

impl Ear {
    /// At one of the open files of a process, as /proc has them.
    pub(crate) fn at(open: &Path) -> Option<Self> {
        let name = fs::read_link(open).ok()?;
        let is_it = name.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")? == NAME;
        is_it.then(|| File::open(open).ok().map(Self)).flatten()
    }

    /// The number of the mount, and what was said.
    fn read(&self) -> (String, String) {
        let mut said = vec![0; BYTES_MAX];
        let len = self.0.read_at(&mut said, 0).unwrap_or(0);
        let said = String::from_utf8_lossy(said.get(..len).unwrap_or_default());
        let (number, word) = said.split_once('\n').unwrap_or_default();
        (number.to_owned(), word.to_owned())
    }

    pub(crate) fn is_of(&self, (major, minor): (u32, u32)) -> bool {
        self.read().0 == format!("{major}:{minor}")
    }

    pub(crate) fn heard(&self) -> Heard {
        match self.read().1.as_str() {
            "" => Heard::Nothing,
            WRITTEN => Heard::Written,
            why => Heard::Failed(why.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use super::*;

    fn ear(word: &LastWord) -> Ear {
        Ear::at(&PathBuf::from(format!("/proc/self/fd/{}", word.0.as_raw_fd()))).unwrap()
    }

    #[test]
    fn a_last_word_is_heard_after_its_process() {
        let word = LastWord::begin().unwrap();
        let first = ear(&word);
        assert_eq!(first.heard(), Heard::Nothing);
        word.serves((0, 42));
        assert_eq!(first.heard(), Heard::Nothing);
        assert!(first.is_of((0, 42)) && !first.is_of((0, 4)));
        word.say(Ok::<&(), String>(&()));
        drop(word);
        assert_eq!((first.heard(), first.heard()), (Heard::Written, Heard::Written));

        let word = LastWord::begin().unwrap();
        let ear = ear(&word);
        word.serves((0, 7));
        word.say(Err("no space left"));
        assert_eq!(ear.heard(), Heard::Failed("no space left".into()));
        assert!(Ear::at(Path::new("/proc/self/fd/0")).is_none());
    }
}
