//! Draws the figures into a buffer of cells.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::Over;
use super::figures::{Busiest, Client, Figures, QUANTILES, Times};
use crate::config::grouped;
use crate::stats::{duration, time};

/// What is shown.
pub struct View<'a> {
    pub figures: &'a Figures,
    /// None while the workers have not answered.
    pub busiest: Option<&'a Busiest>,
    /// The busiest are in the order of their bytes, not of their requests.
    pub by_bytes: bool,
    pub over: Over,
    /// Why the figures are not new.
    pub error: Option<&'a str>,
    /// Lines that are scrolled away.
    pub skip: usize,
    /// Columns that are scrolled away, behind the first two.
    pub left: usize,
    /// The seconds that the troubles of late look back.
    pub lately: usize,
}

/// A line of the screen below its head: cells, each with its style.
type Line = Vec<(String, Style)>;

/// Draws a screen: the head, then as many lines as there is room for.
pub fn draw(view: &View<'_>, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    buffer.set_stringn(area.x, area.y, head(view.figures), width, bold);
    let second = match view.error {
        Some(error) => (format!("old figures: {error}"), Style::new().fg(Color::Red)),
        None => (keys(view), SOFT),
    };
    if area.height > 1 {
        buffer.set_stringn(area.x, area.y + 1, second.0, width, second.1);
    }
    let lines = all_lines(view, width);
    for (line, y) in lines.iter().skip(view.skip).zip(area.y + 3..area.bottom()) {
        let mut x = area.x;
        for (text, style) in shown(line, view.left) {
            let room = usize::from(area.right().saturating_sub(x));
            (x, _) = buffer.set_stringn(x, y, text, room, *style);
        }
    }
}

/// Returns the cells of a line without those that are scrolled away.
fn shown(line: &Line, left: usize) -> impl Iterator<Item = &(String, Style)> {
    let away = 2..2 + left;
    line.iter().enumerate().filter(move |(at, _)| !away.contains(at)).map(|(_, cell)| cell)
}

/// Returns the whole screen as text, as wide and long as it needs to be.
pub fn text(view: &View<'_>) -> String {
    let lines = all_lines(view, usize::MAX);
    let width = |line: &Line| line.iter().map(|(text, _)| text.chars().count()).sum::<usize>();
    let heads = [head(view.figures), keys(view)];
    let widest = lines.iter().map(width).chain(heads.iter().map(|text| text.chars().count())).max();
    // A buffer has at most so many cells.
    let width = widest.unwrap_or(0).min(1_000) as u16;
    let area = Rect::new(0, 0, width, (lines.len() + 3).min(usize::from(u16::MAX)) as u16);
    let mut buffer = Buffer::empty(area);
    draw(view, area, &mut buffer);
    let rows = buffer.content.chunks(usize::from(width).max(1));
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    rows.map(|row| format!("{}\n", row.trim_end())).collect()
}

/// Returns the number of lines below the head on a screen of this width.
pub fn lines(view: &View<'_>, width: usize) -> usize {
    all_lines(view, width).len()
}

fn head(figures: &Figures) -> String {
    let serving = figures.workers.iter().filter(|worker| worker.state == "serving").count();
    format!(
        "quickack {} on {}, up {}, configuration {}; {} of {} workers serve {} clients; {} of \
         {} in buffers",
        figures.release,
        figures.host,
        duration(figures.uptime_s),
        figures.epoch,
        serving,
        figures.workers.len(),
        grouped(figures.clients),
        bytes(figures.buffer_bytes),
        bytes(figures.memory_max),
    )
}

fn keys(view: &View<'_>) -> String {
    let over = view.over;
    let windows =
        [(Over::Seconds, '1'), (Over::Minute, '2'), (Over::Minutes, '3'), (Over::Start, '4')];
    let windows = windows.map(|(one, key)| match one == over {
        true => format!("[{}]", one.name()),
        false => format!("{key} {}", one.name()),
    });
    let other = if view.by_bytes { "requests" } else { "bytes" };
    format!("over {}   b by {other}   p pause   arrows scroll   q quit", windows.join("  "))
}

