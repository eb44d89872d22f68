//! What Linux says: a read-only mount of the image, everything in it read, and what its log says meanwhile. Where only ours
//! complains, this tells whether Linux refuses what we complain about, too.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::oracle::{KernelMount, OracleError};

/// Images of one base have one uuid: Linux takes two of them for one filesystem.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Entries that are looked at: damaged directories may contain themselves.
const ENTRIES_MAX: usize = 6000;

/// What Linux complains about first; `None` when it shows everything without a word.
pub fn complaint(image: &Path) -> Option<String> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|it| it.into_inner());
    let mut mount = match KernelMount::read_only(image, "") {
        Ok(mount) => mount,
        Err(error) => return Some(format!("it is not mounted: {}", brief(&error))),
    };
    let fault = read_all(mount.path());
    let said = mount.log().complaints().unwrap_or_default();
    said.into_iter().next().or(fault)
}

fn brief(error: &OracleError) -> String {
    error.to_string().lines().last().unwrap_or_default().to_string()
}

/// Reads every file, link and directory below `top`; the first error.
fn read_all(top: &Path) -> Option<String> {
    let mut waiting: Vec<PathBuf> = vec![top.to_owned()];
    let (mut seen, mut fault) = (0, None);
    while let Some(path) = waiting.pop() {
        seen += 1;
        if seen > ENTRIES_MAX {
            break;
        }
        if let Err(error) = read_one(&path, &mut waiting) {
            fault.get_or_insert(format!("{}: {error}", path.display()));
        }
    }
    fault
}

fn read_one(path: &Path, waiting: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    let mut names = [0; 4096];
    rustix::fs::llistxattr(path, &mut names)?;
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            waiting.push(entry?.path());
        }
    } else if kind.is_symlink() {
        fs::read_link(path)?;
    } else if kind.is_file() {
        let mut buf = vec![0; 1 << 16];
        let mut file = File::open(path)?;
        let mut left = 64 << 20;
        while left > 0 {
            match file.read(&mut buf)? {
                0 => break,
                count => left -= count.min(left),
            }
        }
    }
    Ok(())
}
