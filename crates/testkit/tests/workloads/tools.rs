//! Small helpers of the workloads.

use buttress::{Change, Filesystem, New, Node};

/// Numbers that look random and are the same in every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }
}

/// Bytes that tell where they are from.
pub fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut numbers = Numbers::new(u64::from(seed) + 77);
    let mut made = Vec::with_capacity(len + 8);
    while made.len() < len {
        made.extend_from_slice(&numbers.next().to_le_bytes());
    }
    made.truncate(len);
    made
}

/// Makes a file with this content, as far as there is room; its number of bytes, or nothing when not even the file fits.
pub fn put(fs: &Filesystem, path: &str, content: &[u8]) -> Option<usize> {
    let (dir, name) = fs.resolve_parent(path).unwrap();
    put_at(fs, dir, &name, content)
}

/// The same in a directory given by number.
pub fn put_at(fs: &Filesystem, dir: Node, name: &[u8], content: &[u8]) -> Option<usize> {
    let node = match fs.create(dir, name, &New::file(0o644)) {
        Ok(made) => made.node,
        Err(buttress::Error::NoSpace) => return None,
        Err(error) => panic!("{error}"),
    };
    match fs.write(node, 0, content) {
        Ok(len) => Some(len),
        Err(buttress::Error::NoSpace) => Some(0),
        Err(error) => panic!("{error}"),
    }
}

/// Makes a directory.
pub fn mkdir(fs: &Filesystem, dir: Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &New::directory(0o755)).unwrap().node
}

/// Makes an empty file.
pub fn touch(fs: &Filesystem, dir: Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &New::file(0o644)).unwrap().node
}

/// Changes the size of a file.
pub fn truncate(fs: &Filesystem, node: Node, size: u64) {
    fs.set_attributes(node, &Change { size: Some(size), ..Change::default() }).unwrap();
}

/// The whole content of a file.
pub fn content(fs: &Filesystem, node: Node) -> Vec<u8> {
    let mut content = vec![0; fs.attributes(node).unwrap().size as usize];
    let mut at = 0;
    while at < content.len() {
        let count = fs.read(node, at as u64, &mut content[at..]).unwrap();
        assert!(count > 0);
        at += count;
    }
    content
}

/// Writes all of `data`.
pub fn write(fs: &Filesystem, node: Node, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(node, offset, data).unwrap(), data.len());
}

/// How many names a directory has.
pub fn count(fs: &Filesystem, dir: Node) -> usize {
    let mut count = 0;
    fs.read_dir(dir, 0, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    count
}

/// Deletes everything in a directory, the subvolumes, too.
pub fn empty(fs: &Filesystem, dir: Node) {
    let mut entries = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        entries.push(entry);
        true
    })
    .unwrap();
    for entry in entries {
        if entry.kind != buttress::FileKind::Directory {
            fs.unlink(dir, &entry.name).unwrap();
            continue;
        }
        if !entry.node.is_stub() {
            empty(fs, entry.node);
        }
        fs.rmdir(dir, &entry.name).unwrap();
    }
}
