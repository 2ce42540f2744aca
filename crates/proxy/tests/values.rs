//! Stories of reads: quiet ones that are joined, and large values on their way.

mod stage;

use proxy::Closed;

use stage::Stage;

/// A packet of the binary protocol: GETKQ with this opaque.
fn getkq(key: &str, opaque: u8) -> Vec<u8> {
    let len = key.len() as u8;
    let header = [0x80, 0x0d, 0, len, 0, 0, 0, 0, 0, 0, 0, len, 0, 0, 0, opaque];
    [&header[..], &[0; 8], key.as_bytes()].concat()
}

fn noop(opaque: u8) -> Vec<u8> {
    [&[0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, opaque][..], &[0; 8]].concat()
}

/// What answers them: opcode, opaque, status, and what follows the header.
fn packets(mut bytes: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(24) {
        let (body, rest) = rest.split_at(usize::from(header[11]));
        found.push((header[1], header[15], header[7], body.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    found
}

#[test]
fn quiet_reads_that_come_together_are_one_read_and_each_has_its_own_answer() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let asked = [getkq("x", 1), getkq("y", 2), getkq("x", 3), noop(4)].concat();
    stage.says_bytes(client, &asked);
    stage.expect_rows(2);
    assert_eq!(stage.turn(link), "gets x y x\r\n");
    stage.says(link, "VALUE x 0 1 7\r\n1\r\nVALUE x 0 1 7\r\n1\r\nEND\r\n");
    let hit = b"\0\0\0\0x1".to_vec();
    let answers = packets(&stage.hears_bytes(client));
    assert_eq!(answers, [(0x0d, 1, 0, hit.clone()), (0x0d, 3, 0, hit), (0x0a, 4, 0, vec![])]);
    stage.expect_rows(0);
}

#[test]
fn an_error_for_joined_reads_is_told_to_each_that_has_no_answer() {
    let (mut stage, link) = Stage::of_one();
    stage.greet(link);
    let client = stage.client();
    // The last packet is not whole: it is another request.
    let asked = [getkq("x", 1), getkq("y", 2), getkq("z", 3)].concat();
    stage.says_bytes(client, &asked[..asked.len() - 1]);
    stage.expect_rows(1);
    stage.says_bytes(client, &asked[asked.len() - 1..]);
    stage.says_bytes(client, &noop(4));
    assert_eq!(stage.turn(link), "gets x y z\r\n");
    stage.says(link, "SERVER_ERROR no\r\n");
    assert_eq!(stage.turn(link), "gets x\r\ngets y\r\ngets z\r\n");
    stage.says(link, "VALUE x 0 1 7\r\n1\r\nEND\r\nSERVER_ERROR no\r\n");
    assert!(stage.hears_bytes(client).is_empty(), "one of the joined is outstanding");
    stage.says(link, "END\r\n");
    let answers = packets(&stage.hears_bytes(client));
    assert_eq!(answers[0], (0x0d, 1, 0, b"\0\0\0\0x1".to_vec()));
    assert_eq!(answers[1], (0x0d, 2, 0x84, b"no".to_vec()));
    assert_eq!(answers[2].0, 0x0a);
    stage.says_bytes(client, &asked);
    stage.end_turn();
    stage.closes(link, Closed::Reset);
    stage.expect_rows(0);
    let answers = packets(&stage.hears_bytes(client));
    let told: Vec<(u8, u8)> = answers.iter().map(|answer| (answer.1, answer.2)).collect();
    assert_eq!(told, [(1, 0x86), (2, 0x86), (3, 0x86)]);
}
