//! The files of `dist/monitoring`, with Debian's Prometheus in front of a loaded proxy.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::load::Options;
use testkit::process::{Memcached, Process, free_address, wait_until};

use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/monitoring")
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_on_what_it_is_for() {
    for words in [
        &["check", "config", "prometheus.yml"][..],
        &["check", "rules", "alerts.yml"],
        &["test", "rules", "alerts.test.yml", "alerts-day.test.yml"],
    ] {
        let output = Command::new("promtool").args(words).current_dir(folder()).output();
        let output = output.expect("promtool is a peer");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
    }
    // Every alert of the file is in a test.
    let [rules, tests, day] = ["alerts.yml", "alerts.test.yml", "alerts-day.test.yml"].map(read);
    let tests = tests + &day;
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<&str> =
        alerts.filter(|alert| !tests.contains(&format!("alertname=\"{alert}\""))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).expect("a file of the project")
}

/// Prometheus with our rules, which scrapes `target` every second.
struct Prometheus {
    process: Process,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder for its data");
        let config = read("prometheus.yml")
            .replace("127.0.0.1:9150", &target.to_string())
            .replace("interval: 10s", "interval: 1s")
            .replace("- alerts.yml", &format!("- {}", self::folder().join("alerts.yml").display()));
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).expect("a new file in an own folder");
        let address = free_address();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let mut process = Process::start("prometheus", &mut command);
        assert!(process.wait_to_accept(address), "{}", process.stderr_text());
        // It accepts before it answers.
        super::wait_for_at(address, "/-/ready", 200, "");
        Prometheus { process, address, _folder: folder }
    }

    /// Asks its API. An HTTP/1.0 client is answered in one piece.
    fn ask(&self, path: &str) -> Value {
        let mut stream = testkit::process::connect(self.address);
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let body = text.split_once("\r\n\r\n").expect("a head").1;
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// Returns the values of an expression. Those that are no numbers do not count.
    #[track_caller]
    fn query(&self, expr: &str) -> Vec<f64> {
        let escaped: String = expr.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.ask(&format!("/api/v1/query?query={escaped}"));
        assert_eq!(answer["status"], "success", "{expr}: {answer}");
        let rows = answer["data"]["result"].as_array().expect("a vector").clone();
        let value = |row: &Value| row["value"][1].as_str()?.parse::<f64>().ok();
        rows.iter().filter_map(value).filter(|value| value.is_finite()).collect()
    }
}

/// Returns the expressions of all panels, with the title of each.
fn expressions(panels: &Value, found: &mut Vec<(String, String)>) {
    for panel in panels.as_array().into_iter().flatten() {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().expect("a target has an expression");
            found.push((title.to_string(), expr.to_string()));
        }
        expressions(&panel["panels"], found);
    }
}

/// Fills in the dashboard's variables as Grafana does.
fn filled(expr: &str, target: SocketAddr) -> String {
    let target = target.to_string();
    let instance = target.replace('.', "\\\\.");
    let filled = [
        ("$job", "quickack"),
        ("$instance", &instance),
        ("$pool", ".*"),
        ("$__rate_interval", "5s"),
        ("$__range", "1m"),
    ];
    filled.iter().fold(expr.to_string(), |expr, (name, value)| expr.replace(name, value))
}

#[test]
fn each_panel_of_the_dashboard_has_data_in_promtools_server_before_memcached() {
    let memcached = Memcached::start();
    let tenants = "tenants: {shop: {pools: [alpha]}}";
    let quickack = start(2, &[tenants], &[memcached.address], &[]);
    let target = address(&quickack);
    let load = harness::load(&quickack, 20, Options { rate: Some(1_000), ..Options::default() });
    let prometheus = Prometheus::start(target);
    let said = || prometheus.process.stderr_text();
    wait_until(&format!("it scrapes the proxy: {}", said()), || {
        prometheus.query("up{job=\"quickack\"}") == [1.0]
    });
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).expect("it is JSON");
    let mut all = Vec::new();
    expressions(&dashboard["panels"], &mut all);
    assert!(all.len() > 30, "{} expressions", all.len());
    for (title, expr) in &all {
        let expr = filled(expr, target);
        assert!(!expr.contains('$'), "{title}: a variable that the test does not know: {expr}");
        let mut found = Vec::new();
        wait_until(&format!("{title} has data: {expr}; {}", said()), || {
            found = prometheus.query(&expr);
            !found.is_empty()
        });
    }
    // What the variables are filled from, and every metric that rules and panels name.
    assert_eq!(prometheus.query("count(quickack_build_info)"), [1.0]);
    let text = [read("dashboard.json"), read("alerts.yml")].concat();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names: BTreeSet<&str> =
        text.split(|c| !is_name(c)).filter(|word| word.starts_with("quickack_")).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(!prometheus.query(name).is_empty(), "there is no {name}");
    }
    let rules = prometheus.ask("/api/v1/rules");
    let rules = rules["data"]["groups"][0]["rules"].as_array().expect("our rules");
    let ill: Vec<&Value> = rules.iter().filter(|rule| rule["health"] != "ok").collect();
    assert!(rules.len() > 10 && ill.is_empty(), "{ill:?}");
    let firing: Vec<&Value> = rules.iter().filter(|rule| rule["state"] == "firing").collect();
    assert!(firing.is_empty(), "a proxy that is well: {firing:?}");
    load.stop().assert_unharmed();
}
