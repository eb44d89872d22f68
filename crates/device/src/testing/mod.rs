//! Test devices: one that records what reaches it and replays every state a power loss may leave
//! ([`RecordingDevice`], [`History`]), and one that fails on request ([`FaultyDevice`]).

mod faulty;
mod recording;

pub use faulty::{Effect, FaultyDevice, OperationFault, PANIC};
pub use recording::{Event, History, RecordingDevice};
