//! The LZO1X byte code of one segment.
//!
//! A stream alternates *literal runs* (bytes to take over) and *matches* (length, distance back).
//! An instruction's first byte tells its kind:
//!
//! | first byte | what it does |
//! |---|---|
//! | 64..=255 | match of 3 to 8 bytes, up to 2 KiB back; one more distance byte |
//! | 32..=63 | match of any length, up to 16 KiB back; two more distance bytes |
//! | 16..=31 | match of any length, 16 to 48 KiB back; a distance of exactly 16 KiB ends the stream |
//! | 0..=15 | after a match without literals a literal run, otherwise a match of 2 or 3 bytes |
//!
//! The last two bits of a match carry up to three literals that follow it. Lengths that do not fit
//! go on in bytes, a zero standing for 255 more. A first byte above 17 is a literal run of its own
//! kind.
//!
//! The encoder is greedy and looks at one earlier place per position, which is what makes LZO the
//! fast choice of the three compressions.
//!
//! Why it is our own: of the libraries in Rust, `lzo1x` is under the GPL, which this workspace cannot take. `lzokay` is under the
//! MIT license, but takes twelve times as long to write and four times as long to read; the tests compare with it.

/// The end of every stream: a match of three bytes at the distance that means "end".
const END: [u8; 3] = [0x11, 0, 0];
/// Longest distance of the short form of a match, bytes.
const NEAR_DISTANCE_MAX: usize = 0x800;
/// Longest match of the short form, bytes.
const NEAR_LEN_MAX: usize = 8;
/// Longest distance of the middle form, and as far back as the encoder looks, bytes.
const MIDDLE_DISTANCE_MAX: usize = 0x4000;
/// Longest match of the middle form whose length fits the first byte, bytes.
const MIDDLE_LEN_MAX: usize = 33;
/// Longest literal run that the stream's first byte can tell, bytes.
const FIRST_RUN_MAX: usize = 238;
/// Longest literal run whose length fits its first byte, bytes.
const RUN_LEN_MAX: usize = 18;

const HASH_BITS: u32 = 12;

/// Bytes that copies of up to this length may write, where there is room: two words instead of a
/// call.
const SHORT_COPY: usize = 16;

/// The encoder's memory: for each hash of four bytes, where they were seen last in the segment.
pub struct Places([u16; 1 << HASH_BITS]);

impl Places {
    /// An empty memory.
    pub const fn new() -> Self {
        Self([0; 1 << HASH_BITS])
    }
}

/// Most bytes that a segment of `plain_len` bytes encodes to.
pub const fn encoded_len_max(plain_len: usize) -> usize {
    plain_len + plain_len / 16 + 64 + END.len()
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Appends the code of `plain` to `out`. `plain` has at most 64 KiB, so that places fit 16 bits;
/// matches beyond that are merely not found.
pub fn encode(plain: &[u8], places: &mut Places, out: &mut Vec<u8>) {
    places.0.fill(0);
    let start = out.len();
    let (mut run_from, mut at) = (0, 1);
    while let Some(word) = word_at(plain, at) {
        let place = &mut places.0[hash(word)];
        let earlier = usize::from(*place);
        *place = at as u16;
        let distance = at.saturating_sub(earlier);
        let near = (1..=MIDDLE_DISTANCE_MAX).contains(&distance);
        if near && word_at(plain, earlier) == Some(word) {
            let len = 4 + common_len(plain, earlier + 4, at + 4);
            put_run(out, start, &plain[run_from..at]);
            put_match(out, len, distance);
            at += len;
            run_from = at;
        } else {
            // The longer nothing matches, the wider the steps.
            at += 1 + ((at - run_from) >> 5);
        }
    }
    put_run(out, start, &plain[run_from..]);
    out.extend_from_slice(&END);
}

/// How many bytes from `earlier` on equal those from `later` on.
fn common_len(bytes: &[u8], earlier: usize, later: usize) -> usize {
    let (Some(before), Some(after)) = (bytes.get(earlier..), bytes.get(later..)) else { return 0 };
    let (before_words, _) = before.as_chunks::<8>();
    let (after_words, _) = after.as_chunks::<8>();
    for (index, (a, b)) in before_words.iter().zip(after_words).enumerate() {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return index * 8 + (difference.trailing_zeros() / 8) as usize;
        }
    }
    let whole = after_words.len() * 8;
    let rest = before[whole..].iter().zip(&after[whole..]);
    whole + rest.take_while(|(a, b)| a == b).count()
}

/// Appends the part of a length, at least 1, that did not fit the first byte.
fn put_rest_of_length(out: &mut Vec<u8>, rest: usize) {
    let zeros = (rest - 1) / 255;
    out.resize(out.len() + zeros, 0);
    out.push((rest - zeros * 255) as u8);
}

/// Appends a literal run to the stream that began at `start` of `out`.
fn put_run(out: &mut Vec<u8>, start: usize, run: &[u8]) {
    match run.len() {
        0 => return,
        len @ ..=FIRST_RUN_MAX if out.len() == start => out.push(17 + len as u8),
        len @ ..=3 => {
            // Every match ends in two bytes, the first of which has room for this.
            let carrier = out.len() - 2;
            out[carrier] |= len as u8;
        }
        len @ ..=RUN_LEN_MAX => out.push((len - 3) as u8),
        len => {
            out.push(0);
            put_rest_of_length(out, len - RUN_LEN_MAX);
        }
    }
    out.extend_from_slice(run);
}

