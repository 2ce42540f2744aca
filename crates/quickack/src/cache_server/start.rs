//! Starts the cache process from its command line: its listener and its limits.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use super::{Options, run};
use crate::address_space;
use crate::config::{self, Address};
use crate::error::Error;
use crate::event::{self, Listener};
use crate::log::{self, Level};

/// Serves on `listen`, or else on the socket that the launcher passed, until TERM or INT.
/// `value_max` is the largest value that the proxy accepts.
pub fn start(listen: Option<&Address>, memory_max: usize, value_max: usize) -> ExitCode {
    match listen {
        Some(_) => sys::process::set_title("quickack: cache"),
        None => sys::process::keep_title(),
    }
    let options = options(memory_max, value_max);
    if listen.is_some()
        && address_space::is_short(memory_max as u64)
        && let Some(advice) = address_space::advice(memory_max as u64)
    {
        let memory = config::size_word(memory_max as u64);
        let text = format!("cache: {memory} of memory may not be available: {advice}");
        log::line(Level::Warning, &text);
    }
    let served = listener(listen).and_then(|listener| Ok(run(vec![listener], options)?));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(Level::Error, &format!("cache: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn options(memory_max: usize, value_max: usize) -> Options {
    let descriptors = sys::process::descriptors_max();
    let own = event::refused_max(descriptors) + DESCRIPTORS_OWN;
    Options {
        memory_max,
        item_size_max: value_max + ITEM_HEAD,
        clients_max: descriptors.saturating_sub(own),
        pid: std::process::id(),
    }
}

fn listener(listen: Option<&Address>) -> Result<Listener, Error> {
    let (fd, tcp) = match listen {
        None => (sys::process::take_passed()?, false),
        Some(address) => (bind(address)?, matches!(address, Address::Tcp { .. })),
    };
    Ok(Listener {
        id: 0,
        fd: Some(fd),
        pool: 0,
        tcp,
        nodelay: true,
        keepalive: tcp,
        shared: false,
        proxy_protocol: Vec::new(),
        no_room: b"SERVER_ERROR too many open connections\r\n".to_vec(),
    })
}

fn bind(address: &Address) -> Result<OwnedFd, Error> {
    let (fd, bound) = match address {
        Address::Unix { path, mode } => {
            (sys::listen::unix(path, *mode, BACKLOG)?, path.display().to_string())
        }
        Address::Tcp { .. } => {
            let resolved = address.resolve()?.into_iter().next();
            let resolved = resolved.ok_or_else(|| Error::Config("no address".into()))?;
            let fd = sys::listen::tcp(resolved, BACKLOG, false)?;
            let bound = sys::listen::local_address(&fd)?.to_string();
            (fd, bound)
        }
    };
    log::line(Level::Notice, &format!("cache: listening on {bound}"));
    Ok(fd)
}

/// The proxy accepts values up to `item_size_max`; each must fit here with its key and head.
const ITEM_HEAD: usize = 1024;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Descriptors besides clients, also those that are refused: the loop, signals, the listener, the
/// log, a reserve.
const DESCRIPTORS_OWN: usize = 16;
