//! What was recorded, spoiled in each way in which a log may be wrong: the rules find all of it.

use std::sync::Arc;

use buttress::Node;

use super::{Rules, Span, Synced, all, check, entries};
use crate::crash::record::{Recording, record};
use crate::crash::workloads::{Script, fsyncs};
use crate::model::{Body, Model, Target};

/// Fsyncs of a recording, each with what may be found after it.
fn spans(recording: &Recording) -> impl Iterator<Item = (Span<'_>, Node)> {
    let fsyncs = recording.ops.iter().enumerate();
    let fsyncs = fsyncs.filter_map(|(at, done)| Some((at + 1, done.synced?)));
    fsyncs.filter_map(|(number, node)| {
        // From some commit before it to the fsync itself.
        let first = number.saturating_sub(9);
        let moments = recording.models.get(first..=number)?;
        moments.last()?.inode(node)?;
        let synced = vec![Synced { moment: number - first, node }];
        Some((Span { moments, synced, rules: Rules::ours(true) }, node))
    })
}

#[derive(Default)]
struct Seen {
    tried: [u32; 7],
    missed: Vec<String>,
}

impl Seen {
    fn must_fail(&mut self, kind: usize, span: &Span<'_>, found: &Model, what: &str) {
        self.tried[kind] += 1;
        if check(span, found).is_ok() {
            self.missed.push(format!("{what}: {:?}", span.synced));
        }
    }
}

/// Takes a name away, and the file with its last one.
fn removed(model: &Model, dir: Node, name: &[u8]) -> Model {
    let mut model = model.clone();
    model.remove(dir, name);
    model
}

fn spoil(seen: &mut Seen, span: &Span<'_>, node: Node) {
    let Some((last, before)) = span.moments.split_last() else { return };
    assert_eq!(check(span, last), Ok(()), "what is there at the fsync is what may be found");
    for (name, _) in all(last).flat_map(|(dir, inode)| entries(dir, inode)) {
        let (dir, name) = name;
        let is_covered = dir == node
            || last.lookup(dir, name) == Some(Target::Inode(node.ino))
                && dir.subvolume == node.subvolume;
        let is_old = before.iter().all(|model| model.lookup(dir, name) == last.lookup(dir, name));
        let is_directory = last.lookup(dir, name).is_some_and(|to| {
            last.inode(Model::node_of(dir.subvolume, to)).is_none_or(|it| it.directory().is_some())
        });
        if (is_covered || is_old) && !is_directory {
            seen.must_fail(0, span, &removed(last, dir, name), "a name that is not there");
        }
    }
    for (dir, model) in
        before.iter().flat_map(|it| all(it).map(|(dir, _)| dir).zip(std::iter::repeat(it)))
    {
        let Some(inode) = model.inode(dir).filter(|it| it.directory().is_some()) else { continue };
        for ((_, name), to) in entries(dir, inode) {
            let is_gone = last.inode(dir).is_some() && last.lookup(dir, name).is_none();
            if is_gone
                && (dir == node || to == node)
                && model.inode(to).is_some_and(|it| it.directory().is_none())
            {
                let mut found = last.clone();
                if found.inode(to).is_none()
                    && let (Some(volume), Some(old)) =
                        (found.volumes.get_mut(&to.subvolume), model.inode(to))
                {
                    let mut old = old.clone();
                    old.nlink = 0;
                    volume.inodes.insert(to.ino, Arc::new(old));
                }
                found.link(to, dir, name);
                seen.must_fail(1, span, &found, "a name that was gone");
            }
        }
    }
    let Some(now) = last.inode(node) else { return };
    for old in before.iter().filter_map(|model| model.inode(node)) {
        let mut found = last.clone();
        let Some(inode) = found.inode_mut(node) else { continue };
        let (body, xattrs) = (old.body.clone(), old.xattrs.clone());
        if matches!((&old.body, &now.body), (Body::File(old), Body::File(now)) if old != now) {
            inode.body = body;
            seen.must_fail(2, span, &found, "older content");
        } else if xattrs != now.xattrs {
            inode.xattrs = xattrs;
            seen.must_fail(3, span, &found, "older xattrs");
        } else if (old.mode, old.uid, old.gid) != (now.mode, now.uid, now.gid) {
            (inode.mode, inode.uid, inode.gid) = (old.mode, old.uid, old.gid);
            seen.must_fail(4, span, &found, "older attributes");
        }
    }
    for (other, inode) in all(last) {
        if let Body::File(content) = &inode.body {
            let mut content = content.clone();
            let mut byte = [0];
            content.read(0, &mut byte);
            content.write(0, &[!byte[0]]);
            let mut found = last.clone();
            if let Some(inode) = found.inode_mut(other) {
                inode.body = Body::File(content);
            }
            seen.must_fail(5, span, &found, "content that never was");
        }
    }
    let mut found = last.clone();
    if let Some(inode) = found.inode(node).cloned().filter(|inode| inode.content().is_some()) {
        found.create(Node::ROOT, Some(b"stranger"), 1 << 40, inode);
        seen.must_fail(6, span, &found, "a name that never was");
    }
}

#[test]
fn what_a_log_has_wrong_is_found() {
    let mut seen = Seen::default();
    for workload in fsyncs() {
        if matches!(workload.script, Script::Words(_)) {
            let recording = record(&workload).expect("recorded");
            spans(&recording).step_by(3).for_each(|(span, node)| spoil(&mut seen, &span, node));
        }
    }
    println!("{:?}", seen.tried);
    let missed = &seen.missed[..seen.missed.len().min(20)];
    assert!(missed.is_empty(), "{} missed: {missed:#?}", seen.missed.len());
    assert!(seen.tried.iter().all(|tried| *tried > 20), "{:?}", seen.tried);
}

/// The least that a log may hold: what the commit holds, and the file as it was made durable.
#[test]
fn a_commit_with_one_file_of_a_log_may_be_found() {
    let mut tried = 0;
    for workload in fsyncs() {
        if !matches!(workload.script, Script::Words(_)) {
            continue;
        }
        let recording = record(&workload).expect("recorded");
        for (span, node) in spans(&recording) {
            let (Some(first), Some(last)) = (span.moments.first(), span.moments.last()) else {
                continue;
            };
            let names = |model: &Model| -> Vec<_> {
                let all = all(model).flat_map(|(dir, inode)| entries(dir, inode));
                all.map(|((dir, name), to)| (dir, name.to_vec(), to)).collect()
            };
            let is_same = names(first) == names(last);
            let (Some(now), true) = (last.inode(node), is_same) else { continue };
            let mut found = first.clone();
            if let Some(inode) = found.inode_mut(node) {
                *inode = now.clone();
            }
            assert_eq!(check(&span, &found), Ok(()), "{}", workload.name);
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
}
