//! Which extended attributes btrfs has a place for. What Linux has none for it would list and not read.

use super::acl;
use crate::error::{Errno, Error, Result};

/// What names begin with, but for those of ACLs.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];

/// Refuses names of xattrs: EOPNOTSUPP outside the namespaces of btrfs, EINVAL for a namespace without a name.
pub fn check_namespace(name: &[u8]) -> std::result::Result<(), Errno> {
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    match NAMESPACES.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        Some(b"") => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}

/// The same, and EINVAL for a value that is no ACL where it is to be one.
pub(super) fn check(name: &[u8], value: &[u8]) -> Result<()> {
    check_namespace(name).map_err(Error::User)?;
    if name == acl::ACCESS || name == acl::DEFAULT { acl::check(value) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_btrfs() {
        for good in ["user.a", "security.capability", "btrfs.compression"] {
            assert_eq!(check_namespace(good.as_bytes()), Ok(()));
        }
        assert_eq!(check_namespace(acl::DEFAULT), Ok(()));
        assert_eq!(check_namespace(b"user."), Err(Errno::INVAL));
        for bad in ["other.a", "name", "system.other"] {
            assert_eq!(check_namespace(bad.as_bytes()), Err(Errno::OPNOTSUPP));
        }
    }
}