/// Appends a match of at least four bytes, at most [`MIDDLE_DISTANCE_MAX`] back.
fn put_match(out: &mut Vec<u8>, len: usize, distance: usize) {
    let back = distance - 1;
    if len <= NEAR_LEN_MAX && distance <= NEAR_DISTANCE_MAX {
        let first = ((len - 1) << 5) | ((back & 7) << 2);
        out.extend_from_slice(&[first as u8, (back >> 3) as u8]);
        return;
    }
    if len <= MIDDLE_LEN_MAX {
        out.push(0x20 | (len - 2) as u8);
    } else {
        out.push(0x20);
        put_rest_of_length(out, len - MIDDLE_LEN_MAX);
    }
    out.extend_from_slice(&[(back << 2) as u8, (back >> 6) as u8]);
}

struct Decoder<'a> {
    input: &'a [u8],
    read: usize,
    output: &'a mut [u8],
    written: usize,
}

/// What the previous instruction left for the meaning of first bytes below 16.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// A match without literals, or nothing yet.
    Match,
    /// A match with one to three literals.
    FewLiterals,
    /// A literal run.
    Run,
}

/// Decodes the whole of `input` to the start of `output` and returns the length in bytes. `None`
/// when the code is damaged, does not end with `input`, or does not fit `output`; what is behind
/// the returned length is unspecified.
pub fn decode(input: &[u8], output: &mut [u8]) -> Option<usize> {
    let mut decoder = Decoder { input, read: 0, output, written: 0 };
    let mut after = After::Match;
    if let Some(len) = input.first()?.checked_sub(17).filter(|len| *len > 0) {
        decoder.read = 1;
        decoder.take_run(usize::from(len))?;
        after = if len < 4 { After::FewLiterals } else { After::Run };
    }
    // Every round reads at least one byte.
    loop {
        let first = usize::from(decoder.byte()?);
        if first < 16 && after == After::Match {
            let len = decoder.length(first, 15)? + 3;
            decoder.take_run(len)?;
            after = After::Run;
            continue;
        }
        let Some((len, distance, literals)) = decoder.read_match(first, after)? else { break };
        decoder.take_match(len, distance)?;
        decoder.take_run(literals)?;
        after = if literals == 0 { After::Match } else { After::FewLiterals };
    }
    (decoder.read == input.len()).then_some(decoder.written)
}

impl Decoder<'_> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.input.get(self.read)?;
        self.read += 1;
        Some(byte)
    }

    /// A length whose first part is `short`, or, if that is 0, `most` and what following bytes
    /// add.
    #[inline]
    fn length(&mut self, short: usize, most: usize) -> Option<usize> {
        if short != 0 {
            return Some(short);
        }
        let mut len = most;
        loop {
            match self.byte()? {
                // Bounded by 255 times the input.
                0 => len += 255,
                last => return Some(len + usize::from(last)),
            }
        }
    }

    /// The two bytes at the end of the longer matches: distance and number of literals.
    #[inline]
    fn tail(&mut self) -> Option<(usize, usize)> {
        let word = usize::from(self.byte()?) | usize::from(self.byte()?) << 8;
        Some((word >> 2, word & 3))
    }

    /// Length, distance and number of literals of the match that starts with `first`; `None`
    /// inside for the end of the stream.
    #[inline]
    fn read_match(&mut self, first: usize, after: After) -> Option<Option<(usize, usize, usize)>> {
        Some(match first {
            64.. => {
                let distance = (usize::from(self.byte()?) << 3) + ((first >> 2) & 7) + 1;
                Some(((first >> 5) + 1, distance, first & 3))
            }
            32.. => {
                let len = self.length(first & 31, 31)? + 2;
                let (back, literals) = self.tail()?;
                Some((len, back + 1, literals))
            }
            16.. => {
                let len = self.length(first & 7, 7)? + 2;
                let (back, literals) = self.tail()?;
                let back = ((first & 8) << 11) + back;
                match back {
                    0 if len == 3 => None,
                    0 => return None,
                    _ => Some((len, back + MIDDLE_DISTANCE_MAX, literals)),
                }
            }
            _ => {
                let back = (first >> 2) + (usize::from(self.byte()?) << 2) + 1;
                let far = after == After::Run;
                let (len, base) = if far { (3, NEAR_DISTANCE_MAX) } else { (2, 0) };
                Some((len, base + back, first & 3))
            }
        })
    }

    #[inline]
    fn take_run(&mut self, len: usize) -> Option<()> {
        let from = self.input.get(self.read..)?;
        let to = self.output.get_mut(self.written..)?;
        if len > from.len() || len > to.len() {
            return None;
        }
        match (from.first_chunk::<SHORT_COPY>(), to.first_chunk_mut::<SHORT_COPY>()) {
            (Some(from), Some(to)) if len <= SHORT_COPY => *to = *from,
            _ => to[..len].copy_from_slice(&from[..len]),
        }
        self.read += len;
        self.written += len;
        Some(())
    }

    /// Repeats `len` bytes from `distance` back; the two ranges may overlap.
    #[inline]
    fn take_match(&mut self, len: usize, distance: usize) -> Option<()> {
        let from = self.written.checked_sub(distance)?;
        let room = self.output.len() - self.written;
        if len > room {
            return None;
        }
        if len <= SHORT_COPY && distance >= SHORT_COPY && room >= SHORT_COPY {
            let (before, to) = self.output.split_at_mut(self.written);
            *to.first_chunk_mut::<SHORT_COPY>()? = *before[from..].first_chunk::<SHORT_COPY>()?;
        } else {
            // What has been copied prolongs the source: each round may take more.
            let mut done = 0;
            while done < len {
                let part = (distance + done).min(len - done);
                self.output.copy_within(from..from + part, self.written + done);
                done += part;
            }
        }
        self.written += len;
        Some(())
    }
}
