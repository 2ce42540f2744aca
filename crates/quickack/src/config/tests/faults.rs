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
