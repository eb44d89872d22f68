//! Layouts by name: where each member of a structure stands. For tools that show or change members one by one without
//! naming them in code, such as the tests that spoil every member of every structure.

use zerocopy::little_endian::{U16, U32, U64};

/// A member of a structure on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Bytes that it takes.
    pub len: usize,
    /// Bytes of each number in it: those of an array's elements, or its own.
    pub unit: usize,
    /// What it is made of, when it is a structure itself.
    pub inner: &'static [Field],
}

/// What has a layout: numbers, arrays of them, and structures.
pub trait Layout {
    /// Bytes of each number in it.
    const UNIT: usize = 1;
    /// Its members; none in what is no structure.
    const FIELDS: &'static [Field] = &[];
}

impl Layout for u8 {}
impl Layout for U16 {
    const UNIT: usize = 2;
}
impl Layout for U32 {
    const UNIT: usize = 4;
}
impl Layout for U64 {
    const UNIT: usize = 8;
}
impl<T: Layout, const N: usize> Layout for [T; N] {
    const UNIT: usize = T::UNIT;
}

/// A structure of the disk: little endian, unaligned, of a size that is asserted.
macro_rules! disk {
    ($(#[$doc:meta])* $name:ident, $size:expr, { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> $name { zerocopy::FromZeros::new_zeroed() }
        }
        impl $name {
            /// The structure at the start of `data`; `None` when `data` is too short.
            pub fn of(data: &[u8]) -> Option<&$name> { $crate::item::split(data).map(|(it, _)| it) }
        }
        impl $crate::layout::Layout for $name {
            const FIELDS: &'static [$crate::layout::Field] = &[$($crate::layout::Field {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                len: size_of::<$ty>(),
                unit: <$ty as $crate::layout::Layout>::UNIT,
                inner: <$ty as $crate::layout::Layout>::FIELDS,
            }),*];
        }
    };
}
pub(crate) use disk;

#[cfg(test)]
mod tests {
    use super::{Field, Layout};
    use crate::item::{DirItem, InodeItem, RootItem};
    use crate::{BlockHead, Superblock};

    /// Members follow each other without a gap, and so do those of structures in them.
    fn assert_whole(fields: &[Field], len: usize) {
        let mut at = 0;
        for field in fields {
            assert_eq!(field.offset, at, "{field:?}");
            assert!(field.len.is_multiple_of(field.unit), "{field:?}");
            if !field.inner.is_empty() {
                assert_whole(field.inner, field.len);
            }
            at += field.len;
        }
        assert_eq!(at, len);
    }

    #[test]
    fn members_fill_their_structures() {
        assert_whole(InodeItem::FIELDS, 160);
        assert_whole(RootItem::FIELDS, 439);
        assert_whole(DirItem::FIELDS, 30);
        assert_whole(BlockHead::FIELDS, 101);
        assert_whole(Superblock::FIELDS, 4096);
        let sequence = InodeItem::FIELDS.iter().find(|field| field.name == "sequence");
        assert_eq!(sequence.map(|field| (field.offset, field.unit)), Some((72, 8)));
    }
}
