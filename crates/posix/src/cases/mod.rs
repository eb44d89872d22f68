//! The cases, one file per area.
//!
//! A name is `area/what-is-shown`. Many cases are rows of tables: a row prepares with lines that
//! must succeed and then makes one call that must end in a given way.

mod dirs;
mod link;
mod mode;
mod open;
mod paths;
mod perms;
mod rename;
mod size;
mod sticky;
mod times;
mod unlink;

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
    times::register(r);
    size::register(r);
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
