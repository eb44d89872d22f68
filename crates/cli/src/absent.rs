//! Subcommands of btrfs-progs that are not here, and what does their work: who looks for one should not be sent to another that has a similar name.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to do instead of `command`, if it is one of these.
fn instead(command: &str) -> Option<&'static str> {
    Some(match command {
        "send" | "receive" => "mount the filesystem with Linux and use `btrfs` there",
        "scrub" => {
            "`buttress check --check-data-csum` reads everything and says what is damaged; of two copies the good one \
             replaces the bad one where a file is read on a mount that writes, and in a `buttress balance start`"
        }
        "restore" => {
            "`buttress cp -a IMAGE:/ DIRECTORY` copies files out without a mount, with `--rescue` where roots or logs are damaged"
        }
        "device" | "replace" => "one device is supported; Linux adds, removes and replaces more",
        "defragment" => {
            "mount the filesystem with Linux and use `btrfs filesystem defragment` there"
        }
        _ => return None,
    })
}

/// The error with that, if a subcommand that is not here was called.
pub fn explained(error: clap::Error) -> clap::Error {
    let called = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(called)) => called.clone(),
        _ => return error,
    };
    match instead(&called) {
        Some(instead) => {
            let text = format!("`{called}` is not there yet: {instead}\n");
            clap::Error::raw(ErrorKind::InvalidSubcommand, text)
        }
        None => error,
    }
}
