//! The causes of a failed mount for which there is something to do. The process in the background tells the command its
//! failure in words for the user; the cause goes beside them as one letter, so that nobody has to understand the words.

use buttress::Unsupported;
use buttress_device::DeviceError;
use buttress_volume::VolumeError;

use crate::daemon::MountError;
use crate::launch::LaunchError;
use crate::protocol::connect::{ConnectError, Refusal};

/// The causes, and the letter of each on the line from a child to the command: one table, so that none is left out.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $letter:literal,)*) => {
        /// Why there is no mount.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            #[cfg(test)]
            const ALL: &[Cause] = &[$(Cause::$cause,)*];

            /// Its letter.
            pub(crate) fn letter(self) -> u8 {
                match self {
                    $(Cause::$cause => $letter,)*
                }
            }

            /// The cause with this letter.
            pub(crate) fn of_letter(letter: u8) -> Cause {
                match letter {
                    $($letter => Cause::$cause,)*
                    _ => Cause::Other,
                }
            }
        }
    };
}

causes! {
    /// What the error's words say.
    Other = b'-',
    /// Somebody else has the image or disk.
    Busy = b'b',
    /// Only root may let others see a mount, as the system is set up.
    AllowOther = b'a',
    /// There is no btrfs filesystem.
    NotBtrfs = b'n',
    /// No copy of the superblock is good.
    Superblocks = b's',
    /// The end of the device is missing, and only reading works.
    CutOff = b'c',
    /// What it takes to open the filesystem lies behind the end of the device.
    PastEnd = b'p',
    /// The filesystem is on several devices.
    SeveralDevices = b'v',
    /// The primary superblock is bad, and its mirror is of an older commit.
    OldMirror = b'm',
    /// The filesystem has quotas that are not known here, and writing would make them wrong.
    Quotas = b'q',
    /// Trees that it takes to open the filesystem are damaged.
    Damage = b'd',
}

impl Cause {
    /// The cause of what a volume says.
    pub fn of_volume(error: &VolumeError) -> Cause {
        match error {
            VolumeError::Device(DeviceError::Busy { .. }) => Cause::Busy,
            VolumeError::NotBtrfs { .. } => Cause::NotBtrfs,
            VolumeError::OldMirror { .. } => Cause::OldMirror,
            VolumeError::Superblock { .. } => Cause::Superblocks,
            VolumeError::CutOff { .. } => Cause::CutOff,
            VolumeError::SeveralDevices { .. } => Cause::SeveralDevices,
            error if error.is_past_end() => Cause::PastEnd,
            error if error.is_damage() => Cause::Damage,
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
            Self::Filesystem(error) if error.is_damage() => Cause::Damage,
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
        for cause in Cause::ALL {
            assert_eq!(Cause::of_letter(cause.letter()), *cause);
        }
        assert_eq!(Cause::of_letter(b'?'), Cause::Other);
    }
}
