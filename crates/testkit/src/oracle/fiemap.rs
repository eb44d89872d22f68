//! What the kernel's FIEMAP answers. The call is made by perl: it needs no unsafe code here.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{OracleError, Result, at};

/// One record: logical, physical, length, flags.
pub type Record = [u64; 4];

/// What to ask: a file, and the start and the length of the range.
pub type Question = (PathBuf, u64, u64);

/// `FS_IOC_FIEMAP` with `FIEMAP_FLAG_SYNC`, 200 records at a time until the last one or none; one line per file, records apart by
/// commas. A file that the kernel refuses has its errno after an exclamation mark.
const SCRIPT: &str = r#"
    $/ = "\0";
    while (my $line = <STDIN>) {
        chomp $line;
        my ($start, $length, $path) = split / /, $line, 3;
        my ($end, @found) = ($length == 18446744073709551615 ? $length : $start + $length);
        open(my $file, '<', $path) or die "$path: $!";
        while ($start < $end) {
            my $room = pack('QQLLLL', $start, $end - $start, 1, 0, 200, 0) . ("\0" x (56 * 200));
            if (!ioctl($file, 0xc020660b, $room)) { push @found, '!' . ($! + 0); last; }
            my $count = (unpack('QQLLLL', $room))[3];
            last if !$count;
            my $flags = 0;
            for my $number (0 .. $count - 1) {
                my ($logical, $physical, $bytes, $a, $b, $bits) = unpack('QQQQQL', substr($room, 32 + 56 * $number, 56));
                push @found, "$logical $physical $bytes $bits";
                ($start, $flags) = ($logical + $bytes, $bits);
            }
            last if $flags & 1;
        }
        print join(',', @found), "\n";
    }
"#;

/// The kernel's records for each question, in order; the errno where it has none.
pub fn fiemap(questions: &[Question]) -> Result<Vec<std::result::Result<Vec<Record>, i32>>> {
    let spawn = |source| OracleError::Spawn { program: "perl".into(), source };
    let mut perl = Command::new("perl")
        .args(["-e", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(spawn)?;
    let mut input = Vec::new();
    for (path, start, length) in questions {
        input.extend(format!("{start} {length} ").into_bytes());
        input.extend(path.as_os_str().as_bytes());
        input.push(0);
    }
    let writer = perl.stdin.take().map(|mut pipe| {
        std::thread::spawn(move || {
            // Who does not read to the end says why with its exit status.
            let _ = pipe.write_all(&input);
        })
    });
    let output = perl.wait_with_output().map_err(spawn)?;
    drop(writer.map(std::thread::JoinHandle::join));
    if !output.status.success() {
        let (command, status) = ("perl (FIEMAP)".to_owned(), output.status.to_string());
        return Err(OracleError::Failed { command, status, output: super::both(&output) });
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers: Option<Vec<_>> = text.lines().map(answer).collect();
    let bad = std::io::Error::other("FIEMAP answers that make no sense");
    let place = questions.first().map_or(PathBuf::new(), |(path, ..)| path.clone());
    at("read", &place, answers.filter(|all| all.len() == questions.len()).ok_or(bad))
}

fn answer(line: &str) -> Option<std::result::Result<Vec<Record>, i32>> {
    let mut records = Vec::new();
    for text in line.split(',').filter(|text| !text.is_empty()) {
        if let Some(errno) = text.strip_prefix('!') {
            return Some(Err(errno.parse().ok()?));
        }
        let numbers: Option<Vec<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        records.push(numbers?.try_into().ok()?);
    }
    Some(Ok(records))
}
