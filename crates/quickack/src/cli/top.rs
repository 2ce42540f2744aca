//! `quickack top`: the figures of `quickack stats --json` in the terminal, anew each second.
//!
//! `figures.rs` and `troubles.rs` take what is shown out of the answer, `draw.rs` draws it into a
//! buffer of cells. A terminal shows the buffer; `--once` prints it as text.

mod draw;
mod figures;
mod troubles;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{ask, print};
use crate::error::Error;
use draw::View;
use figures::{Busiest, Figures};
use troubles::{Earlier, LATELY};

/// The window of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// The last 10 seconds.
    #[value(name = "10s")]
    Seconds,
    /// The last minute.
    #[value(name = "1m")]
    Minute,
    /// The last 5 minutes.
    #[value(name = "5m")]
    Minutes,
    /// Since the proxy was started.
    #[value(name = "start")]
    Start,
}

impl Over {
    /// The name of the window in the statistics.
    fn name(self) -> &'static str {
        match self {
            Over::Seconds => "10s",
            Over::Minute => "1m",
            Over::Minutes => "5m",
            Over::Start => "start",
        }
    }
}

pub fn top(proxy: &ask::Proxy, over: Over, once: bool, json: bool) -> ExitCode {
    let shown = match (json, once) {
        (true, _) => print_json(proxy, over, once),
        (false, true) => print_once(proxy, over),
        (false, false) => watch(proxy, over),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ask::fail(&error),
    }
}

/// Looks twice, so that troubles that go on are told from those of long ago.
fn print_once(proxy: &ask::Proxy, over: Over) -> Result<(), Error> {
    let mut earlier = Earlier::default();
    let next = Instant::now() + EVERY;
    earlier.compare(&mut figures(proxy, over)?.troubles);
    let busiest = busiest(proxy)?;
    std::thread::sleep(next.saturating_duration_since(Instant::now()));
    let mut figures = figures(proxy, over)?;
    earlier.compare(&mut figures.troubles);
    let (figures, busiest, lately) = (&figures, Some(&busiest), EVERY.as_secs() as usize);
    let (by_bytes, error, skip, left) = (false, None, 0, 0);
    print(&draw::text(&View { figures, busiest, by_bytes, over, error, skip, left, lately }));
    Ok(())
}

fn figures(proxy: &ask::Proxy, over: Over) -> Result<Figures, Error> {
    let text = proxy.answer("stats --json")?;
    Figures::read(&text, over.name()).map_err(|why| of_another_release(&why))
}

/// All workers are asked for these, so the answer may take seconds.
fn busiest(proxy: &ask::Proxy) -> Result<Busiest, Error> {
    let text = proxy.answer(&format!("clients --busiest --limit {BUSIEST} --json"))?;
    Busiest::read(&text).map_err(|why| of_another_release(&why))
}

fn of_another_release(why: &str) -> Error {
    Error::Config(format!("the proxy's statistics are not those of this release: {why}"))
}

