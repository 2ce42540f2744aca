//! quickack: a cache proxy. The program: its verbs, its configuration, its processes.

mod address_space;
mod admin;
mod cache_server;
mod cli;
mod config;
mod error;
mod event;
mod http_server;
mod ipc;
mod log;
mod log_writer;
mod master;
mod resolver;
mod scoreboard;
mod stats;
mod version;
mod worker;

fn main() -> std::process::ExitCode {
    sys::heap::give_memory_back();
    cli::main()
}
