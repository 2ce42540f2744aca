//! The pages: which path is which, and each as it was last rendered. However often it is asked for,
//! a page is rendered once a second at most.

use std::rc::Rc;

use http::{Format, Method, Request, Response, Status};

use super::view::View;
use super::{health, metrics};
use crate::ipc::Question;
use crate::log::Clocks;

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Index,
    Metrics(Format),
    Health,
    Ready,
    /// What the master answers.
    Asked(Question),
}

/// What becomes of a request.
pub enum Outcome {
    Answer(Response),
    /// The answer comes when the page is made.
    Wait(Page),
}

/// The pages as they were last rendered.
#[derive(Default)]
pub struct Pages {
    made: Vec<Made>,
    /// The questions that the master has not answered yet, and when each was asked.
    asked: Vec<(Question, u64)>,
}

struct Made {
    page: Page,
    at: u64,
    /// The version of the view that it shows.
    version: u64,
    response: Response,
}

impl Page {
    fn of(request: &Request) -> Option<Page> {
        match &*request.path {
            "/" => Some(Page::Index),
            "/metrics" => Some(Page::Metrics(request.format)),
            "/healthz" => Some(Page::Health),
            "/readyz" => Some(Page::Ready),
            "/stats.json" => Some(Page::Asked(Question::Stats)),
            "/history.json" => Some(Page::Asked(Question::History)),
            "/slowlog.json" => Some(Page::Asked(Question::SlowLog)),
            "/clients.json" => Some(Page::Asked(Question::Clients)),
            _ => None,
        }
    }

    /// Whether it must show at once what the master says. The others may be a second old.
    fn is_current(self) -> bool {
        matches!(self, Page::Health | Page::Ready)
    }
}

impl Pages {
    /// Answers a request, with the page as it is if it is not too old.
    pub fn find(&mut self, request: &Request, view: &mut View, now: u64) -> Outcome {
        let Some(page) = Page::of(request) else {
            return Outcome::Answer(Response::text(Status::NotFound, PATHS));
        };
        if request.method == Method::Other {
            return Outcome::Answer(Response::refusal(Status::MethodNotAllowed));
        }
        if let Some(response) = self.fresh(page, view.version, now) {
            return Outcome::Answer(response);
        }
        if let Page::Asked(question) = page {
            self.ask(question, view, now);
            return Outcome::Wait(page);
        }
        let response = render(page, view);
        self.keep(page, view.version, response.clone(), now);
        Outcome::Answer(response)
    }

    /// Asks the master, unless it has been asked and has still some time.
    fn ask(&mut self, question: Question, view: &mut View, now: u64) {
        self.asked.retain(|(_, at)| now.saturating_sub(*at) < ASK_AGAIN_US);
        if self.asked.iter().all(|(other, _)| *other != question) {
            self.asked.push((question, now));
            view.questions.push(question);
        }
    }

    /// Takes the master's answer to a question.
    pub fn take_answer(
        &mut self,
        question: Question,
        text: String,
        version: u64,
        now: u64,
    ) -> Response {
        let body = Rc::from(text.into_bytes());
        let response = Response { status: Status::Ok, content_type: JSON, body };
        self.asked.retain(|(other, _)| *other != question);
        self.keep(Page::Asked(question), version, response.clone(), now);
        response
    }

    fn fresh(&self, page: Page, version: u64, now: u64) -> Option<Response> {
        let made = self.made.iter().find(|made| made.page == page)?;
        let is_fresh = now.saturating_sub(made.at) < AGE_MAX_US;
        let is_current = made.version == version || !page.is_current();
        (is_fresh && is_current).then(|| made.response.clone())
    }

    fn keep(&mut self, page: Page, version: u64, response: Response, now: u64) {
        self.made.retain(|made| made.page != page);
        self.made.push(Made { page, at: now, version, response });
    }
}

fn render(page: Page, view: &View) -> Response {
    let Clocks { clock_us, .. } = Clocks::read();
    match page {
        Page::Index => {
            let body = Rc::from(include_bytes!("page.html").as_slice());
            Response { status: Status::Ok, content_type: HTML, body }
        }
        Page::Metrics(format) => Response {
            status: Status::Ok,
            content_type: format.content_type(),
            body: Rc::from(metrics::page(view, format, clock_us).into_bytes()),
        },
        Page::Health => report("healthy", &health::illness(view, clock_us)),
        Page::Ready => report("ready", &health::unreadiness(view, clock_us)),
        Page::Asked(_) => unreachable!("the master renders it"),
    }
}

fn report(well: &str, missing: &[String]) -> Response {
    match missing.is_empty() {
        true => Response::text(Status::Ok, &format!("{well}\n")),
        false => {
            let lines = missing.join("\n");
            Response::text(Status::ServiceUnavailable, &format!("not {well}:\n{lines}\n"))
        }
    }
}

/// What stands at a path that there is not.
const PATHS: &str = "\
quickack serves, to read only:
/             a page for browsers
/metrics      figures for Prometheus, as text or OpenMetrics
/healthz      whether the master and a worker work
/readyz       whether clients are served
/stats.json   the answer of `quickack stats --json`
/history.json how many requests took how long, in each second of the last five minutes
/slowlog.json the answer of `quickack slowlog --json`
/clients.json the answer of `quickack clients --busiest --json`
";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// How old a page may be.
const AGE_MAX_US: u64 = 1_000_000;
/// A question that was not answered in this time is asked again.
const ASK_AGAIN_US: u64 = 5_000_000;
