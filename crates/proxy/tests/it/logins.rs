//! Stories of logins: clients of a pool with users, and a pool whose servers require a login.

use std::rc::Rc;

use metrics::{PoolCounter, ServerCounter};
use proto::Credentials;
use proxy::limits::{LOGIN_LEN_MAX, LOGIN_WAIT_US, MISTAKES_MAX};
use proxy::tenants::plan::RemovedUsers;
use proxy::users::Users;
use proxy::{Event, Passed, Report};

use crate::stage::resp::request as resp;
use crate::stage::{POOL, S0, SECOND, Stage};

const FIRST: &str = "CLIENT_ERROR unauthenticated\r\n";
const FAILED: &str = "CLIENT_ERROR authentication failure\r\n";
const ANNA: &str = "set any 0 0 8\r\nanna new\r\n";

fn users() -> Option<Rc<Users>> {
    let pairs = [("anna", "old"), ("anna", "new"), ("bob", "two words")];
    Some(Rc::new(Users::new(pairs).expect("short ones")))
}

fn guarded() -> Stage {
    Stage::new(&["s0"], |pool| pool.users = users())
}

#[test]
fn before_a_login_nothing_is_asked_of_a_server_and_nothing_else_answered() {
    let mut stage = guarded();
    for request in [
        "get a\r\n",
        "get a b c\r\n",
        "version\r\n",
        "stats\r\n",
        "nonsense\r\n",
        "set a 0 0 1 noreply\r\n",
        "delete a noreply\r\n",
        "incr a 1\r\n",
        "flush_all\r\n",
    ] {
        let client = stage.client();
        let body = if request.starts_with("set") { "x\r\n" } else { "" };
        let told = if request.starts_with("set") { FAILED } else { FIRST };
        stage.says(client, &format!("{request}{body}"));
        assert_eq!(stage.received(client), told, "{request}");
        stage.closes(client, proxy::Closed::Reset);
    }
    assert_eq!(stage.connects, []);
    stage.expect_rows(0);
}

