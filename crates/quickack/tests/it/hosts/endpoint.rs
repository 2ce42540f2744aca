//! The configuration endpoint of a cluster, as a model: it answers `config get cluster` as the test
//! says. No memcached has that command.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

/// What is answered.
#[derive(Clone, Debug)]
pub enum Cluster {
    /// A version, and `host|ip|port` words.
    Nodes(u64, Vec<String>),
    /// These bytes, and then the connection is closed.
    Bytes(Vec<u8>),
    /// Nothing, and the connection stays open.
    Silence,
}

pub struct Endpoint {
    pub address: SocketAddr,
    shared: Arc<Mutex<(Cluster, u64)>>,
}

impl Endpoint {
    pub fn start(cluster: Cluster) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new((cluster, 0)));
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let served = Arc::clone(&served);
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream);
                    let mut line = String::new();
                    if lines.read_line(&mut line).is_err() || line != "config get cluster\r\n" {
                        return;
                    }
                    let cluster = {
                        let mut shared = served.lock().unwrap();
                        shared.1 += 1;
                        shared.0.clone()
                    };
                    let _ = match cluster {
                        Cluster::Nodes(version, nodes) => {
                            lines.get_mut().write_all(&whole(version, &nodes))
                        }
                        Cluster::Bytes(bytes) => lines.get_mut().write_all(&bytes),
                        // Until the other side has given up.
                        Cluster::Silence => lines.read_line(&mut line).map(drop),
                    };
                });
            }
        });
        Endpoint { address, shared }
    }

    pub fn set(&self, cluster: Cluster) {
        self.shared.lock().unwrap().0 = cluster;
    }

    /// Questions so far.
    pub fn questions(&self) -> u64 {
        self.shared.lock().unwrap().1
    }
}

/// An answer as it should be.
pub fn whole(version: u64, nodes: &[String]) -> Vec<u8> {
    let text = format!("{version}\n{}\n", nodes.join(" "));
    format!("CONFIG cluster 0 {}\r\n{text}\r\nEND\r\n", text.len()).into_bytes()
}
