//! What stands around a proxy: the servers behind it and the file that it starts on.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use shard::{Distribution, Hash};

use super::table::{Row, Server, odd_rows, promised_rows};

/// Everything around a proxy: servers that run until the process ends, and the file.
pub struct Field {
    pub rows: Vec<Row>,
    tcp: Vec<Server>,
    pub unix: Vec<Server>,
    pub folder: tempfile::TempDir,
}

impl Field {
    pub fn new() -> Field {
        let folder = tempfile::tempdir().unwrap();
        let tcp = (0..25).map(start_tcp).collect();
        let unix = (100..104).map(|number| start_unix(number, folder.path())).collect();
        let mut field = Field { rows: Vec::new(), tcp, unix, folder };
        promised_rows(&mut field);
        odd_rows(&mut field, Distribution::Ketama);
        odd_rows(&mut field, Distribution::Modula);
        let servers = field.tcp_servers(&[1, 1, 90, 1, 1]);
        field.add("random".to_string(), Hash::Fnv64a, Distribution::Random, None, servers);
        let mut yml = String::new();
        field.rows.iter().for_each(|row| row.write_yml(&field.listen(), &mut yml));
        fs::write(field.yml(), yml).unwrap();
        field
    }

    pub fn yml(&self) -> PathBuf {
        self.folder.path().join("nutcracker.yml")
    }

    /// The folder that the file names for all sockets of the proxy.
    pub fn listen(&self) -> PathBuf {
        self.folder.path().join("listen")
    }

    pub fn add(
        &mut self,
        name: String,
        hash: Hash,
        distribution: Distribution,
        tag: Option<&'static str>,
        servers: Vec<Server>,
    ) {
        let socket = format!("{}.sock", self.rows.len());
        self.rows.push(Row { name, hash, distribution, tag, servers, socket });
    }

    pub fn tcp_servers(&self, weights: &[u32]) -> Vec<Server> {
        let pairs = self.tcp.iter().zip(weights);
        pairs.map(|(server, &weight)| Server { weight, ..server.clone() }).collect()
    }

    pub fn nobody(&self) -> Server {
        let path = self.folder.path().join("nobody");
        Server { dead: true, ..server(u16::MAX, path.display().to_string(), String::new()) }
    }
}

fn server(number: u16, address: String, default_name: String) -> Server {
    Server { number, address, default_name, weight: 1, name: None, dead: false }
}

fn start_tcp(number: u16) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for link in listener.incoming().map(Result::unwrap) {
            link.set_nodelay(true).unwrap();
            thread::spawn(move || serve(&link, &link, number));
        }
    });
    server(number, format!("127.0.0.1:{port}"), shard::default_node_name("127.0.0.1", port))
}

fn start_unix(number: u16, folder: &Path) -> Server {
    let path = folder.join(format!("server-{number}")).display().to_string();
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for link in listener.incoming().map(Result::unwrap) {
            thread::spawn(move || serve(&link, &link, number));
        }
    });
    let default_name = shard::default_node_name_unix(&path);
    server(number, path, default_name)
}

/// As much of memcached as gets need: every key is there and holds the server's number. Returns
/// when the proxy closes the link, in whatever way.
fn serve(input: impl Read, mut output: impl Write, number: u16) {
    let mut input = BufReader::with_capacity(65_536, input);
    let (mut line, mut replies) = (Vec::new(), Vec::new());
    let value = number.to_string();
    while matches!(input.read_until(b'\n', &mut line), Ok(len) if len > 0) {
        match line.trim_ascii_end().strip_prefix(b"get ") {
            Some(keys) => {
                for key in keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
                    replies.extend_from_slice(b"VALUE ");
                    replies.extend_from_slice(key);
                    write!(replies, " 0 {}\r\n{value}\r\n", value.len()).unwrap();
                }
                replies.extend_from_slice(b"END\r\n");
            }
            None if line.starts_with(b"version") => replies.extend_from_slice(b"VERSION 1.6\r\n"),
            None => replies.extend_from_slice(b"ERROR\r\n"),
        }
        line.clear();
        if !input.buffer().contains(&b'\n') {
            if output.write_all(&replies).is_err() {
                return;
            }
            replies.clear();
        }
    }
}