fn all_lines(view: &View<'_>, width: usize) -> Vec<Line> {
    let figures = view.figures;
    let latency = ["per s"].into_iter().chain(QUANTILES);
    let mut pools =
        vec![titles(&["pool", "kind", "clients", "all failed", "all refused"], latency.clone())];
    for pool in &figures.pools {
        let kinds = [("reads", &pool.reads), ("updates", &pool.updates)].into_iter();
        let failed = Some(("failed", &pool.failures)).filter(|_| pool.failed > 0);
        let phases = pool.phases.iter().map(|(name, times)| (*name, times));
        for (kind, times) in kinds.chain(failed).chain(phases.filter(|(_, one)| one.count > 0)) {
            let own = [grouped(pool.clients), grouped(pool.failed), grouped(pool.refused)];
            let own = if kind == "reads" { own } else { Default::default() };
            let name = if kind == "reads" { pool.name.clone() } else { String::new() };
            let words = [plain(name), plain(kind.replace('_', " "))].into_iter();
            pools.push(words.chain(own.map(plain)).chain(of_times(figures, times)).collect());
        }
    }
    let names = ["server", "state", "links", "waiting", "in flight", "all errors", "all timeouts"];
    let tenants = tenants(figures, latency.clone());
    let mut servers = vec![titles(&names, latency)];
    for (pool, server) in
        figures.pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)))
    {
        let state = match server.is_well {
            true => Style::new().fg(Color::Green),
            false => BAD,
        };
        let counts =
            [server.links, server.pending, server.inflight, server.errors, server.timeouts];
        let mut line = vec![plain(format!("{}/{}", pool.name, server.label))];
        line.push((server.state.clone(), state));
        line.extend(counts.map(|count| plain(grouped(count))));
        line.extend(of_times(figures, &server.replies));
        servers.push(line);
    }
    let names = [
        "worker", "state", "process", "restarts", "clients", "requests", "buffers", "user",
        "system",
    ];
    let mut workers = vec![titles(&names, std::iter::empty())];
    workers.extend(figures.workers.iter().map(|worker| {
        let seconds = |us: u64| format!("{:.1} s", us as f64 / 1e6);
        let state = if worker.state == "serving" { Style::new() } else { BAD };
        let cells = [
            worker.slot.to_string(),
            worker.state.clone(),
            if worker.pid > 0 { worker.pid.to_string() } else { "-".to_string() },
            grouped(worker.restarts),
            grouped(worker.clients),
            grouped(worker.requests),
            bytes(worker.buffer_bytes),
            seconds(worker.user_us),
            seconds(worker.system_us),
        ];
        let mut line = cells.map(plain);
        line[1].1 = state;
        line.into()
    }));
    let mut all = problems(figures, width);
    all.extend(table(pools));
    let busiest = view.busiest.map_or(Vec::new(), |busiest| clients(busiest, view.by_bytes));
    let troubles = Some(troubles(view)).filter(|rows| rows.len() > 1);
    let rows = troubles.into_iter().chain([servers]).chain(tenants).chain([workers]);
    for rows in rows.chain(busiest) {
        all.push(Vec::new());
        all.extend(table(rows));
    }
    all
}

/// What is wrong now. An empty line parts it from the rest.
fn problems(figures: &Figures, width: usize) -> Vec<Line> {
    let sentences = figures.problems.iter().flat_map(|text| wrapped(text, width));
    let mut all: Vec<Line> = sentences.map(|text| vec![(text, BAD)]).collect();
    all.extend((!all.is_empty()).then(Line::new));
    all
}

