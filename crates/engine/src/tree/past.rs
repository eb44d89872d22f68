//! Going over items past blocks that cannot be read, for who wants what is left.

use buttress_ondisk::Key;

use super::view::{Cursor, Met, View};
use crate::error::{Passed, Result};

/// Goes forward over the items of a view, on behind damage.
#[derive(Debug)]
pub struct Past<'a> {
    view: View<'a>,
    cursor: Cursor<'a>,
    /// The last key that was met, or where it began.
    at: Key,
    to: Key,
    ended: bool,
}

impl<'a> Past<'a> {
    /// The items from `from` to `to`, both included, in order.
    pub fn new(view: &View<'a>, from: Key, to: Key) -> Past<'a> {
        Past { view: *view, cursor: view.range(from, to), at: from, to, ended: false }
    }

    /// The next item, or `None` at the end, also of what can be reached. `told` hears of what cannot be read, and ends it with an error.
    pub fn meet(&mut self, told: &mut dyn FnMut(Passed) -> Result<()>) -> Result<Option<Met>> {
        while !self.ended {
            match self.cursor.meet() {
                Err(error) if error.is_damage() => {
                    told(Passed::Unreadable(error))?;
                    let next = self.view.behind_damage(&self.at)?;
                    match next.filter(|next| *next <= self.to) {
                        Some(next) => {
                            (self.at, self.cursor) = (next, self.view.range(next, self.to))
                        }
                        None => self.ended = true,
                    }
                }
                Ok(Some(met)) => {
                    self.at = met.key();
                    return Ok(Some(met));
                }
                Ok(None) => self.ended = true,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
