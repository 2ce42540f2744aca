//! The channel to the master: names, state and sockets come in, questions go out.

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use http::{Method, Response, Status};
use proxy::{Event, Report};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::view::View;
use crate::error::{Error, Peer};
use crate::event::{Command, Control, Leaver, Listener, LoopEvent, Service};
use crate::ipc::client_state::ClientState;
use crate::ipc::http_view::Names;
use crate::ipc::{Channel, FromHttp, Received, ToHttp};
use crate::scoreboard::Scoreboard;

/// The master, as this process hears it.
pub struct Master {
    channel: Channel<FromHttp, ToHttp>,
    view: Rc<RefCell<View>>,
    is_gone: bool,
}

impl Master {
    /// Waits for the first message. Before this process serves, it may wait.
    pub fn greet(fd: OwnedFd) -> Result<Master, Error> {
        let mut channel: Channel<FromHttp, ToHttp> = Channel::new(fd);
        let Received { message, mut fds } = loop {
            if let Some(received) = channel.receive()? {
                break received;
            }
            match poll(&mut [PollFd::new(&channel, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let (ToHttp::Welcome { release, started_unix_us }, Some(memory)) = (message, fds.pop())
        else {
            return Err(Peer::Broken("the first message is no welcome".into()).into());
        };
        let scoreboard = Scoreboard::open(sys::memory::map_to_read(memory)?)?;
        let view = Rc::new(RefCell::new(View::new(release, started_unix_us, scoreboard)));
        Ok(Master { channel, view, is_gone: false })
    }

    pub fn view(&self) -> Rc<RefCell<View>> {
        Rc::clone(&self.view)
    }

    fn hear(&mut self, out: &mut Vec<Command>) -> Result<(), Error> {
        while let Some(Received { message, mut fds }) = self.channel.receive()? {
            let fd = fds.pop();
            let view = &mut *self.view.borrow_mut();
            match (message, fd) {
                (ToHttp::Names {}, Some(fd)) => {
                    view.names = Names::read(fd)?;
                    view.version += 1;
                }
                (ToHttp::State { state }, _) => {
                    view.state = state;
                    view.version += 1;
                }
                (ToHttp::Listen { number, tcp }, Some(fd)) => {
                    out.push(Command::Listen(vec![listener(number, tcp, fd)]));
                }
                (ToHttp::Answer { question }, Some(fd)) => {
                    let text = String::from_utf8(sys::memory::read_sealed(fd)?);
                    let text = text.map_err(|error| Error::Bug(error.to_string()))?;
                    view.answers.retain(|(other, _)| *other != question);
                    view.answers.push((question, text));
                }
                // To have received it is the answer.
                (ToHttp::Ping {}, _) => {}
                (message, _) => {
                    let why = format!("{message:?} comes once, or with a descriptor");
                    return Err(Peer::Broken(why).into());
                }
            }
        }
        Ok(())
    }
}

fn listener(number: u32, tcp: bool, fd: OwnedFd) -> Listener {
    Listener {
        id: number,
        fd: Some(fd),
        pool: 0,
        tcp,
        nodelay: true,
        keepalive: tcp,
        shared: false,
        proxy_protocol: Vec::new(),
        no_room: Response::refusal(Status::ServiceUnavailable).last_bytes(Method::Get),
    }
}

impl Control for Master {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn has_unsent(&self) -> bool {
        self.channel.has_unsent()
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn poll_changes(&mut self, _out: &mut Vec<Command>) {}

    fn receive(&mut self, out: &mut Vec<Command>) {
        if self.hear(out).is_err() {
            // Without a master there is nothing to tell.
            self.is_gone = true;
            return out.push(Command::Drain { within: Duration::ZERO });
        }
        // If the master is gone, the next look finds out.
        let _ = self.channel.flush();
        let _ = self.channel.acknowledge();
    }

    fn installed(&mut self, _service: &dyn Service) {}

    fn after_turn(&mut self, _service: &dyn Service) {
        while self.channel.has_room() {
            let Some(question) = self.view.borrow_mut().questions.pop() else { return };
            let _ = self.channel.send(FromHttp::Ask { question }, &[]);
        }
    }

    fn report(&mut self, _report: Report) {}

    fn log(&mut self, _event: Event, _from: Option<IpAddr>) {}

    fn log_loop_event(&mut self, _note: LoopEvent) {}

    fn hand_over(&mut self, _client: ClientState, ones: Vec<Leaver>) -> Result<(), Vec<Leaver>> {
        Err(ones)
    }
}