/// Breaks a sentence into lines. The later ones are indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        let is_first = line.trim().is_empty();
        if !is_first && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("  {word}"));
        } else {
            line.push_str(if is_first { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// The tenants, with what their limits did.
fn tenants<'a>(figures: &Figures, latency: impl Iterator<Item = &'a str>) -> Option<Vec<Line>> {
    let names = ["tenant", "", "clients", "waiting", "all denied", "all delayed", "all over"];
    let mut rows = vec![titles(&names, latency)];
    rows.extend(figures.tenants.iter().map(|one| {
        let counts = [one.clients, one.waiting, one.denied, one.delayed, one.over];
        let mut line = vec![plain(one.name.clone()), plain(String::new())];
        line.extend(counts.map(|count| plain(grouped(count))));
        line.extend(of_times(figures, &one.requests));
        line
    }));
    (rows.len() > 1).then_some(rows)
}

/// What goes wrong, and where. What went on in the last seconds stands out.
fn troubles(view: &View<'_>) -> Vec<Line> {
    let lately = format!("last {}s", view.lately);
    let names = ["trouble", "of", "since start", &lately];
    let mut rows = vec![titles(&names, std::iter::empty())];
    rows.extend(view.figures.troubles.iter().map(|one| {
        let lately = one.lately.map_or("-".to_string(), grouped);
        let style = if one.lately.is_some_and(|count| count > 0) { BAD } else { Style::new() };
        let cells = [one.help.to_string(), one.place.clone(), grouped(one.since_start), lately];
        cells.map(|text| (text, style)).into()
    }));
    rows
}

/// The busiest clients, and the addresses of those that send requests in pieces, if there are any.
fn clients(busiest: &Busiest, by_bytes: bool) -> Vec<Vec<Line>> {
    let names = ["busiest client", "pool", "worker", "per s", "bytes/s", "requests", "owed"];
    let mut rows = vec![titles(&names, std::iter::empty())];
    let mut all: Vec<&Client> = busiest.clients.iter().collect();
    all.sort_by_key(|one| std::cmp::Reverse(if by_bytes { one.bytes } else { one.requests }));
    rows.extend(all.into_iter().map(|one| {
        let cells = [
            one.address.clone(),
            one.pool.clone(),
            one.worker.to_string(),
            grouped(one.requests),
            bytes(one.bytes),
            grouped(one.requests_ever),
            grouped(one.owed),
        ];
        cells.map(plain).into()
    }));
    let mut pieces = vec![titles(&["in pieces", "", "times", "rest after", "max"], [].into_iter())];
    pieces.extend(busiest.in_pieces.iter().map(|one| {
        let times = [time(one.late_us), time(one.latest_us)];
        let [late, latest] = times;
        let cells = [one.address.clone(), String::new(), grouped(one.count), late, latest];
        cells.map(plain).into()
    }));
    [rows, pieces].into_iter().filter(|rows| rows.len() > 1).collect()
}

/// The rate of some requests, and their percentiles.
fn of_times(figures: &Figures, times: &Times) -> Vec<(String, Style)> {
    let rate = grouped(figures.rate(times.count));
    let quantiles = times.us.iter().map(|us| match times.count {
        0 => ("-".to_string(), SOFT),
        _ if STALLS.iter().any(|stall| stall.contains(us)) => {
            (time(*us), Style::new().fg(Color::Yellow))
        }
        _ => (time(*us), Style::new()),
    });
    [plain(rate)].into_iter().chain(quantiles).collect()
}

fn titles<'a>(own: &[&'a str], more: impl Iterator<Item = &'a str>) -> Line {
    own.iter().copied().chain(more).map(|name| (name.to_uppercase(), SOFT)).collect()
}

fn plain(text: String) -> (String, Style) {
    (text, Style::new())
}

/// Aligns the cells of rows: the first two columns to the left, the others to the right.
fn table(mut rows: Vec<Line>) -> Vec<Line> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    for column in 0..columns {
        let len = |line: &Line| line.get(column).map_or(0, |(text, _)| text.chars().count());
        let width = rows.iter().map(len).max().unwrap_or(0);
        for line in &mut rows {
            let Some((text, _)) = line.get_mut(column) else { continue };
            *text = match column {
                0 => format!("{text:<width$}"),
                1 => format!("  {text:<width$}"),
                _ => format!("  {text:>width$}"),
            };
        }
    }
    rows
}

fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..0x10_0000 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / 1_048_576.0),
    }
}

const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
/// Where delayed ACKs put a request, in microseconds: 40 ms on Linux, 200 ms on Windows.
const STALLS: [std::ops::RangeInclusive<u64>; 2] = [36_000..=48_000, 190_000..=230_000];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_behind_the_first_two_are_scrolled_away() {
        let line: Line = ["alpha/one", "up", "3", "4", "5"].map(|text| plain(text.into())).into();
        let texts = |left| shown(&line, left).map(|(text, _)| text.as_str()).collect::<Vec<_>>();
        assert_eq!(texts(0), ["alpha/one", "up", "3", "4", "5"]);
        assert_eq!(texts(2), ["alpha/one", "up", "5"]);
        assert_eq!(texts(9), ["alpha/one", "up"]);
    }

    #[test]
    fn a_sentence_is_broken_where_it_does_not_fit() {
        let text = "worker 0 died 3 times";
        assert_eq!(wrapped(text, 100), [text]);
        assert_eq!(wrapped(text, 13), ["worker 0 died", "  3 times"]);
        assert_eq!(wrapped("unbreakable", 3), ["unbreakable"]);
    }
}
