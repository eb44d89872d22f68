//! Test devices: one that records what reaches it and replays every state a power loss may leave
//! ([`RecordingDevice`], [`History`]), one that fails on request ([`FaultyDevice`]), and one whose reads wait on request
//! ([`HoldingDevice`]).

mod faulty;
mod holding;
mod recording;

pub use faulty::{Effect, FaultyDevice, OperationFault, PANIC};
pub use holding::HoldingDevice;
pub use recording::{Event, History, RecordingDevice};
