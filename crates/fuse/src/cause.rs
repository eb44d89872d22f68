//! The causes of a failed mount for which there is something to do. The process in the background tells the command its
//! failure in words for the user; the cause goes beside them as one letter, so that nobody has to understand the words.

use std::sync::Arc;

use buttress::Unsupported;
use buttress_device::DeviceError;
use buttress_volume::VolumeError;

use crate::daemon::MountError;
use crate::launch::LaunchError;
use crate::protocol::connect::{ConnectError, Refusal};

/// Why there is no mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// What the error's words say.
    Other,
    /// Somebody else has the image or disk.
    Busy,
    /// Only root may let others see a mount, as the system is set up.
    AllowOther,
    /// There is no btrfs filesystem.
    NotBtrfs,
    /// The primary superblock is bad, and its mirror is of an older commit.
    OldMirror,
    /// The filesystem has quotas, which writing would make wrong.
    Quotas,
}

/// The letter of each on the line from a child to the command.
const LETTERS: [(Cause, u8); 6] = [
    (Cause::Other, b'-'),
    (Cause::Busy, b'b'),
    (Cause::AllowOther, b'a'),
    (Cause::NotBtrfs, b'n'),
    (Cause::OldMirror, b'm'),
    (Cause::Quotas, b'q'),
];

impl Cause {
    /// Its letter.
    pub(crate) fn letter(self) -> u8 {
        LETTERS.iter().find(|(cause, _)| *cause == self).map_or(b'-', |(_, letter)| *letter)
    }

    /// The cause with this letter.
    pub(crate) fn of_letter(letter: u8) -> Cause {
        LETTERS.iter().find(|(_, it)| *it == letter).map_or(Cause::Other, |(cause, _)| *cause)
    }

    fn of_volume(error: &Arc<VolumeError>) -> Cause {
        match &**error {
            VolumeError::Device(DeviceError::Busy { .. }) => Cause::Busy,
            VolumeError::NotBtrfs { .. } => Cause::NotBtrfs,
            VolumeError::OldMirror { .. } => Cause::OldMirror,
            _ => Cause::Other,
        }
    }
}

impl MountError {
    /// The cause, where there is something to do about it.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Busy(_) => Cause::Busy,
            Self::Filesystem(buttress::Error::Volume(error)) => Cause::of_volume(error),
            Self::Filesystem(buttress::Error::Unsupported(Unsupported::Quotas)) => Cause::Quotas,
            Self::Connect(ConnectError::Helper { why: Refusal::AllowOther, .. }) => {
                Cause::AllowOther
            }
            Self::Launch(LaunchError::Child { cause, .. }) => *cause,
            _ => Cause::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_of_one_cause_each() {
        for (cause, letter) in LETTERS {
            assert_eq!(Cause::of_letter(cause.letter()), cause);
            assert_eq!(Cause::of_letter(letter).letter(), letter);
        }
        assert_eq!(Cause::of_letter(b'?'), Cause::Other);
    }
}
