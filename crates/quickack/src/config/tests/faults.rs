//! Invalid configurations, each reported at its place; and the ones that are just valid.

use super::*;

fn report(text: &str) -> String {
    compile("test.yml", text, &[]).report.render_text()
}

/// Returns the report of a pool with one more directive.
fn told(directive: &str) -> String {
    report(&format!("{POOL_TEXT}  {directive}\n"))
}

#[test]
fn a_pool_needs_a_place_to_listen_and_a_server() {
    let listen = "  listen: 127.0.0.1:1\n";
    for servers in ["  servers:\n", "  servers: []\n"] {
        let report = report(&format!("p:\n{listen}{servers}"));
        assert!(report.contains("pool `p` has no servers"), "{servers}{report}");
    }
    let report = |text: &str| report(&format!("p:\n{text}"));
    assert!(report(listen).contains("pool `p` has no `servers`"));
    assert!(report("  servers: [127.0.0.1:1:1]\n").contains("pool `p` has no `listen`"));
}

#[test]
fn what_is_nested_too_deep_is_told_whatever_it_is_nested_in() {
    let kinds = [("[", "]"), ("{a: ", "}"), ("{", "}"), ("? ", ""), ("- ", ""), ("{[", "]}")];
    for (open, close) in kinds {
        let report = report(&(open.repeat(30) + &close.repeat(30)));
        assert!(report.contains("nested too deep"), "{open}: {report}");
    }
}

/// The last two lines of a report, from where the text of the file begins.
fn excerpt(report: &str) -> (&str, &str) {
    let mut lines = report.lines().filter_map(|line| line.split_once(" | "));
    let (Some((_, text)), Some((_, marks))) = (lines.next(), lines.next()) else {
        panic!("no excerpt: {report}")
    };
    (text, marks)
}

#[test]
fn the_marks_are_as_wide_as_what_is_wrong() {
    let report = told("no_such_directive: 1");
    let (text, marks) = excerpt(&report);
    assert_eq!((text, marks), ("  no_such_directive: 1", "  ^^^^^^^^^^^^^^^^^"), "{report}");
}

#[test]
fn the_part_of_a_word_that_is_wrong_is_marked_within_quotes_and_without() {
    for quote in ["", "'", "\""] {
        let server = format!("{quote}127.0.0.1:99999:1{quote}");
        let report = report(&format!("p:\n  listen: 127.0.0.1:1\n  servers:\n   - {server}\n"));
        let (text, marks) = excerpt(&report);
        assert_eq!(marks.find('^'), text.find("99999"), "{report}");
        assert_eq!(marks.trim(), "^^^^^", "{report}");
    }
}

#[test]
fn processors_stand_in_a_list_and_words_alone() {
    let words = "expected processor numbers, or one word alone";
    for (list, why) in [("[off, 1]", words), ("[auto, 0]", words), ("[1, off]", "must be alone")] {
        let told = report(&format!("{POOL_TEXT}global:\n  worker_cpu_affinity: {list}\n"));
        assert!(told.contains(why), "{list}: {told}");
    }
}

#[test]
fn a_sockets_path_is_as_long_as_its_address_has_room_for() {
    let path = format!("/{}", "s".repeat(106));
    let listening_at =
        |path: &str| report(&format!("p:\n  listen: {path}\n  servers: [127.0.0.1:11211:1]\n"));
    assert_eq!(listening_at(&path), "");
    let told = listening_at(&(path + "s"));
    assert!(told.contains("a socket's path has at most 107 bytes; this one has 108"), "{told}");
}

#[test]
fn a_commands_name_is_one_visible_word() {
    let long = "c".repeat(300);
    for name in ["''", "'a b'", "\"a\\tb\"", "'\u{e4}'", &long] {
        let told =
            told(&format!("protocol: redis\n  commands: {{{name}: {{key: 1, access: read}}}}"));
        assert!(told.contains("a command's name is one word"), "{name}: {told}");
    }
    let told = told("protocol: redis\n  commands: {a.b: {key: 1, access: read}}");
    assert_eq!(told, "");
}

#[test]
fn a_file_is_a_configuration_up_to_sixteen_mebibytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.yml");
    for (more, is_read) in [(0, true), (1, false)] {
        fs::write(&path, vec![b'#'; (16 << 20) + more]).unwrap();
        let read = read_bytes(&path, &mut Vec::new());
        assert_eq!(read.is_ok(), is_read, "{more} bytes more");
        assert!(read.map_or(0, |bytes| bytes.len()) <= 16 << 20);
    }
}
