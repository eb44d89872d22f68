//! Joins the stages: one thread lists, several read, the caller writes, in the order of the list.
//!
//! What is read and not yet written is bounded by the number of batches under way. Whoever stops first (a source that
//! cannot be read, a destination that is full) drops its end of a channel, and the others follow. Where the system has fewer
//! threads to give, fewer read; where it has none, the caller does everything.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use super::read::{Batch, read_listing};
use super::walk::{Listing, walk};
use crate::MkfsError;

/// Batches that may be listed, read or waiting to be written at a time.
const UNDER_WAY: usize = 48;

type Job = (u64, Result<Listing, MkfsError>);
type Done = (u64, Result<Batch, MkfsError>);

/// Reads everything below `top` on `threads` threads (0: on the caller's) and hands it to `consume` in order.
pub(crate) fn stream(
    top: &Path,
    threads: usize,
    mut consume: impl FnMut(&mut Batch) -> Result<(), MkfsError>,
) -> Result<(), MkfsError> {
    // Buffers that were used go back to the readers: fresh memory is slow, and freed by others slower still.
    let spare = Mutex::new(Vec::new());
    // A token is put in before a batch is listed and taken out when it is written.
    let (put, take) = sync_channel::<()>(UNDER_WAY);
    let (to_read, jobs) = channel::<Job>();
    let (to_write, done) = channel::<Done>();
    let jobs = Mutex::new(jobs);
    std::thread::scope(|scope| {
        let (jobs, spare) = (&jobs, &spare);
        let reader = |_: &usize| {
            let to_write = to_write.clone();
            started(scope, move || read(jobs, spare, to_write))
        };
        let readers = (0..threads).take_while(reader).count();
        drop(to_write);
        // Readers without a lister see that nothing comes, and end.
        if readers == 0 || !started(scope, move || list(top, &put, &to_read)) {
            return alone(top, consume);
        }
        in_order(&done, |batch| {
            let result = batch.and_then(|mut batch| {
                consume(&mut batch)?;
                batch.content.clear();
                if let Ok(mut spare) = spare.lock() {
                    spare.push(batch.content);
                }
                Ok(())
            });
            // The lister has put in a token for this batch.
            let _: Result<(), _> = take.recv();
            result
        })
        // Leaving the closure drops `take` and `done`: blocked threads see that and end.
        .inspect_err(|_| drop((take, done)))
    })
}

/// Whether there was a thread to be had for this.
fn started<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) -> bool {
    Builder::new().spawn_scoped(scope, work).is_ok()
}

/// The same without threads.
fn alone(
    top: &Path,
    mut consume: impl FnMut(&mut Batch) -> Result<(), MkfsError>,
) -> Result<(), MkfsError> {
    let (mut result, mut buffer) = (Ok(()), Vec::new());
    walk(top, &mut |listing| {
        let done = listing.and_then(|listing| {
            let mut batch = read_listing(listing, std::mem::take(&mut buffer))?;
            consume(&mut batch)?;
            batch.content.clear();
            buffer = batch.content;
            Ok(())
        });
        result = done;
        result.is_ok()
    });
    result
}

fn list(top: &Path, put: &SyncSender<()>, to_read: &Sender<Job>) {
    let mut number = 0;
    walk(top, &mut |listing| {
        let sent = put.send(()).is_ok() && to_read.send((number, listing)).is_ok();
        number += 1;
        sent
    });
}

fn read(jobs: &Mutex<Receiver<Job>>, spare: &Mutex<Vec<Vec<u8>>>, to_write: Sender<Done>) {
    loop {
        let job = match jobs.lock() {
            Ok(jobs) => jobs.recv(),
            Err(_) => return,
        };
        let Ok((number, listing)) = job else { return };
        let buffer = spare.lock().ok().and_then(|mut spare| spare.pop()).unwrap_or_default();
        let batch = listing.and_then(|listing| read_listing(listing, buffer));
        if to_write.send((number, batch)).is_err() {
            return;
        }
    }
}

/// Hands over what arrives in the order of its numbers, which start at 0.
fn in_order(
    done: &Receiver<Done>,
    mut consume: impl FnMut(Result<Batch, MkfsError>) -> Result<(), MkfsError>,
) -> Result<(), MkfsError> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for (number, batch) in done {
        early.insert(number, batch);
        while let Some(batch) = early.remove(&next) {
            consume(batch)?;
            next += 1;
        }
    }
    Ok(())
}
