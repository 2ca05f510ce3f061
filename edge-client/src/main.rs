//! The binary of the vehicle; everything is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use edge_client::cli::{Cli, execute};
use wayside_host::exit::{Exit, Format, fail};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Two threads keep link and heartbeats going; extraction and training have their own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(execute(cli)),
        Err(error) => fail(Format::Text, Exit::Failed, format_args!("runtime: {error}")),
    }
}
