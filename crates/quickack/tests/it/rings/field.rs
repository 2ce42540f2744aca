//! The surroundings of a proxy: the servers behind it and the file that it starts with.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use shard::{Distribution, Hash};
use testkit::process::listen;

use super::speech::Speech;
use super::table::{Row, Server, odd_rows, promised_rows, some_rows};

/// Servers that run until the process ends, and the configuration file.
pub struct Field {
    pub speech: Speech,
    pub rows: Vec<Row>,
    tcp: Vec<Server>,
    pub unix: Vec<Server>,
    pub folder: tempfile::TempDir,
}

impl Field {
    /// Makes every promised row, and the odd ones.
    pub fn of_memcached() -> Field {
        let mut field = Field::of(Speech::Memcached);
        promised_rows(&mut field);
        odd_rows(&mut field, Distribution::Ketama);
        odd_rows(&mut field, Distribution::Modula);
        let servers = field.tcp_servers(&[1, 1, 90, 1, 1]);
        field.add("random".to_string(), Hash::Fnv64a, Distribution::Random, None, servers);
        field.write()
    }

    /// Makes each hash and distribution once, and the odd rows. The rings are built in the same
    /// way, so only the route to them is tested.
    pub fn of_redis() -> Field {
        let mut field = Field::of(Speech::Redis);
        some_rows(&mut field);
        odd_rows(&mut field, Distribution::Ketama);
        odd_rows(&mut field, Distribution::Modula);
        field.write()
    }

    fn of(speech: Speech) -> Field {
        let folder = tempfile::tempdir().unwrap();
        let tcp = (0..25).map(|number| start_tcp(speech, number)).collect();
        let unix = (100..104).map(|number| start_unix(speech, number, folder.path())).collect();
        Field { speech, rows: Vec::new(), tcp, unix, folder }
    }

    fn write(self) -> Field {
        let mut yml = String::new();
        self.rows.iter().for_each(|row| row.write_yml(self.speech, &self.listen(), &mut yml));
        fs::write(self.yml(), yml).unwrap();
        self
    }

    pub fn yml(&self) -> PathBuf {
        self.folder.path().join("nutcracker.yml")
    }

    /// Returns the folder that the file names for all sockets of the proxy.
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

fn start_tcp(speech: Speech, number: u16) -> Server {
    let address = listen(move |link| {
        link.set_nodelay(true).unwrap();
        speech.serve(&link, &link, number);
    });
    let default_name = shard::default_node_name("127.0.0.1", address.port());
    server(number, address.to_string(), default_name)
}

fn start_unix(speech: Speech, number: u16, folder: &Path) -> Server {
    let path = folder.join(format!("server-{number}")).display().to_string();
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for link in listener.incoming().map(Result::unwrap) {
            thread::spawn(move || speech.serve(&link, &link, number));
        }
    });
    let default_name = shard::default_node_name_unix(&path);
    server(number, path, default_name)
}
