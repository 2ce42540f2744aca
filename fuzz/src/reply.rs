//! Tests the reply parser alone: any bytes from a server, in reply to any request.

use proto::{Ask, Class, Item, ItemKind, PROTOCOLS, Parsed, Progress};

use crate::mutate::{self, Dice};

pub fn run(seed: u64, budget: usize) {
    mutate::run("reply", seed, budget, |bytes, dice| {
        for ask in asks() {
            check(ask, bytes, dice);
        }
    });
}

/// Returns all kinds of requests to a server, by their rows in the table of the server's protocol.
/// Two that no client can send follow the last row.
pub fn asks() -> impl Iterator<Item = Ask> {
    let rows = PROTOCOLS[0].commands().iter().enumerate();
    rows.filter(|(_, row)| {
        matches!(row.class, Class::Fetch { .. } | Class::Single { .. } | Class::Broadcast { .. })
    })
    .map(|(row, _)| row)
    .chain([PROTOCOLS[0].commands().len(), PROTOCOLS[0].commands().len() + 1])
    .map(|row| Ask { command: row as u16 })
}

fn check(ask: Ask, bytes: &[u8], dice: &mut Dice) {
    let protocol = PROTOCOLS[0];
    let whole = protocol.upstream().parse_reply(ask, &mut Progress::default(), bytes);
    let cut = dice.below(bytes.len() + 1);
    let early = protocol.upstream().parse_reply(ask, &mut Progress::default(), &bytes[..cut]);
    let row = protocol.commands().get(usize::from(ask.command));
    let lists = ["stats", "stats detail dump", "stats cachedump"];
    let may_come_in_pieces = row.is_some_and(|row| lists.contains(&row.name));
    let is_piece = matches!(early, Parsed::Complete(Item { kind: ItemKind::Part, .. }));
    assert!(
        early == Parsed::Incomplete || early == whole || may_come_in_pieces && is_piece,
        "settled by {cut} bytes: {early:?}"
    );
    let Parsed::Complete(item) = whole else { return };
    let head = item.head as usize;
    assert!(head > 1 && bytes[..head].ends_with(b"\r\n"), "a head is a whole line");
    assert_eq!(
        protocol.upstream().parse_reply(ask, &mut Progress::default(), &bytes[..head]),
        whole,
        "nothing past the head counts"
    );
    let fetch = row.is_some_and(|row| matches!(row.class, Class::Fetch { .. }));
    match item.kind {
        ItemKind::Value => {
            assert!(fetch, "a value answers only a read");
            let key = item.key.of(&bytes[..head]);
            assert!(!key.is_empty() && !key.contains(&b' '));
            assert_eq!(item.trailer, b"\r\n");
        }
        ItemKind::End => assert!(fetch, "an end ends only a read"),
        ItemKind::Status => assert!(!fetch, "a status answers no read"),
        ItemKind::Error => assert_eq!(item.len(), head as u64),
        ItemKind::Part => assert!(may_come_in_pieces, "one reply, one item"),
    }
}
