//! One link that ends, or brings a reply that cannot be used: what that costs those who share it.

use rustix::process::Signal;
use testkit::process::{Family, Redis, Speaker, freeze, send};
use testkit::wire::resp::Reply;

use super::model::{Model, Turn};
use super::{quickack, with_workers};
use crate::harness;

/// The worker finds both in one turn, the request first or the end first.
#[test]
fn a_change_that_meets_the_end_of_an_idle_link_is_done_once() {
    let redis = Redis::start(Family::Redis70);
    let quickack = with_workers(1, &[redis.address], &[]);
    let mut client = Speaker::connect(quickack.address());
    let mut direct = Speaker::connect(redis.address);
    assert_eq!(client.say("INCR n"), Reply::Integer(1));
    let worker = harness::workers(&quickack)[&0].pid;
    for round in 0..40 {
        freeze(worker);
        if round % 2 == 0 {
            client.send(b"INCR n\r\n");
        }
        assert_eq!(direct.say("CLIENT KILL TYPE normal"), Reply::Integer(1), "the only link");
        if round % 2 == 1 {
            client.send(b"INCR n\r\n");
        }
        send(worker, Signal::CONT);
        assert_eq!(client.reply(), Ok(Reply::Integer(round + 2)));
    }
}

/// Kvrocks and ElastiCache Serverless give such cursors.
#[test]
fn a_cursor_of_any_form_passes_before_one_server_and_is_an_error_before_several() {
    const FORMS: [&str; 4] =
        ["18014398509481984", "18446744073709551615", "_key", "99999999999999999999"];
    let model = || {
        Model::start(|words| {
            let mut words = words.split(' ');
            match (words.next(), words.next()) {
                (Some("scan"), Some("0")) => list(FORMS[0]),
                (Some("scan"), Some(cursor)) => {
                    let at = FORMS.iter().position(|form| *form == cursor);
                    at.map_or_else(|| list("0"), |at| list(FORMS.get(at + 1).unwrap_or(&"0")))
                }
                _ => Turn::Say(b"+OK\r\n".to_vec()),
            }
        })
    };
    let models = [model(), model()];
    let alone = quickack(&[models[0].address], &[]);
    let mut client = Speaker::connect(alone.address());
    let mut cursor = "0".to_string();
    for next in FORMS.iter().chain(&["0"]) {
        let reply = client.say(&format!("SCAN {cursor}"));
        let key = Reply::Array(vec![Reply::Bulk("k".into())]);
        assert_eq!(reply, Reply::Array(vec![Reply::Bulk((*next).into()), key]));
        cursor = (*next).to_string();
    }
    let several = quickack(&[models[0].address, models[1].address], &[]);
    let (mut client, mut other) =
        (Speaker::connect(several.address()), Speaker::connect(several.address()));
    for _ in 0..20 {
        client.send(b"SCAN 0\r\nSET k 1\r\n");
        other.send(b"SET k 2\r\n");
        let refused = client.reply().expect("an answer");
        assert!(refused.error().contains("is no number below 2^54"), "{refused:?}");
        let done = Ok(Reply::Simple("OK".into()));
        assert_eq!((client.reply(), other.reply()), (done.clone(), done));
    }
}

fn list(cursor: &str) -> Turn {
    Turn::Say(format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len()).into_bytes())
}

/// The reply may be another request's, so its link ends. The next link is believed.
#[test]
fn a_reply_of_another_shape_costs_no_other_client_its_server() {
    let model = Model::start(|words| match words.split(' ').next() {
        Some("scan") => Turn::Say(b":1\r\n".to_vec()),
        Some("mget") => Turn::Say(b"*-1\r\n".to_vec()),
        Some("get") => Turn::Say(b"$1\r\nv\r\n".to_vec()),
        _ => Turn::Say(b"+OK\r\n".to_vec()),
    });
    let other = Model::start(|_| Turn::Say(b"$1\r\nv\r\n".to_vec()));
    for servers in [vec![model.address], vec![model.address, other.address]] {
        let eject = ["auto_eject_hosts: true", "server_failure_limit: 1"];
        let quickack = quickack(&servers, &eject);
        let mut quiet = Speaker::connect(quickack.address());
        let mut loud = Speaker::connect(quickack.address());
        for _ in 0..50 {
            loud.send(b"MGET a b\r\n");
            if servers.len() > 1 {
                loud.send(b"SCAN 0\r\n");
            }
            for key in ["a", "b", "c", "d"] {
                let reply = quiet.say(&format!("GET {key}"));
                assert_eq!(reply, Reply::Bulk("v".into()), "{key}");
            }
            for _ in 0..servers.len() {
                let reply = loud.reply().expect("an answer");
                assert!(reply.error().contains("unexpected reply"), "{reply:?}");
            }
        }
        let stats = quickack.admin_ok(&["servers"]);
        assert!(!stats.contains("ejected") && !stats.contains("down"), "{stats}");
    }
}
