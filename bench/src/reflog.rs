//! Row 3: one delayed reference: its size, and the time to append it and to sort and fold its share.

use buttress::refs::{Record, RefLog, Target};

use crate::{Row, Scale, median, seconds};

/// Bytes and nanoseconds of a record.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(3, "one delayed reference".to_owned());
    row.add("a record by itself", size_of::<Record>() as f64, "bytes");
    for records in [50_000, 1_000_000] {
        let (bytes, append, all) = measure(scale, records);
        row.add(&format!("a record in a log of {records}"), bytes, "bytes");
        row.add(&format!("append, of {records}"), append, "ns");
        row.add(&format!("append, sort and fold, of {records}"), all, "ns");
    }
    row.note("random addresses, the worst order for a sort".to_owned());
    row
}

/// Bytes of one of `records` records; nanoseconds to append it, and with its share of sorting and folding.
fn measure(scale: Scale, records: u64) -> (f64, f64, f64) {
    let (mut bytes, mut appends, mut alls) = (0, Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        let mut log = RefLog::default();
        let mut at = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(round as u64);
        let append = seconds(|| {
            for number in 0..records {
                at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let bytenr = (at >> 30) << 12;
                let target = Target::Data { bytenr, sectors: 1, ino: 257 + number, offset: 0 };
                log.by_tree(target, 5, 1, Record::NEW);
            }
        });
        bytes = log.bytes();
        let mut last = 0;
        let fold = seconds(|| {
            let folded = log.fold(|part| {
                // Whoever merges them reads each.
                last = part.iter().fold(last, |last, one| last.max(one.bytenr));
                Ok::<(), ()>(())
            });
            assert!(folded.is_ok_and(|folded| folded > 0));
        });
        assert!(last > 0);
        appends.push(append / records as f64 * 1e9);
        alls.push((append + fold) / records as f64 * 1e9);
    }
    (bytes as f64 / records as f64, median(appends), median(alls))
}
