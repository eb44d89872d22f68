//! The arithmetic of RAID5 and RAID6 full stripes.
//!
//! A *full stripe* is one stripe of the same length from each device: data stripes D0, D1, ... in
//! logical order, then P, then (RAID6) Q. P is the exclusive or of the data. Q is the sum of
//! g^i * Di in the field of 256 elements with polynomial 0x11d and g = 2. One missing stripe comes
//! back from P; any two from P and Q together. Which device holds which stripe is the chunk map's
//! affair; here stripes stand in the order above.

use std::mem::take;

use thiserror::Error;

/// The field has 255 powers of g, so Q tells at most that many data stripes apart.
pub const DATA_STRIPES_MAX: usize = 255;

/// What a byte that overflows on doubling is reduced by: 0x11d without its top bit.
const REDUCTION: u8 = 0x1d;

/// `EXP[n]` is g^n; the exponents count modulo 255.
static EXP: [u8; 255] = build_exp();
/// `LOG[EXP[n]]` is n; `LOG[0]` has no meaning.
static LOG: [u8; 256] = build_log();

const fn build_exp() -> [u8; 255] {
    let mut exp = [1u8; 255];
    let mut n = 1;
    while n < exp.len() {
        let before = exp[n - 1];
        exp[n] = (before << 1) ^ (REDUCTION * (before >> 7));
        n += 1;
    }
    exp
}

const fn build_log() -> [u8; 256] {
    let exp = build_exp();
    let mut log = [0u8; 256];
    let mut n = 0;
    while n < exp.len() {
        log[exp[n] as usize] = n as u8;
        n += 1;
    }
    log
}

/// Why stripes cannot be computed or recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaidError {
    /// Stripes of one full stripe differ in length.
    #[error("stripe {index} has {have} bytes, expect {expect}")]
    StripeLength {
        /// Which stripe.
        index: usize,
        /// Its length, bytes.
        have: usize,
        /// Length of the first stripe, bytes.
        expect: usize,
    },
    /// No data stripe, or more than the field can tell apart.
    #[error("{have} data stripes, expect 1 to {DATA_STRIPES_MAX}")]
    DataStripes {
        /// How many there are.
        have: usize,
    },
    /// More stripes are missing than parity can replace.
    #[error("{have} stripes are missing, parity replaces {max}")]
    Missing {
        /// How many are missing.
        have: usize,
        /// How many there may be.
        max: usize,
    },
    /// A missing stripe's number is beyond the last stripe.
    #[error("stripe {index} is missing of only {stripes}")]
    Index {
        /// The number.
        index: usize,
        /// How many stripes there are.
        stripes: usize,
    },
}

/// Doubles the eight field elements in `word`.
#[inline]
fn double(word: u64) -> u64 {
    let overflow = (word >> 7) & 0x0101_0101_0101_0101;
    ((word << 1) & 0xfefe_fefe_fefe_fefe) ^ (overflow * u64::from(REDUCTION))
}

/// `q = g * q + data`, one step of Horner's scheme.
fn double_and_add(q: &mut [u8], data: &[u8]) {
    let (words, rest) = q.as_chunks_mut::<8>();
    let (data_words, data_rest) = data.as_chunks::<8>();
    for (word, add) in words.iter_mut().zip(data_words) {
        *word = (double(u64::from_le_bytes(*word)) ^ u64::from_le_bytes(*add)).to_le_bytes();
    }
    for (byte, add) in rest.iter_mut().zip(data_rest) {
        *byte = double(u64::from(*byte)) as u8 ^ add;
    }
}

/// The products of every element with g^`exponent`.
fn products(exponent: usize) -> [u8; 256] {
    let mut table = [0; 256];
    for (value, product) in table.iter_mut().enumerate().skip(1) {
        *product = EXP[(usize::from(LOG[value]) + exponent) % 255];
        debug_assert_ne!(*product, 0, "the field has no zero divisors, {value}");
    }
    table
}

fn check_lengths<'a>(stripes: impl IntoIterator<Item = &'a [u8]>) -> Result<usize, RaidError> {
    let mut expect = None;
    for (index, stripe) in stripes.into_iter().enumerate() {
        let expect = *expect.get_or_insert(stripe.len());
        if stripe.len() != expect {
            return Err(RaidError::StripeLength { index, have: stripe.len(), expect });
        }
    }
    Ok(expect.unwrap_or(0))
}

fn check_data_count(have: usize) -> Result<(), RaidError> {
    if (1..=DATA_STRIPES_MAX).contains(&have) {
        Ok(())
    } else {
        Err(RaidError::DataStripes { have })
    }
}

/// Adds `from` to `to`, byte by byte (exclusive or), as far as both reach.
pub fn xor_into(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= from;
    }
}

/// Computes RAID5's (and RAID6's) P from the data stripes.
pub fn parity(data: &[&[u8]], p: &mut [u8]) -> Result<(), RaidError> {
    check_data_count(data.len())?;
    check_lengths(data.iter().copied().chain([&*p]))?;
    p.fill(0);
    data.iter().for_each(|stripe| xor_into(p, stripe));
    Ok(())
}