fn print_json(proxy: &ask::Proxy, over: Over, once: bool) -> Result<(), Error> {
    loop {
        let next = Instant::now() + EVERY;
        let mut all = figures(proxy, over)?.json();
        all["busiest"] = busiest(proxy)?.json();
        print(&format!("{all}\n"));
        if once {
            return Ok(());
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Shows the figures until a key ends it.
fn watch(proxy: &ask::Proxy, over: Over) -> Result<(), Error> {
    if !io::stdout().is_terminal() {
        let why =
            "the output is no terminal; --once prints the figures, --json prints them as JSON";
        return Err(Error::Config(why.into()));
    }
    // An error is said before the screen is taken.
    let mut first = figures(proxy, over)?;
    let mut terminal = ratatui::try_init()?;
    let asked = ask_for_busiest(proxy.clone());
    let mut earlier = Earlier::default();
    earlier.compare(&mut first.troubles);
    let shown = Watch {
        earlier,
        proxy,
        over,
        figures: first,
        busiest: None,
        asked,
        error: None,
        paused: false,
        by_bytes: false,
        skip: 0,
        left: 0,
        width: 0,
    };
    let ended = shown.run(&mut terminal);
    ratatui::restore();
    ended.map_err(Error::from)
}

/// Asks for the busiest clients again and again, beside the screen: a worker that hangs is waited
/// for.
fn ask_for_busiest(proxy: ask::Proxy) -> Receiver<Busiest> {
    let (found, asked) = sync_channel(1);
    std::thread::spawn(move || {
        loop {
            // What the proxy does not answer, the other figures say.
            if let Ok(busiest) = busiest(&proxy)
                && found.send(busiest).is_err()
            {
                return;
            }
            std::thread::sleep(EVERY);
        }
    });
    asked
}

struct Watch<'a> {
    proxy: &'a ask::Proxy,
    over: Over,
    figures: Figures,
    earlier: Earlier,
    busiest: Option<Busiest>,
    /// Brings newer ones.
    asked: Receiver<Busiest>,
    /// Why the figures are old.
    error: Option<String>,
    paused: bool,
    /// The busiest clients are in the order of their bytes.
    by_bytes: bool,
    /// Lines that are scrolled away, and columns.
    skip: usize,
    left: usize,
    /// The columns of the terminal.
    width: usize,
}

impl Watch<'_> {
    fn run(mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let mut next = Instant::now() + EVERY;
        loop {
            let paused = self.paused.then_some("paused");
            let error = self.error.as_deref().or(paused);
            let (figures, busiest) = (&self.figures, self.busiest.as_ref());
            let (by_bytes, over, lately) = (self.by_bytes, self.over, LATELY);
            let (skip, left) = (self.skip, self.left);
            let view = View { figures, busiest, by_bytes, over, error, skip, left, lately };
            terminal.draw(|frame| draw::draw(&view, frame.area(), frame.buffer_mut()))?;
            self.width = terminal.size()?.width.into();
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                let page = usize::from(terminal.size()?.height).saturating_sub(4);
                match event::read()? {
                    Event::Key(key) if self.ends(key, page) => return Ok(()),
                    _ => continue,
                }
            }
            next = Instant::now() + EVERY;
            if !self.paused {
                self.refresh();
            }
        }
    }

    fn refresh(&mut self) {
        match figures(self.proxy, self.over) {
            Ok(mut figures) => {
                self.earlier.compare(&mut figures.troubles);
                (self.figures, self.error) = (figures, None);
            }
            Err(error) => self.error = Some(error.to_string()),
        }
        if let Some(busiest) = self.asked.try_iter().last() {
            self.busiest = Some(busiest);
        }
    }

    /// Handles a key; returns true for those that end it.
    fn ends(&mut self, key: KeyEvent, page: usize) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let over = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                None
            }
            KeyCode::Char('b') => {
                self.by_bytes = !self.by_bytes;
                None
            }
            KeyCode::Char('1') => Some(Over::Seconds),
            KeyCode::Char('2') => Some(Over::Minute),
            KeyCode::Char('3') => Some(Over::Minutes),
            KeyCode::Char('4') => Some(Over::Start),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Left | KeyCode::Char('h') => {
                self.left = self.left.saturating_sub(1);
                None
            }
            KeyCode::Right | KeyCode::Char('l') => {
                self.left = (self.left + 1).min(LEFT_MAX);
                None
            }
            KeyCode::PageUp => self.scroll(-(page as isize)),
            KeyCode::PageDown => self.scroll(page as isize),
            KeyCode::Home => self.scroll(isize::MIN),
            _ => None,
        };
        if let Some(over) = over {
            self.over = over;
            self.refresh();
        }
        false
    }

    fn scroll(&mut self, lines: isize) -> Option<Over> {
        let (figures, busiest) = (&self.figures, self.busiest.as_ref());
        let (by_bytes, over, lately) = (self.by_bytes, self.over, LATELY);
        let (skip, left, error) = (self.skip, self.left, None);
        let view = View { figures, busiest, by_bytes, over, error, skip, left, lately };
        let last = draw::lines(&view, self.width).saturating_sub(1);
        self.skip = self.skip.saturating_add_signed(lines).min(last);
        None
    }
}

const EVERY: Duration = Duration::from_secs(1);
/// Columns that may be scrolled away: the last ones stay.
const LEFT_MAX: usize = 10;
/// Clients that are shown, by requests and by bytes.
const BUSIEST: usize = 10;
