//! Prometheus's text format 0.0.4 and OpenMetrics 1.0, written side by side: they differ in the
//! names of counters' families, in units, and in the last line.
//!
//! ```text
//!   # HELP quickack_pool_requests_total …      # HELP quickack_pool_requests …
//!   # TYPE quickack_pool_requests_total …      # TYPE quickack_pool_requests counter
//!   quickack_pool_requests_total{pool="a"} 7   quickack_pool_requests_total{pool="a"} 7
//!                                              # EOF
//! ```

use std::fmt::Write;

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Prometheus's text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Facts in labels; the value is 1.
    Info,
}

/// A page of metrics that is being written: families, each with its samples.
pub struct Exposition {
    format: Format,
    out: String,
    /// The name of the family that is being written.
    family: String,
    kind: Kind,
    /// Its heading, until its first sample: a family without samples is not shown.
    heading: String,
}

impl Format {
    /// The format that an `Accept` field asks for: OpenMetrics only if it is named and nothing of
    /// the text format is preferred to it.
    pub fn preferred(accept: &str) -> Format {
        let (mut open, mut text) = (0, 0);
        for item in accept.split(',') {
            let mut parts = item.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1000, None);
            for part in parts {
                match part.split_once('=') {
                    Some(("q" | "Q", value)) => quality = thousandths(value),
                    Some(("version", value)) => version = Some(value.trim_matches('"')),
                    _ => {}
                }
            }
            match (&*name, version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => open = open.max(quality),
                ("text/plain", None | Some("0.0.4")) => text = text.max(quality),
                _ => {}
            }
        }
        if open > 0 && open >= text { Format::OpenMetrics } else { Format::Text }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The value of a `q`, such as 0.75; what is no number counts as 0.
fn thousandths(quality: &str) -> u32 {
    let value: f32 = quality.parse().unwrap_or(0.0);
    (value.clamp(0.0, 1.0) * 1000.0) as u32
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }

    /// What the names of samples have behind that of their family.
    pub fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }
}

impl Exposition {
    pub fn new(format: Format) -> Exposition {
        let (out, family, heading) = (String::new(), String::new(), String::new());
        Exposition { format, out, family, kind: Kind::Gauge, heading }
    }