/// Computes RAID6's P and Q from the data stripes.
pub fn syndrome(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) -> Result<(), RaidError> {
    check_lengths(data.iter().copied().chain([&*p, &*q]))?;
    parity(data, p)?;
    q.fill(0);
    data.iter().rev().for_each(|stripe| double_and_add(q, stripe));
    Ok(())
}

/// Recovers the stripe `missing` of a RAID5 full stripe (`stripes`: the data, then P) from all the
/// others. What the missing stripe's buffer holds beforehand does not matter.
pub fn recover_raid5(stripes: &mut [&mut [u8]], missing: usize) -> Result<(), RaidError> {
    check_data_count(stripes.len().saturating_sub(1))?;
    check_lengths(stripes.iter().map(|stripe| &**stripe))?;
    check_index(missing, stripes.len())?;
    let target = take(&mut stripes[missing]);
    target.fill(0);
    // The target's own place is empty for now and adds nothing.
    stripes.iter().for_each(|stripe| xor_into(target, stripe));
    stripes[missing] = target;
    Ok(())
}

fn check_index(index: usize, stripes: usize) -> Result<(), RaidError> {
    if index < stripes { Ok(()) } else { Err(RaidError::Index { index, stripes }) }
}

/// Recovers up to two stripes of a RAID6 full stripe (`stripes`: the data, then P, then Q) from
/// all the others. `missing` lists their numbers in any order; what their buffers hold beforehand
/// does not matter.
pub fn recover_raid6(stripes: &mut [&mut [u8]], missing: &[usize]) -> Result<(), RaidError> {
    check_data_count(stripes.len().saturating_sub(2))?;
    check_lengths(stripes.iter().map(|stripe| &**stripe))?;
    missing.iter().try_for_each(|&index| check_index(index, stripes.len()))?;
    let mut missing = missing.to_vec();
    missing.sort_unstable();
    missing.dedup();
    let p = stripes.len() - 2;
    match *missing {
        [] => {}
        [x] if x < p => recover_by_p(stripes, x),
        [x, y] if y < p => recover_two_data(stripes, x, y),
        [x, y] if x < p && y == p => {
            recover_by_q(stripes, x);
            recompute(stripes);
        }
        [x, _] if x < p => {
            recover_by_p(stripes, x);
            recompute(stripes);
        }
        [_] | [_, _] => recompute(stripes),
        _ => return Err(RaidError::Missing { have: missing.len(), max: 2 }),
    }
    Ok(())
}

/// Sets P and Q, the last two stripes, from the data stripes.
fn recompute(stripes: &mut [&mut [u8]]) {
    let [data @ .., p, q] = stripes else { return };
    p.fill(0);
    q.fill(0);
    for stripe in data.iter().rev() {
        xor_into(p, stripe);
        double_and_add(q, stripe);
    }
}

/// Sets data stripe `x` from P and the other data stripes.
fn recover_by_p(stripes: &mut [&mut [u8]], x: usize) {
    let target = take(&mut stripes[x]);
    target.fill(0);
    let without_q = stripes.len() - 1;
    stripes[..without_q].iter().for_each(|stripe| xor_into(target, stripe));
    stripes[x] = target;
}

/// What P and Q would differ by, had the (zeroed) missing data stripes been there.
fn differences(stripes: &[&mut [u8]]) -> (Vec<u8>, Vec<u8>) {
    let [data @ .., p, q] = stripes else { return Default::default() };
    let (mut p_difference, mut q_difference) = (p.to_vec(), vec![0; q.len()]);
    for stripe in data.iter().rev() {
        xor_into(&mut p_difference, stripe);
        double_and_add(&mut q_difference, stripe);
    }
    xor_into(&mut q_difference, q);
    (p_difference, q_difference)
}

/// Sets data stripe `x` from Q and the other data stripes: the difference of Q is g^x * Dx.
fn recover_by_q(stripes: &mut [&mut [u8]], x: usize) {
    stripes[x].fill(0);
    let (_, difference) = differences(stripes);
    let divide = products(255 - x);
    for (byte, term) in stripes[x].iter_mut().zip(difference) {
        *byte = divide[usize::from(term)];
    }
}

