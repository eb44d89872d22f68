//! Our own checker, beside `btrfs check`: what the one calls clean, the other has to.

use std::path::Path;
use std::sync::Arc;

use buttress_check::{Options, Progress, Report};
use buttress_device::{Access, BlockDevice, FileDevice, OffsetDevice};
use buttress_volume::VolumeError;

use super::{OracleError, Result};

/// Our checker's report on the filesystem that begins `offset` bytes into an image; with `data`, all data is read too.
pub fn our_report(
    path: &Path,
    offset: u64,
    data: bool,
) -> std::result::Result<Report, VolumeError> {
    let mut device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, Access::ReadOnly)?);
    if offset != 0 {
        device = Arc::new(OffsetDevice::new(device, offset, None)?);
    }
    let options = Options { check_data_csum: data, ..Options::default() };
    buttress_check::check_devices(vec![device], &options, &Progress::default())
}

/// Ok only if our checker finds no error. What it does not support is passed over.
pub fn check_ours(path: &Path, data: bool) -> Result<()> {
    let report = match our_report(path, 0, data) {
        Ok(report) if report.is_clean() => return Ok(()),
        Err(
            VolumeError::Unsupported { .. }
            | VolumeError::SeveralDevices { .. }
            | VolumeError::Profile { .. },
        ) => return Ok(()),
        Ok(report) => {
            let lines: Vec<_> = report.issues.iter().map(ToString::to_string).collect();
            lines.join("\n")
        }
        Err(error) => error.to_string(),
    };
    Err(OracleError::OursUnclean { path: path.to_owned(), report })
}
