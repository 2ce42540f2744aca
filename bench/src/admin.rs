//! A client of quickack's admin socket: it sends a line and reads an answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The admin socket of a running quickack, and the file that a reload reads.
#[derive(Clone, Debug)]
pub struct Admin {
    socket: PathBuf,
    pub file: PathBuf,
}

/// One worker's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    pub serves: bool,
    pub clients: u64,
    pub turns: u64,
}

impl Admin {
    pub fn new(socket: PathBuf, file: PathBuf) -> Admin {
        Admin { socket, file }
    }

    /// Sends one line and returns the answer; an answer that is an error becomes an error.
    pub fn ask(&self, line: &str) -> Result<String, String> {
        let exchange = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(format!("{line}\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|error| format!("admin socket, `{line}`: {error}"))?;
        match answer.strip_prefix("error: ") {
            Some(why) => Err(format!("`{line}`: {}", why.trim_end())),
            None => Ok(answer),
        }
    }

    pub fn workers(&self) -> Result<Vec<Worker>, String> {
        Ok(workers(&self.ask("workers --json")?))
    }

    /// Waits until exactly that many workers are serving.
    pub fn wait_for_workers(&self, count: usize) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let said = self.workers();
            if said.as_ref().is_ok_and(|workers| {
                workers.len() == count && workers.iter().all(|worker| worker.serves)
            }) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{count} workers do not serve: {said:?}"));
            }
            // The pause is only between checks.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Parses `workers --json`. Its objects are flat, and none of their texts contains a brace.
fn workers(json: &str) -> Vec<Worker> {
    let start = json.find("\"workers\"").unwrap_or(json.len());
    let objects = json[start..].split('{').skip(1);
    let worker = |object: &str| {
        let object = object.split('}').next()?;
        let number = |name: &str| field(object, name).and_then(|text| text.parse().ok());
        let serves = field(object, "state")? == "\"serving\"";
        Some(Worker { serves, clients: number("clients")?, turns: number("turns")? })
    };
    objects.filter_map(worker).collect()
}

fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = object.split_once(&format!("\"{name}\":"))?;
    rest.split(',').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::{Worker, workers};

    #[test]
    fn workers_are_read_from_their_json() {
        let json = r#"{"master":{"pid":1,"ejected":[]},"workers":[
            {"clients":7,"config_epoch":1,"pid":9,"state":"serving","turns":120,"worker":0},
            {"clients":0,"config_epoch":0,"pid":10,"state":"starting","turns":3,"worker":1}]}"#;
        let first = Worker { serves: true, clients: 7, turns: 120 };
        let second = Worker { serves: false, clients: 0, turns: 3 };
        assert_eq!(workers(json), [first, second]);
        assert_eq!(workers("{}"), []);
    }
}
