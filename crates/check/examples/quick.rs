use buttress_check::*;
use buttress_device::*;
use std::sync::Arc;
fn main() {
    for path in std::env::args().skip(1) {
        let device: Arc<dyn BlockDevice> =
            Arc::new(FileDevice::open(&path, Access::ReadOnly).unwrap());
        let opened = match buttress_volume::Volume::open(vec![device], Access::ReadOnly) {
            Ok(it) => it,
            Err(e) => {
                println!("{path}: OPEN {e}");
                continue;
            }
        };
        let began = std::time::Instant::now();
        let options =
            Options { check_data_csum: std::env::var_os("DATA").is_some(), ..Options::default() };
        let report = check(&opened.volume, &options, &Progress::default());
        println!(
            "{path}: clean {} in {:?} {:?}",
            report.is_clean(),
            began.elapsed(),
            report.totals
        );
        for (kind, n) in &report.counts {
            println!("   {} x {n}", kind.id());
        }
        for issue in report.issues.iter().take(12) {
            println!("   {issue}");
        }
    }
}