/// Sets data stripes `x` < `y` from P and Q. The differences are dp = Dx + Dy and
/// dq = g^x * Dx + g^y * Dy; hence Dx = (g^(y-x) * dp + g^-x * dq) / (g^(y-x) + 1).
fn recover_two_data(stripes: &mut [&mut [u8]], x: usize, y: usize) {
    stripes[x].fill(0);
    stripes[y].fill(0);
    let (p_difference, q_difference) = differences(stripes);
    let divisor = 255 - usize::from(LOG[usize::from(EXP[y - x] ^ 1)]);
    let of_p = products(y - x + divisor);
    let of_q = products(255 - x + divisor);
    for (byte, (dp, dq)) in stripes[x].iter_mut().zip(p_difference.iter().zip(&q_difference)) {
        *byte = of_p[usize::from(*dp)] ^ of_q[usize::from(*dq)];
    }
    let found = take(&mut stripes[x]);
    stripes[y].copy_from_slice(&p_difference);
    xor_into(stripes[y], found);
    stripes[x] = found;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplication by its definition: shift, add, reduce.
    fn times(mut a: u8, mut b: u8) -> u8 {
        let mut sum = 0;
        while b != 0 {
            if b & 1 == 1 {
                sum ^= a;
            }
            a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
            b >>= 1;
        }
        sum
    }

    fn power(exponent: usize) -> u8 {
        (0..exponent).fold(1, |value, _| times(value, 2))
    }

    #[test]
    fn tables_match_the_definition() {
        for exponent in 0..600 {
            let table = products(exponent);
            for value in 0..=255u8 {
                assert_eq!(table[usize::from(value)], times(value, power(exponent)));
            }
        }
    }

    #[test]
    fn misuse_is_an_error() {
        let (mut a, mut b, mut c) = ([0u8; 4], [0u8; 4], [0u8; 3]);
        assert_eq!(parity(&[], &mut a), Err(RaidError::DataStripes { have: 0 }));
        assert!(matches!(
            syndrome(&[&a], &mut b, &mut c),
            Err(RaidError::StripeLength { index: 2, have: 3, expect: 4 })
        ));
        let mut d = [0u8; 4];
        let stripes = &mut [&mut a[..], &mut b[..], &mut d[..]];
        assert_eq!(recover_raid5(stripes, 3), Err(RaidError::Index { index: 3, stripes: 3 }));
        assert_eq!(recover_raid6(stripes, &[0, 1, 2]), Err(RaidError::Missing { have: 3, max: 2 }));
        assert_eq!(recover_raid6(stripes, &[0, 0]), Ok(()));
    }

    #[test]
    fn the_widest_array_recovers_its_outermost_stripes() {
        let mut full: Vec<Vec<u8>> = (0..257usize).map(|n| vec![n as u8 ^ 0x5a; 9]).collect();
        let mut stripes: Vec<&mut [u8]> = full.iter_mut().map(Vec::as_mut_slice).collect();
        recompute(&mut stripes);
        let expect: Vec<Vec<u8>> = stripes.iter().map(|stripe| stripe.to_vec()).collect();
        for missing in [[0, 254], [253, 254], [254, 255], [254, 256], [255, 256]] {
            missing.iter().for_each(|&index| stripes[index].fill(0x77));
            recover_raid6(&mut stripes, &missing).unwrap();
            assert!(stripes.iter().zip(&expect).all(|(have, expect)| **have == **expect));
        }
    }

    /// Data stripes of equal, possibly odd, length.
    fn data() -> impl Strategy<Value = Vec<Vec<u8>>> {
        (1..9usize, 0..50usize).prop_flat_map(|(stripes, len)| {
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), len), stripes)
        })
    }

    proptest! {
        #[test]
        fn p_and_q_follow_their_definition(data in data()) {
            let stripes: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![1; data[0].len()], vec![2; data[0].len()]);
            syndrome(&stripes, &mut p, &mut q).unwrap();
            for at in 0..p.len() {
                let column = data.iter().map(|stripe| stripe[at]);
                prop_assert_eq!(p[at], column.clone().fold(0, |sum, byte| sum ^ byte));
                let weighted = column.enumerate().map(|(n, byte)| times(byte, power(n)));
                prop_assert_eq!(q[at], weighted.fold(0, |sum, byte| sum ^ byte));
            }
        }

        #[test]
        fn any_two_of_raid6_come_back(data in data(), x: prop::sample::Index, y: prop::sample::Index) {
            let mut full = data;
            let len = full[0].len();
            full.extend([vec![0; len], vec![0; len]]);
            let mut stripes: Vec<&mut [u8]> = full.iter_mut().map(Vec::as_mut_slice).collect();
            recompute(&mut stripes);
            let expect: Vec<Vec<u8>> = stripes.iter().map(|stripe| stripe.to_vec()).collect();
            let missing = [x.index(expect.len()), y.index(expect.len())];
            missing.iter().for_each(|&index| stripes[index].fill(0xee));
            recover_raid6(&mut stripes, &missing).unwrap();
            prop_assert_eq!(&full, &expect);
        }

        #[test]
        fn any_one_of_raid5_comes_back(data in data(), missing: prop::sample::Index) {
            let mut full = data;
            let mut p = vec![0; full[0].len()];
            parity(&full.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut p).unwrap();
            full.push(p);
            let expect = full.clone();
            let mut stripes: Vec<&mut [u8]> = full.iter_mut().map(Vec::as_mut_slice).collect();
            let missing = missing.index(stripes.len());
            stripes[missing].fill(0xee);
            recover_raid5(&mut stripes, missing).unwrap();
            prop_assert_eq!(&full, &expect);
        }
    }
}
