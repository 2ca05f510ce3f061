//! `cloud-coordinator`: the process and its command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cloud_coordinator::cli::main()
}
