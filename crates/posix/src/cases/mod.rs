//! The cases, one file per area.
//!
//! A name is `area/what-is-shown`. Many cases are rows of tables: a row prepares with lines that
//! must succeed and then makes one call that must end in a given way.

mod acl;
mod alloc;
mod data;
mod dirs;
mod inherit;
mod link;
mod mapped;
mod mode;
mod open;
mod paths;
mod perms;
mod readdir;
mod rename;
mod size;
mod special;
mod sticky;
mod times;
mod tmpfile;
mod unlink;
mod xattr;

use rustix::io::Errno;

use crate::case::Registry;

/// Registers every case.
pub fn register(r: &mut Registry) {
    paths::register(r);
    open::register(r);
    dirs::register(r);
    unlink::register(r);
    link::register(r);
    rename::register(r);
    mode::register(r);
    perms::register(r);
    sticky::register(r);
    inherit::register(r);
    times::register(r);
    size::register(r);
    data::register(r);
    alloc::register(r);
    mapped::register(r);
    xattr::register(r);
    acl::register(r);
    special::register(r);
    readdir::register(r);
    tmpfile::register(r);
}

/// A row whose last call must fail: name, lines that prepare (`''` for none), the call, its error.
type Refusal = (&'static str, &'static str, &'static str, Errno);

/// Registers rows of refusals under `area`.
fn refusals(r: &mut Registry, area: &str, rows: &'static [Refusal]) {
    for &(name, prepare, call, errno) in rows {
        r.case(format!("{area}/{name}"), move |t| {
            if !prepare.is_empty() {
                t.ok(prepare)?;
            }
            t.err(call, errno)
        });
    }
}