    /// Begins a family. `name` is without a suffix, and ends with the unit if there is one.
    pub fn family(&mut self, name: &str, kind: Kind, unit: Option<&str>, help: &str) {
        let shown = match self.format {
            Format::Text => [name, kind.suffix()].concat(),
            Format::OpenMetrics => name.to_string(),
        };
        let shown_kind = match (self.format, kind) {
            (Format::Text, Kind::Info) => Kind::Gauge.name(),
            _ => kind.name(),
        };
        self.heading = format!("# HELP {shown} {}\n", self.escaped_help(help));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            assert!(name.ends_with(unit), "{name} ends with its unit, {unit}");
            let _ = writeln!(self.heading, "# UNIT {shown} {unit}");
        }
        let _ = writeln!(self.heading, "# TYPE {shown} {shown_kind}");
        (self.family, self.kind) = (name.to_string(), kind);
    }

    /// Writes a sample of a counter, a gauge or an info.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        assert_ne!(self.kind, Kind::Histogram, "{} has more than one sample", self.family);
        self.line(self.kind.suffix(), labels, None, value);
    }

    /// Writes a histogram. `edges` and `sum` are in microseconds; `counts` has the times up to each
    /// edge, and then all.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        edges: &[u64],
        counts: &[u64],
        sum_us: u64,
    ) {
        assert_eq!(self.kind, Kind::Histogram, "{} has one sample", self.family);
        assert_eq!(counts.len(), edges.len() + 1, "a count for each edge, and one for all");
        for (edge, count) in edges.iter().zip(counts) {
            self.line("_bucket", labels, Some(&seconds(*edge)), count);
        }
        let all = counts[edges.len()];
        self.line("_bucket", labels, Some("+Inf"), all);
        self.line("_sum", labels, None, seconds(sum_us));
        self.line("_count", labels, None, all);
    }

    /// Returns the page.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        edge: Option<&str>,
        value: impl std::fmt::Display,
    ) {
        self.out.push_str(&std::mem::take(&mut self.heading));
        self.out.push_str(&self.family);
        self.out.push_str(suffix);
        let mut start = '{';
        for (name, value) in labels.iter().copied().chain(edge.map(|edge| ("le", edge))) {
            self.out.push(start);
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(value, true, &mut self.out);
            self.out.push('"');
            start = ',';
        }
        if start == ',' {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn escaped_help(&self, help: &str) -> String {
        let mut out = String::new();
        escape(help, self.format == Format::OpenMetrics, &mut out);
        out
    }
}

/// Escapes what would end a line or a quoted value.
fn escape(text: &str, is_quoted: bool, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if is_quoted => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

/// Microseconds as seconds, exactly. A whole number ends with `.0`, as OpenMetrics wants it of
/// edges, so that both formats name the same series.
pub fn seconds(us: u64) -> String {
    let (whole, part) = (us / 1_000_000, us % 1_000_000);
    let part = format!("{part:06}");
    let part = part.trim_end_matches('0');
    format!("{whole}.{}", if part.is_empty() { "0" } else { part })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(format: Format) -> String {
        let mut page = Exposition::new(format);
        page.family("a_seconds", Kind::Counter, Some("seconds"), "A \"time\" \\ so\nlong.");
        page.sample(&[("pool", "x\"y\\z\nq"), ("server", "s")], seconds(1_500_000));
        page.family("nobody", Kind::Gauge, None, "Has no samples.");
        page.family("b", Kind::Info, None, "Facts.");
        page.sample(&[("version", "1")], 1);
        page.family("c_seconds", Kind::Histogram, Some("seconds"), "Times.");
        page.histogram(&[], &[36_000, 1_000_000], &[1, 2, 4], 7_000_001);
        page.finish()
    }

    #[test]
    fn the_text_format_has_the_suffix_in_the_name_of_the_family() {
        let wanted = r#"# HELP a_seconds_total A "time" \\ so\nlong.
# TYPE a_seconds_total counter
a_seconds_total{pool="x\"y\\z\nq",server="s"} 1.5
# HELP b_info Facts.
# TYPE b_info gauge
b_info{version="1"} 1
# HELP c_seconds Times.
# TYPE c_seconds histogram
c_seconds_bucket{le="0.036"} 1
c_seconds_bucket{le="1.0"} 2
c_seconds_bucket{le="+Inf"} 4
c_seconds_sum 7.000001
c_seconds_count 4
"#;
        assert_eq!(page(Format::Text), wanted);
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let wanted = r#"# HELP a_seconds A \"time\" \\ so\nlong.
# UNIT a_seconds seconds
# TYPE a_seconds counter
a_seconds_total{pool="x\"y\\z\nq",server="s"} 1.5
# HELP b Facts.
# TYPE b info
b_info{version="1"} 1
"#;
        let page = page(Format::OpenMetrics);
        assert!(page.starts_with(wanted), "{page}");
        assert!(page.ends_with("\nc_seconds_count 4\n# EOF\n"), "{page}");
    }

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            (prometheus, Format::OpenMetrics),
            (",application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=\"1.0.0\"; charset=utf-8", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0.5,text/plain", Format::Text),
            ("application/openmetrics-text;q=zero", Format::Text),
        ] {
            assert_eq!(Format::preferred(accept), format, "{accept}");
        }
    }

    #[test]
    fn a_time_keeps_every_microsecond() {
        let words = [(0, "0.0"), (1, "0.000001"), (48_000, "0.048"), (2_500_000, "2.5")];
        for (us, word) in words {
            assert_eq!(seconds(us), word);
        }
        assert_eq!(seconds(u64::MAX), "18446744073709.551615");
    }
}