#[test]
fn a_login_is_taken_in_pieces_and_what_comes_with_it_is_served() {
    let mut stage = guarded();
    let client = stage.client();
    for piece in ["se", "t x 0 0 8\r", "\nan", "na old\r"] {
        stage.says(client, piece);
        assert_eq!(stage.received(client), "");
    }
    assert_eq!(stage.flushes.len(), 4, "whoever waits for our ACK gets it");
    stage.says(client, "\nget a\r\nversion\r\n");
    assert_eq!(stage.received(client), "STORED\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    assert!(stage.received(client).starts_with("END\r\nVERSION "));
    // From now on a `set` is a change like any other.
    stage.says(client, "set x 0 0 8\r\nanna old\r\n");
    assert_eq!(stage.turn(link), "set x 0 0 8\r\nanna old\r\n");
    assert_eq!(stage.registry.metrics(0).total(POOL, PoolCounter::Logins), 1);
}

#[test]
fn any_cut_of_a_login_gives_the_same_answers() {
    let text = "nonsense\r\nset x 0 0 6\r\nbob no\r\nset x 0 0 8\r\nanna new\r\nnonsense\r\n";
    let answers = [FIRST, FAILED, "STORED\r\n", "ERROR\r\n"].concat();
    for cut in 0..text.len() {
        for next in cut..text.len() {
            let mut stage = guarded();
            let client = stage.client();
            for piece in [&text[..cut], &text[cut..next], &text[next..]] {
                stage.says(client, piece);
            }
            passes(&mut stage, TURN);
            assert_eq!(stage.received(client), answers, "cut at {cut} and {next}");
        }
    }
}

#[test]
fn every_password_of_a_name_is_taken_and_noreply_does_not_silence_the_answer() {
    for (login, answer) in [
        ("set x 0 0 8\r\nanna old\r\n", "STORED\r\n"),
        ("set x 0 -1 8\r\nanna new\r\n", "STORED\r\n"),
        ("set x 0 0 8 noreply\r\nanna new\r\n", "STORED\r\n"),
        ("set x 0 0 13\r\nbob two words\r\n", "STORED\r\n"),
        ("set x 0 0 8 noreply\r\nanna odd\r\n", FAILED),
        ("set x 0 0 7\r\nanna ol\r\n", FAILED),
        ("set x 0 0 4\r\nanna\r\n", FAILED),
        ("set x 0 0 0\r\n\r\n", FAILED),
        ("set x 0 0 8\r\nanna newxx", FAILED),
        ("add x 0 0 8\r\nanna new\r\n", FIRST),
    ] {
        let mut stage = guarded();
        let client = stage.client();
        stage.says(client, login);
        assert_eq!(stage.received(client), answer, "{login}");
    }
}

/// The brake is the time between two looks at a password, not the end of the connection.
#[test]
fn tries_are_counted_and_told_of_and_the_connection_stays() {
    const TRIES: usize = MISTAKES_MAX as usize + 3;
    let mut stage = guarded();
    let client = stage.client();
    let wrong = "set x 0 0 6\r\nbob no\r\n".repeat(TRIES);
    stage.says(client, &format!("{}{wrong}{ANNA}", "get x\r\n".repeat(9)));
    (0..TRIES).for_each(|_| passes(&mut stage, TURN));
    let answers = [FIRST.repeat(9), FAILED.repeat(TRIES), STORED.into()].concat();
    assert_eq!(stage.received(client), answers);
    assert_eq!(stage.closed, []);
    let failed = |stage: &Stage| stage.registry.metrics(0).total(POOL, PoolCounter::LoginsFailed);
    assert_eq!(failed(&stage), TRIES as u64);
    // Each failure is reported with its client. Their number is reported at most once a second, and
    // without another failure.
    let told = |stage: &Stage| {
        let counts = stage.events.iter().filter_map(|event| match event {
            Event::LoginsFailed { pool: POOL, count } => Some(*count),
            _ => None,
        });
        counts.collect::<Vec<u64>>()
    };
    let failed_of =
        |client| Event::LoginFailed { pool: POOL, client, name: "bob".to_string(), is_known: true };
    assert_eq!(stage.events[0], failed_of(client));
    assert_eq!(told(&stage), [1]);
    let other = stage.client();
    stage.says(other, "set x 0 0 6\r\nbob no\r\n");
    passes(&mut stage, TURN);
    assert_eq!(stage.events.last(), Some(&failed_of(other)));
    assert_eq!(told(&stage), [1]);
    stage.passes(SECOND);
    assert_eq!(told(&stage), [1, TRIES as u64]);
    // A second without failures ends that: the next failure is reported at once.
    stage.passes(SECOND);
    stage.says(other, "set x 0 0 6\r\nbob no\r\n");
    assert_eq!(told(&stage), [1, TRIES as u64, 1]);
    // Mistakes after a login are not counted.
    stage.says(other, &format!("{ANNA}{}", "nonsense\r\n".repeat(9)));
    passes(&mut stage, TURN);
    assert!(stage.received(other).ends_with(&"ERROR\r\n".repeat(9)));
    assert_eq!(stage.closed, []);
}

#[test]
fn what_is_too_long_for_a_login_is_not_kept() {
    let mut stage = guarded();
    for text in [
        format!("set x 0 0 {}\r\nanna new", 1 << 20),
        format!("get {}\r\n", "k ".repeat(LOGIN_LEN_MAX)),
        format!("set x 0 0 8{}", " ".repeat(LOGIN_LEN_MAX)),
        "set x 0 0 many\r\n".to_string(),
    ] {
        let client = stage.client();
        stage.says(client, &text);
        assert_eq!(stage.received(client), FIRST, "{text}");
        assert_eq!(stage.closed.pop(), Some(client), "{text}");
    }
    assert_eq!(stage.connects, []);
}

/// SASL PLAIN in the binary protocol.
fn sasl(name: &str, password: &str) -> Vec<u8> {
    let text = format!("PLAIN\0{name}\0{password}");
    let header = [0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, text.len() as u8];
    [&header[..], &[0; 12], text.as_bytes()].concat()
}

/// As in memcached, a client whose second login fails is logged out.
#[test]
fn a_failed_login_takes_an_earlier_one_away() {
    const GET: &[u8] = b"\x80\x00\x00\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0x";
    let status = |bytes: Vec<u8>| u16::from_be_bytes([bytes[6], bytes[7]]);
    let mut stage = guarded();
    let client = stage.client();
    stage.says_bytes(client, &sasl("anna", "new"));
    assert_eq!(status(stage.received_bytes(client)), 0);
    stage.says_bytes(client, GET);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "gets x\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(status(stage.received_bytes(client)), 1, "not found");
    stage.says_bytes(client, &sasl("anna", "odd"));
    assert_eq!(status(stage.received_bytes(client)), 0x20, "authentication error");
    stage.says_bytes(client, GET);
    assert_eq!(status(stage.received_bytes(client)), 0x20, "and nobody any more");
    assert_eq!(stage.turn(link), "");
}

/// It is too long to be one. A client that is logged in is told so, and its data is skipped.
#[test]
fn a_second_login_that_is_too_long_is_a_request_like_any_other() {
    const NOOP: &[u8] = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\0";
    let mut stage = guarded();
    let client = stage.client();
    stage.says_bytes(client, &sasl("anna", "new"));
    stage.received_bytes(client);
    let len = (LOGIN_LEN_MAX as u32).to_be_bytes();
    let header = [&[0x80, 0x21, 0, 5, 0, 0, 0, 0][..], &len, &[0; 12]].concat();
    let long = [&header[..], b"PLAIN", &NOOP.repeat(LOGIN_LEN_MAX)[..LOGIN_LEN_MAX - 5]].concat();
    stage.says_bytes(client, &[&long[..], NOOP].concat());
    let told = stage.received_bytes(client);
    let len = 24 + u32::from_be_bytes([told[8], told[9], told[10], told[11]]) as usize;
    assert_eq!((told[1], told[6..8] == [0, 0]), (0x21, false), "it failed");
    assert_eq!((told[len + 1], told[len + 15], told.len()), (0x0a, 9, len + 24), "{told:?}");
    assert_eq!(stage.closed, []);
}

#[test]
fn who_leaves_before_a_login_is_told_nothing() {
    let mut stage = guarded();
    let client = stage.client();
    stage.says(client, "quit\r\n");
    assert_eq!((stage.received(client), &*stage.closed), (String::new(), &[client][..]));
}

#[test]
fn who_is_logged_in_stays_so_whatever_becomes_of_the_users() {
    let mut stage = guarded();
    stage.install(|plan| plan.removed_users = RemovedUsers::Keep);
    let (known, stranger) = (stage.client(), stage.client());
    stage.says(known, ANNA);
    assert_eq!(stage.received(known), "STORED\r\n");
    let none = || Some(Rc::new(Users::new([("carl", "x")]).unwrap()));
    stage.install(|plan| plan.pools[0].users = none());
    stage.says(known, "nonsense\r\n");
    assert_eq!(stage.received(known), "ERROR\r\n");
    stage.says(stranger, ANNA);
    assert_eq!(stage.received(stranger), FAILED);
    // Without users, no client has to log in. With them again, every client has to that has not.
    stage.install(|plan| plan.pools[0].users = None);
    stage.says(stranger, "nonsense\r\n");
    assert_eq!(stage.received(stranger), "ERROR\r\n");
    stage.install(|plan| plan.pools[0].users = users());
    stage.says(stranger, "nonsense\r\n");
    assert_eq!(stage.received(stranger), FIRST);
}

#[test]
fn a_login_goes_with_its_client_to_another_worker() {
    let mut stage = guarded();
    let (known, stranger, _silent) = (stage.client(), stage.client(), stage.client());
    stage.says(known, ANNA);
    assert_eq!(stage.received(known), "STORED\r\n");
    stage.says(stranger, WRONG);
    assert_eq!(stage.received(stranger), FAILED);
    let passed = |protocol, logged_in, failed_logins| Passed {
        pool: POOL,
        protocol,
        logged_in,
        user: logged_in.then(|| "anna".to_string()),
        failed_logins,
        session: proto::Session::default(),
        tally: proxy::Tally::default(),
    };
    let all = [passed(Some(0), true, 0), passed(Some(0), false, 1), passed(None, false, 0)];
    let without_tally = |client| Passed { tally: proxy::Tally::default(), ..client };
    let gone: Vec<Passed> = stage.passed().into_iter().map(without_tally).collect();
    assert_eq!(gone, all);
    let [known, stranger, silent] = all.map(|client| stage.adopt(client));
    stage.says(known, "nonsense\r\n");
    assert_eq!(stage.received(known), "ERROR\r\n");
    stage.says(silent, "nonsense\r\n");
    assert_eq!(stage.received(silent), FIRST);
    // A client that began in text stays with it.
    stage.says(stranger, &"\u{80}\r\n".repeat(9));
    assert_eq!(stage.received(stranger), FIRST.repeat(9));
    assert_eq!(stage.closed, []);
}

/// A login waits for one that was wrong before it, and a random time so that workers take turns.
const TURN: u64 = 105_000;
const WRONG: &str = "set x 0 0 8\r\nanna odd\r\n";
const STORED: &str = "STORED\r\n";
const LATE: &str = "SERVER_ERROR too many wrong logins from this address or for this name: \
                    try again later\r\n";

fn passes(stage: &mut Stage, time: u64) {
    stage.passes(time);
    stage.end_turn();
    while stage.wants_turn() {
        stage.end_turn();
    }
}

fn count(stage: &Stage, counter: PoolCounter) -> u64 {
    stage.registry.total(POOL, counter)
}

/// As `guarded`, of Redis.
fn guarded_redis() -> Stage {
    Stage::new(&["s0"], |pool| {
        pool.protocol = proto::protocol("redis").expect("the table has it");
        pool.users = users();
    })
}

/// As `guarded`, with room for many clients.
fn crowded() -> Stage {
    Stage::of(&["s0"], |plan| {
        plan.clients_max = 999;
        plan.pools[0].users = users();
    })
}

/// From fifty connections, each of which tries again as soon as it is answered.
#[test]
fn a_guesser_has_ten_tries_a_second_and_others_hardly_wait() {
    let mut stage = crowded();
    let guessers: Vec<_> = (0..50).map(|_| stage.client()).collect();
    guessers.iter().for_each(|client| stage.says(*client, &WRONG.repeat(9)));
    let mut evaluated = vec![count(&stage, PoolCounter::LoginsFailed)];
    let mut friend = None;
    for at in 0..5_000 {
        passes(&mut stage, 1_000);
        evaluated.push(count(&stage, PoolCounter::LoginsFailed));
        // The same name from another address has to wait for one of them at most.
        if at % 500 == 300 {
            stage.address = [2; 16];
            let client = stage.client();
            stage.says(client, ANNA);
            friend = Some(client);
            stage.address = [1; 16];
        }
        if at % 500 == 312 {
            let client = friend.take().expect("it came");
            assert_eq!(stage.received(client), STORED);
            stage.closes(client, proxy::Closed::Reset);
        }
    }
    assert!(evaluated.windows(1_001).all(|second| second[1_000] - second[0] <= 10));
    assert!(evaluated[5_000] >= 45, "but for a random time after each, it is ten");
}

/// Whoever shares an address with a guesser has its turn when those before it have had theirs, and
/// before those that have guessed wrong already.
#[test]
fn a_right_login_beside_guessers_comes_in_its_turn() {
    let mut stage = crowded();
    let guessers: Vec<_> = (0..3).map(|_| stage.client()).collect();
    guessers.iter().for_each(|client| stage.says(*client, &WRONG.repeat(4)));
    let friend = stage.client();
    stage.says(friend, ANNA);
    let turns = (1..).find(|_| {
        passes(&mut stage, TURN);
        stage.received(friend) == STORED
    });
    assert_eq!(turns, Some(3), "each of the three has had one");
    let failed = count(&stage, PoolCounter::LoginsFailed);
    assert_eq!(failed, 4, "a right login leaves its turn to the next");
}

#[test]
fn right_logins_from_one_address_do_not_wait_for_each_other() {
    let mut stage = crowded();
    let mut fleet: Vec<_> = (0..300).map(|_| stage.client()).collect();
    fleet.iter().for_each(|client| stage.says(*client, ANNA));
    fleet.iter().for_each(|client| assert_eq!(stage.received(*client), STORED));
    assert_eq!(count(&stage, PoolCounter::LoginsDelayed), 0);
    // One mistake delays those behind it once, all together.
    fleet = (0..300).map(|_| stage.client()).collect();
    stage.says(fleet[0], WRONG);
    fleet[1..].iter().for_each(|client| stage.says(*client, ANNA));
    assert_eq!(stage.received(fleet[1]), "");
    passes(&mut stage, TURN);
    fleet[1..].iter().for_each(|client| assert_eq!(stage.received(*client), STORED));
    assert_eq!(count(&stage, PoolCounter::LoginsDelayed), 299);
    assert_eq!(count(&stage, PoolCounter::Logins), 599);
}

/// A worker that looks at a right login has the word for a moment.
#[test]
fn a_right_login_at_another_worker_does_not_take_a_turn() {
    let mut stage = guarded();
    let other = stage.registry.metrics(1).logins();
    let places = other.places(&[&[1; 8][..], &[0; 8]].concat(), b"bob");
    let token = other.take(places, SECOND).expect("nobody has made a mistake");
    let client = stage.client();
    stage.says(client, ANNA);
    assert_eq!(stage.received(client), "");
    other.give_back(token);
    passes(&mut stage, 1_000);
    assert_eq!(stage.received(client), STORED);
}

/// Another worker is always faster.
#[test]
fn a_login_that_has_waited_for_too_long_is_refused_and_not_looked_at() {
    let mut stage = guarded();
    let client = stage.client();
    stage.says(client, WRONG);
    assert_eq!(stage.received(client), FAILED);
    stage.says(client, &format!("{ANNA}nonsense\r\n"));
    let other = stage.registry.metrics(1).logins();
    let places = other.places(&[&[1; 8][..], &[0; 8]].concat(), b"anna");
    let mut now = SECOND;
    while now < SECOND + LOGIN_WAIT_US {
        assert_eq!(stage.received(client), "");
        now += 1_000;
        let _ = other.take(places, now);
        passes(&mut stage, 1_000);
    }
    // The timer of its line finds it.
    passes(&mut stage, TURN);
    assert_eq!(stage.received(client), format!("{LATE}{FIRST}"));
    assert_eq!(count(&stage, PoolCounter::LoginsRefused), 1);
    passes(&mut stage, SECOND);
    stage.says(client, ANNA);
    assert_eq!(stage.received(client), STORED, "the connection is as good as before");
    assert_eq!(count(&stage, PoolCounter::LoginsFailed), 1);
}

#[test]
fn a_client_that_leaves_while_it_waits_makes_room_for_the_next() {
    for how in [proxy::Closed::Reset, proxy::Closed::Eof] {
        let mut stage = guarded();
        let [first, second, third] = [(); 3].map(|()| stage.client());
        stage.says(first, WRONG);
        stage.says(second, WRONG);
        stage.says(third, ANNA);
        stage.closes(second, how);
        passes(&mut stage, 0);
        if how == proxy::Closed::Eof {
            // One that only says nothing more is told.
            assert_eq!(stage.received(second), LATE);
            assert_eq!(stage.closed, [second]);
        }
        passes(&mut stage, TURN);
        assert_eq!(stage.received(third), STORED);
        assert_eq!(count(&stage, PoolCounter::LoginsFailed), 1);
    }
}

#[test]
fn a_drain_does_not_wait_for_logins_that_wait() {
    let mut stage = guarded();
    let (first, second) = (stage.client(), stage.client());
    stage.says(first, WRONG);
    stage.says(second, ANNA);
    assert_eq!(stage.received(first), FAILED);
    stage.drain();
    stage.end_turn();
    assert_eq!(stage.received(second), LATE);
    assert!(stage.is_drained());
}

/// It has a login waiting at any time, and could not be handed over otherwise.
#[test]
fn a_guesser_does_not_keep_a_worker_from_handing_its_clients_over() {
    let mut stage = guarded();
    let (guesser, friend) = (stage.client(), stage.client());
    stage.says(guesser, &WRONG.repeat(4));
    stage.says(friend, ANNA);
    for _ in 0..3 {
        assert_eq!(stage.hand_over(), []);
        passes(&mut stage, 0);
    }
    assert_eq!(stage.received(guesser), format!("{FAILED}{}", LATE.repeat(3)));
    assert_eq!(stage.hand_over(), [guesser]);
    // A client without mistakes has its turn first.
    passes(&mut stage, TURN);
    assert_eq!(stage.received(friend), STORED);
    assert_eq!(stage.hand_over(), [friend]);
}

#[test]
fn a_guesser_that_goes_on_is_closed_when_its_worker_hands_its_clients_over() {
    let mut stage = guarded();
    let guesser = stage.client();
    stage.says(guesser, &WRONG.repeat(99));
    for _ in 1..MISTAKES_MAX {
        assert_eq!((stage.hand_over(), &stage.closed[..]), (Vec::new(), &[][..]));
        passes(&mut stage, 0);
    }
    assert_eq!(stage.hand_over(), []);
    stage.end_turn();
    let late = LATE.repeat(usize::from(MISTAKES_MAX) - 1);
    assert_eq!(stage.received(guesser), format!("{FAILED}{late}"));
    assert_eq!(stage.closed, [guesser]);
}

/// It would have a place before those that have made fewer.
#[test]
fn a_login_of_ones_own_does_not_make_up_for_mistakes() {
    let mut stage = guarded();
    let guesser = stage.client();
    stage.says(guesser, &[&WRONG.repeat(3), ANNA].concat());
    for _ in 0..4 {
        passes(&mut stage, TURN);
    }
    assert_eq!(stage.received(guesser), [&FAILED.repeat(3), STORED].concat());
    let (other, friend) = (stage.client(), stage.client());
    stage.says(other, WRONG);
    passes(&mut stage, TURN);
    assert_eq!(stage.received(other), FAILED);
    stage.says(guesser, WRONG);
    stage.says(friend, ANNA);
    passes(&mut stage, TURN);
    assert_eq!((stage.received(guesser), stage.received(friend)), (String::new(), STORED.into()));
}

/// A name is shown as it may be printed, and not at all if no password came with it: then it may be
/// one.
#[test]
fn the_name_of_a_failed_login_is_told_and_no_password() {
    let long = "n".repeat(99);
    for (login, shown) in [
        ("anna odd", "anna"),
        ("an\nna\x1b odd", "an\\nna\\x1b"),
        (&*format!("{long} odd"), &long[..64]),
        ("secret", ""),
        ("secret ", ""),
    ] {
        let mut stage = guarded();
        let client = stage.client();
        stage.says(client, &format!("set x 0 0 {}\r\n{login}\r\n", login.len()));
        assert_eq!(stage.received(client), FAILED);
        let name = shown.to_string();
        let is_known = shown == "anna";
        assert_eq!(stage.events[0], Event::LoginFailed { pool: POOL, client, name, is_known });
    }
}

#[test]
fn a_redis_client_that_waited_keeps_its_reply_mode_and_its_login() {
    let mut stage = guarded_redis();
    let client = stage.client();
    stage.says(client, "AUTH anna odd\r\nAUTH anna new\r\n");
    assert!(stage.received(client).starts_with("-WRONGPASS "));
    passes(&mut stage, TURN);
    assert_eq!(stage.received(client), "+OK\r\n");
    stage.says(client, "AUTH bob odd\r\nCLIENT REPLY SKIP\r\nAUTH anna old\r\nECHO hi\r\n");
    assert!(stage.received(client).starts_with("-WRONGPASS "));
    passes(&mut stage, TURN);
    assert!(stage.received(client).ends_with("$2\r\nhi\r\n"));
}

#[test]
fn a_password_that_is_too_long_to_be_looked_at_is_no_guess() {
    let mut stage = guarded_redis();
    let client = stage.client();
    stage.says(client, &format!("AUTH anna new\r\n{}", resp("HELLO 3 AUTH anna LONG")));
    stage.received(client);
    let long = resp(&format!("AUTH anna {}", "x".repeat(LOGIN_LEN_MAX)));
    (0..99).for_each(|_| stage.says(client, &long));
    let told = stage.received(client);
    assert_eq!(told.matches("-WRONGPASS ").count(), 99, "{told}");
    assert_eq!(count(&stage, PoolCounter::LoginsRefused), 99);
    assert_eq!(count(&stage, PoolCounter::LoginsFailed), 1);
}

const HELLO: &str = "set quickack:login 0 -1 8\r\nanna old\r\nversion\r\n";

/// A pool that logs in to its server, and a client that has sent a request.
fn proud() -> Stage {
    let (name, password) = ("anna".to_string(), "old".to_string());
    Stage::new(&["s0"], |pool| pool.server_login = Some(Credentials { name, password }))
}

#[test]
fn a_link_says_who_we_are_before_anything_else() {
    let mut stage = proud();
    let client = stage.client();
    stage.says(client, "delete x\r\n");
    let link = stage.establishes_with(HELLO);
    stage.says(link, "STO");
    assert_eq!(stage.turn(link), "");
    stage.says(link, "RED\r\nVERSION 1.6.18\r\n");
    assert_eq!(stage.turn(link), "delete x\r\n");
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.received(client), "DELETED\r\n");
}

