//! The images of the corpus, a few at a time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use buttress_testkit::corpus::{CorpusError, Image, build, specs};
use buttress_testkit::oracle::skip;

/// Images in work at a time: building them mostly waits for the kernel.
const THREADS: usize = 4;

/// Looks at every image that `wanted` takes (and `BUTTRESS_IMAGE`, if that is set: a part of the name). `look` answers what
/// is wrong; all that is wrong with any image fails the test. Answers how many images were looked at: without root, those that
/// root has made before.
pub fn each(
    wanted: impl Fn(&Image) -> bool + Sync,
    look: impl Fn(&Image) -> Vec<String> + Sync,
) -> usize {
    let part = std::env::var("BUTTRESS_IMAGE").unwrap_or_default();
    let names: Vec<_> = specs().into_iter().map(|spec| spec.name).collect();
    let names: Vec<_> = names.into_iter().filter(|name| name.contains(&part)).collect();
    let [next, seen, unmade] = [(); 3].map(|()| AtomicUsize::new(0));
    let faults = Mutex::new(Vec::new());
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let image = match build(name) {
                Ok(image) => image,
                Err(error @ CorpusError::Missed(_)) => {
                    skip(&error.to_string());
                    continue;
                }
                Err(CorpusError::NeedsRoot(_)) => {
                    unmade.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) => {
                    faults.lock().unwrap().push(format!("{name}: {error}"));
                    continue;
                }
            };
            if wanted(&image) {
                seen.fetch_add(1, Ordering::Relaxed);
                let found = guarded(name, || look(&image));
                faults.lock().unwrap().extend(found);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let mut faults = faults.into_inner().unwrap();
    faults.sort();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    match unmade.into_inner() {
        0 => assert!(!part.is_empty() || seen.load(Ordering::Relaxed) > 0),
        unmade => skip(&format!("{unmade} images are not there, and only root can make them")),
    }
    seen.into_inner()
}

/// What is wrong with the image `name`, a panic included, and how long it took to find out.
fn guarded(name: &str, look: impl FnOnce() -> Vec<String>) -> Vec<String> {
    let begin = Instant::now();
    let found = catch_unwind(AssertUnwindSafe(look));
    println!("{name}: {:?}", begin.elapsed());
    let found = found.unwrap_or_else(|panic| vec![format!("panic: {}", message(&*panic))]);
    found.into_iter().map(|line| format!("{name}: {line}")).collect()
}

/// What a panic says.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
