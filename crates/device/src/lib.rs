//! Block devices: files, disks, memory, windows, overlays, and a recording, faulting one for tests.