#[test]
fn a_server_that_refuses_our_login_is_down_and_is_sent_nothing() {
    for refusal in [FAILED, FIRST, &format!("{FAILED}{FIRST}")] {
        let mut stage = proud();
        let client = stage.client();
        stage.says(client, "delete x\r\n");
        let link = stage.establishes_with(HELLO);
        stage.says(link, refusal);
        assert_eq!(stage.closed, [link]);
        let words = refusal.split("\r\n").next().expect("a line");
        assert_eq!(stage.received(client), format!("SERVER_ERROR s0: login refused: {words}\r\n"));
        let why = format!("login refused: {words}");
        let down = Event::ServerDown { server: S0, why: why.clone().into(), errno: None };
        assert_eq!(stage.events, [down]);
        let report = Report::Failed { server: S0, failures: 1, why: why.clone().into() };
        assert_eq!(stage.reports, [report]);
        stage.says(client, "get k\r\n");
        let told = format!("SERVER_ERROR s0: down, waiting for it to come back ({why})\r\n");
        assert_eq!(stage.received(client), told);
        // The file was corrected: the next probe sends the new password.
        stage.install(|plan| {
            let (name, password) = ("anna".to_string(), "new".to_string());
            plan.pools[0].server_login = Some(Credentials { name, password });
        });
        stage.passes(SECOND);
        let probe = stage.establishes_with("set quickack:login 0 -1 8\r\nanna new\r\nversion\r\n");
        stage.says(probe, "STORED\r\nVERSION 1.6.18\r\n");
        assert_eq!(stage.events[1], Event::ServerBack { server: S0 });
    }
}

