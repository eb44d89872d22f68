//! How the blocks of a tree lie on the disk, seen from who reads it from its first key to its last: where the next child is not just behind
//! the one before, that is a seek; children behind each other are a cluster, which counts when something
//! else follows it in its node.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::units::Units;

/// Seeks from which on they are shown by their lengths.
const SHOWN_FROM: u64 = 20;

/// What is known of the layout.
#[derive(Debug)]
pub struct Layout {
    nodesize: u64,
    lowest: u64,
    highest: u64,
    forward: u64,
    backward: u64,
    seek_bytes: u64,
    /// How many seeks have each length.
    lengths: BTreeMap<u64, u64>,
    clusters: u64,
    cluster_bytes: u64,
    cluster_min: Option<u64>,
    cluster_max: u64,
    /// Of each node on the way here: the block that was met last, and the bytes of the cluster that it ends.
    open: Vec<(u64, u64)>,
}

impl Layout {
    /// Of a tree whose root is at this address.
    pub fn new(root: u64, nodesize: u64) -> Layout {
        Layout {
            nodesize,
            lowest: root,
            highest: root,
            forward: 0,
            backward: 0,
            seek_bytes: 0,
            lengths: BTreeMap::new(),
            clusters: 0,
            cluster_bytes: 0,
            cluster_min: None,
            cluster_max: nodesize,
            open: Vec::new(),
        }
    }

    /// Begins with the children of a node.
    pub fn enter(&mut self, node: u64) {
        self.open.push((node, self.nodesize));
    }

    /// Its next child.
    pub fn child(&mut self, child: u64) {
        self.lowest = self.lowest.min(child);
        self.highest = self.highest.max(child);
        let Some((last, cluster)) = self.open.last_mut() else { return };
        let next = last.saturating_add(self.nodesize);
        if next == child {
            *cluster += self.nodesize;
        } else {
            let length = next.abs_diff(child);
            let direction = if *last < child { &mut self.forward } else { &mut self.backward };
            *direction += 1;
            self.seek_bytes = self.seek_bytes.saturating_add(length);
            *self.lengths.entry(length).or_default() += 1;
            if *cluster != self.nodesize {
                self.clusters += 1;
                self.cluster_bytes = self.cluster_bytes.saturating_add(*cluster);
                self.cluster_min = Some(self.cluster_min.unwrap_or(u64::MAX).min(*cluster));
                self.cluster_max = self.cluster_max.max(*cluster);
            }
            *cluster = self.nodesize;
        }
        *last = child;
    }

    /// Ends with a node.
    pub fn leave(&mut self) {
        self.open.pop();
    }

    fn seeks(&self) -> u64 {
        self.forward + self.backward
    }

    fn average_seek(&self) -> u64 {
        self.seek_bytes.checked_div(self.seeks()).unwrap_or(0)
    }

    fn average_cluster(&self) -> u64 {
        self.cluster_bytes.checked_div(self.clusters).unwrap_or(0)
    }

    /// Prints it.
    pub fn write(&self, units: Units, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\tTotal seeks: {}", self.seeks())?;
        writeln!(out, "\t\tForward seeks: {}", self.forward)?;
        writeln!(out, "\t\tBackward seeks: {}", self.backward)?;
        writeln!(out, "\t\tAvg seek len: {}", units.show(self.average_seek()))?;
        self.write_lengths(out)?;
        writeln!(out, "\tTotal clusters: {}", self.clusters.max(1))?;
        writeln!(out, "\t\tAvg cluster size: {}", units.show(self.average_cluster()))?;
        writeln!(out, "\t\tMin cluster size: {}", units.show(self.cluster_min.unwrap_or(0)))?;
        writeln!(out, "\t\tMax cluster size: {}", units.show(self.cluster_max))?;
        let spread = self.highest.saturating_sub(self.lowest);
        writeln!(out, "\tTotal disk spread: {}", units.show(spread))
    }

    fn write_lengths(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.seeks() < SHOWN_FROM {
            return Ok(());
        }
        let tick = self.seeks() / SHOWN_FROM;
        let width = self.lengths.keys().next_back().map_or(1, |longest| longest.to_string().len());
        writeln!(out, "\tSeek histogram")?;
        for (first, last, count) in groups(&self.lengths, tick) {
            let bar = match count / tick {
                0 => "|".to_owned(),
                ticks => "#".repeat(usize::try_from(ticks).unwrap_or(0)),
            };
            writeln!(out, "\t\t{first:>width$} - {last:>width$}: {count:>width$} {bar}")?;
        }
        Ok(())
    }

    /// The same for programs, with every length of a seek.
    pub fn json(&self) -> Value {
        let lengths: Vec<_> =
            self.lengths.iter().map(|(length, count)| json!([length, count])).collect();
        json!({
            "seeks": self.seeks(),
            "forward_seeks": self.forward,
            "backward_seeks": self.backward,
            "average_seek": self.average_seek(),
            "seek_lengths": lengths,
            "clusters": self.clusters.max(1),
            "average_cluster": self.average_cluster(),
            "min_cluster": self.cluster_min.unwrap_or(0),
            "max_cluster": self.cluster_max,
            "spread": self.highest.saturating_sub(self.lowest),
        })
    }
}

/// Lengths of seeks in groups of three ticks at least, as btrfs-progs makes them: first and last length, and how many. A length that is
/// common enough alone is a group; of those that follow a group of several, the first is left out, which is how it has always been.
fn groups(lengths: &BTreeMap<u64, u64>, tick: u64) -> Vec<(u64, u64, u64)> {
    let full = tick.saturating_mul(3);
    let (mut groups, mut open) = (Vec::new(), None::<(u64, u64, u64)>);
    for (&length, &count) in lengths {
        open = match open {
            open if count >= full => {
                groups.extend(open);
                groups.push((length, length, count));
                None
            }
            None => Some((length, length, count)),
            Some(group) if group.2 >= full => {
                groups.push(group);
                None
            }
            Some((first, _, before)) => Some((first, length, before + count)),
        };
    }
    groups.extend(open);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_as_btrfs_progs_makes_them() {
        let lengths = [(1, 83), (2, 15), (3, 5), (4, 16), (5, 9), (6, 1), (7, 1)];
        let expected = [(1, 1, 83), (2, 4, 36), (6, 7, 2)];
        assert_eq!(groups(&lengths.into(), 11), expected);
        assert_eq!(
            groups(&[(8, 2), (12, 3), (16, 1)].into(), 1),
            [(8, 8, 2), (12, 12, 3), (16, 16, 1)]
        );
        assert_eq!(groups(&BTreeMap::new(), 1), []);
    }

    #[test]
    fn children_behind_each_other_are_a_cluster() {
        let mut layout = Layout::new(100, 10);
        layout.enter(100);
        [200, 210, 220, 150].into_iter().for_each(|child| layout.child(child));
        layout.leave();
        assert_eq!((layout.forward, layout.backward), (1, 1));
        assert_eq!((layout.clusters, layout.cluster_min, layout.cluster_max), (1, Some(30), 30));
        assert_eq!((layout.lowest, layout.highest), (100, 220));
        assert_eq!(layout.lengths, [(80, 1), (90, 1)].into());
    }
}
