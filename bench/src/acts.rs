//! Operator actions on a proxy under load: a few reloads a second.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::admin::Admin;

/// The action during a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Nothing,
    /// A reload of the very same file.
    SameFile,
    /// A reload with another timeout.
    Timeout,
    /// A reload with one worker fewer, then with one more again.
    Workers,
}

/// From the end of one reload to the start of the next.
pub const PAUSE: Duration = Duration::from_millis(200);

impl Act {
    pub fn suffix(self) -> &'static str {
        match self {
            Act::Nothing => "",
            Act::SameFile => ", same file",
            Act::Timeout => ", timeout changed",
            Act::Workers => ", workers changed",
        }
    }

    /// Returns the text of the file for the reload with this number.
    fn file(self, original: &str, index: usize, workers: usize) -> String {
        let other = index.is_multiple_of(2);
        match self {
            Act::Timeout if other => original.replace("timeout_reply: 1000", "timeout_reply: 1100"),
            Act::Workers if other => {
                let (now, fewer) = (format!("workers: {workers}"), workers - 1);
                original.replace(&now, &format!("workers: {fewer}"))
            }
            _ => original.to_string(),
        }
    }
}

/// A thread that acts until it is told to stop.
pub struct Operator {
    stop: Sender<()>,
    thread: JoinHandle<Result<usize, String>>,
}

impl Operator {
    /// Begins to act; returns None if there is nothing to do.
    pub fn start(act: Act, admin: Option<&Admin>, workers: usize) -> Result<Option<Self>, String> {
        let Some(admin) = admin.filter(|_| act != Act::Nothing).cloned() else { return Ok(None) };
        let file = admin.file.clone();
        let fault = move |error: std::io::Error| format!("{}: {error}", file.display());
        let original = fs::read_to_string(&admin.file).map_err(fault.clone())?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                let text = act.file(&original, count, workers);
                fs::write(&admin.file, text).map_err(fault.clone())?;
                admin.ask("reload")?;
                count += 1;
            }
            fs::write(&admin.file, &original).map_err(fault.clone())?;
            admin.ask("reload")?;
            admin.wait_for_workers(workers)?;
            Ok(count)
        });
        Ok(Some(Operator { stop, thread }))
    }

    /// Restores the file; returns the number of changes to the proxy.
    pub fn stop(self) -> Result<usize, String> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err("the operator panicked".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::Act;

    #[test]
    fn every_second_file_is_the_original() {
        let original = "global:\n  workers: 4\nbench:\n  timeout_reply: 1000\n";
        for act in [Act::SameFile, Act::Timeout, Act::Workers] {
            assert_eq!(act.file(original, 1, 4), original);
            assert_eq!(act.file(original, 0, 4) == original, act == Act::SameFile);
        }
        assert!(Act::Workers.file(original, 0, 4).contains("workers: 3\n"));
    }
}