/// The password was changed at the server: those who have logged in go on.
#[test]
fn a_login_that_is_refused_to_one_worker_says_nothing_of_the_links_of_another() {
    let mut stage = proud();
    stage.registry.metrics(1).counters(S0).set(ServerCounter::LinksNow, 1);
    let client = stage.client();
    let told = format!("SERVER_ERROR s0: login refused: {FAILED}");
    for begins in [true, false] {
        stage.says(client, "delete x\r\n");
        if begins {
            let link = stage.establishes_with(HELLO);
            stage.says(link, FAILED);
        }
        assert_eq!(stage.received(client), told);
        assert_eq!(stage.connects, [], "the next attempt comes after a pause");
    }
    assert_eq!((stage.healths(), stage.reports.len()), (vec!["s0 ready".to_string()], 0));
}

#[test]
fn a_server_that_wants_a_login_that_we_have_not_is_down() {
    let mut stage = Stage::new(&["s0"], |_| {});
    let client = stage.client();
    stage.says(client, "get x\r\n");
    let link = stage.establishes_with("version\r\n");
    stage.says(link, FIRST);
    let told = format!("SERVER_ERROR s0: login refused: {FIRST}");
    assert_eq!(stage.received(client), told, "in its own words");
    stage.expect_rows(0);
}
