//! CLIENT LIST, KILL, UNBLOCK, PAUSE and UNPAUSE: commands about the clients of the proxy, as far
//! as they are the caller's tenant's or pool's. Forms, errors and lines are those of Redis 7.0.

use std::fmt::Write;

use super::super::commands::id;
use super::super::words;
use super::LocalAnswer;
use crate::scan::decimal;
use crate::{AfterLocal, ClientFilter, ClientFlags, ClientLine, Inquiry, Told};

const SYNTAX: &[u8] = b"ERR syntax error";
const NO_CLIENT: &[u8] = b"ERR No such client";
const BAD_ID: &[u8] = b"ERR client-id should be greater than 0";
const BAD_IDS: &[u8] = b"ERR Invalid client ID";
const MANY_IDS: &[u8] = b"ERR CLIENT LIST takes at most 200 IDs through a proxy";
const BAD_AGE: &[u8] = b"ERR maxage is not an integer or out of range";
const BAD_MODE: &[u8] = b"ERR CLIENT PAUSE mode must be WRITE or ALL";
const NO_TIMEOUT: &[u8] = b"ERR timeout is not an integer or out of range";
const NO_INTEGER: &[u8] = b"ERR value is not an integer or out of range";
const BAD_REASON: &[u8] = b"ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
const UNBLOCK_FORM: &[u8] = b"ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. \
    Try CLIENT HELP.";
const NEGATIVE: &[u8] = b"ERR timeout is negative";
/// All of a question fits a message to a worker.
const IDS_MAX: usize = 200;
const WORD_MAX: usize = 256;

/// Returns what all workers are to be asked for a request, which may be wrong.
pub(super) fn read(command: u16, under: &[&[u8]]) -> Result<Option<Inquiry>, Vec<u8>> {
    match command {
        id::CLIENT_LIST => list(under).map(|filter| Some(Inquiry::List(filter))),
        id::CLIENT_KILL => kill(under).map(|filter| Some(Inquiry::Kill(filter))),
        id::CLIENT_UNBLOCK => unblock(under).map(Some),
        _ => Ok(None),
    }
}

fn list(under: &[&[u8]]) -> Result<ClientFilter, Vec<u8>> {
    let everybody = ClientFilter::default();
    match under {
        [] => Ok(everybody),
        [word, kind] if word.eq_ignore_ascii_case(b"type") => {
            Ok(ClientFilter { nobody: !is_kind_of_ours(kind)?, ..everybody })
        }
        [word, ids @ ..] if word.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            if ids.len() > IDS_MAX {
                return Err(MANY_IDS.to_vec());
            }
            let mut filter = everybody;
            for text in ids {
                let number = integer(text).ok_or(BAD_IDS)?;
                filter.ids.extend(u64::try_from(number).ok().filter(|id| *id > 0));
            }
            filter.nobody = filter.ids.is_empty();
            Ok(filter)
        }
        _ => Err(SYNTAX.to_vec()),
    }
}

fn kill(under: &[&[u8]]) -> Result<ClientFilter, Vec<u8>> {
    if let [address] = under {
        let mut filter = ClientFilter::default();
        set_text(&mut filter, address, |filter| &mut filter.from);
        return Ok(filter);
    }
    let mut filter = ClientFilter { not_own: true, ..ClientFilter::default() };
    for option in under.chunks(2) {
        let [name, value] = option else { return Err(SYNTAX.to_vec()) };
        match &name.to_ascii_lowercase()[..] {
            b"id" => {
                let id = integer(value).filter(|id| *id > 0).ok_or(BAD_ID)?;
                filter.ids = vec![id as u64];
            }
            b"type" => filter.nobody = !is_kind_of_ours(value)?,
            b"addr" => set_text(&mut filter, value, |filter| &mut filter.from),
            b"laddr" => set_text(&mut filter, value, |filter| &mut filter.to),
            b"user" => {
                set_text(&mut filter, value, |filter| &mut filter.user);
                if filter.user.is_none() {
                    return Err([b"ERR No such user '", words::shown(value), b"'"].concat());
                }
            }
            b"maxage" => {
                filter.age_min_s = decimal(value, i64::MAX as u64).ok_or(BAD_AGE)?;
            }
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.not_own = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.not_own = false,
            _ => return Err(SYNTAX.to_vec()),
        }
    }
    Ok(filter)
}

fn unblock(under: &[&[u8]]) -> Result<Inquiry, Vec<u8>> {
    let (number, with_error) = match under {
        [number] => (number, false),
        [number, reason] if reason.eq_ignore_ascii_case(b"timeout") => (number, false),
        [number, reason] if reason.eq_ignore_ascii_case(b"error") => (number, true),
        [_, _] => return Err(BAD_REASON.to_vec()),
        _ => return Err(UNBLOCK_FORM.to_vec()),
    };
    let id = integer(number).ok_or(NO_INTEGER)?;
    let ids: Vec<u64> = u64::try_from(id).into_iter().filter(|id| *id > 0).collect();
    let filter = ClientFilter { nobody: ids.is_empty(), ids, ..ClientFilter::default() };
    Ok(Inquiry::Unblock { filter, with_error })
}

/// Sets a text of a filter. One that no client can have means nobody.
fn set_text(
    filter: &mut ClientFilter,
    text: &[u8],
    place: impl FnOnce(&mut ClientFilter) -> &mut Option<String>,
) {
    match std::str::from_utf8(text) {
        Ok(text) if text.len() <= WORD_MAX => *place(filter) = Some(text.to_string()),
        _ => filter.nobody = true,
    }
}

/// Whether clients of this kind come to a proxy; the others are connections between servers.
fn is_kind_of_ours(kind: &[u8]) -> Result<bool, Vec<u8>> {
    match &kind.to_ascii_lowercase()[..] {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err([b"ERR Unknown client type '", words::shown(kind), b"'"].concat()),
    }
}

fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = digits == b"0" && digits.len() == text.len() || !digits.starts_with(b"0");
    let value = decimal(digits, i64::MAX as u64).filter(|_| is_plain)? as i64;
    Some(if digits.len() < text.len() { -value } else { value })
}

impl LocalAnswer<'_> {
    /// Answers a question about clients, which all workers have been asked if it was right.
    pub(super) fn about_clients(&mut self, command: u16, under: &[&[u8]]) -> AfterLocal {
        match command {
            id::CLIENT_PAUSE => return self.pause_clients(under),
            id::CLIENT_UNPAUSE => {
                self.ok();
                return AfterLocal::Unpause;
            }
            _ => {}
        }
        let filter = match read(command, under) {
            Ok(Some(
                Inquiry::List(filter) | Inquiry::Kill(filter) | Inquiry::Unblock { filter, .. },
            )) => filter,
            Ok(None) => unreachable!("row {command} asks no worker"),
            Err(why) => {
                self.error(&[&why]);
                return AfterLocal::Continue;
            }
        };
        if let Some(user) = &filter.user
            && !self.proxy.has_user(user)
        {
            self.error(&[b"ERR No such user '", words::shown(user.as_bytes()), b"'"]);
            return AfterLocal::Continue;
        }
        match self.proxy.told() {
            None => self.error(&[b"ERR the workers were not asked"]),
            Some(Err(why)) => self.error(&[b"ERR ", why.as_bytes()]),
            Some(Ok(told)) => return self.tell(command, under.len() == 1, told),
        }
        AfterLocal::Continue
    }

    fn tell(&mut self, command: u16, is_old_form: bool, told: &Told) -> AfterLocal {
        match command {
            id::CLIENT_LIST => words::verbatim(&told.lines, self.proto_version(), self.out),
            _ if !is_old_form || command == id::CLIENT_UNBLOCK => {
                words::number(told.count, self.out)
            }
            _ if told.count == 0 => self.error(&[NO_CLIENT]),
            _ => self.ok(),
        }
        let is_killed = command == id::CLIENT_KILL && told.is_own;
        if is_killed { AfterLocal::Close } else { AfterLocal::Continue }
    }

    fn pause_clients(&mut self, under: &[&[u8]]) -> AfterLocal {
        let (time, writes_only) = match under {
            [time] => (time, false),
            [time, mode] if mode.eq_ignore_ascii_case(b"all") => (time, false),
            [time, mode] if mode.eq_ignore_ascii_case(b"write") => (time, true),
            [_, _] => {
                self.error(&[BAD_MODE]);
                return AfterLocal::Continue;
            }
            _ => {
                self.error(&[
                    b"ERR unknown subcommand or wrong number of arguments for 'PAUSE'. ",
                    b"Try CLIENT HELP.",
                ]);
                return AfterLocal::Continue;
            }
        };
        match integer(time) {
            None => self.error(&[NO_TIMEOUT]),
            Some(ms) if ms < 0 => self.error(&[NEGATIVE]),
            Some(ms) => {
                self.ok();
                return AfterLocal::Pause { ms: ms as u64, writes_only };
            }
        }
        AfterLocal::Continue
    }
}

/// Returns the letters of a client's flags.
pub(in crate::redis) fn flags(flags: ClientFlags) -> String {
    let ClientFlags { no_evict, no_touch, in_transaction, listens, waits } = flags;
    let letters =
        [(listens, 'P'), (in_transaction, 'x'), (waits, 'b'), (no_evict, 'e'), (no_touch, 'T')];
    letters.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| *letter).collect()
}

/// Writes the line of a client, with all fields of Redis 7 and Valkey.
pub(in crate::redis) fn describe(line: &ClientLine<'_>, out: &mut Vec<u8>) {
    let mut text = String::new();
    let ClientLine { id, from, to, descriptor, name, age_s, idle_s, database, .. } = line;
    let ClientLine { proto_version, library, library_version, pool, output, input, .. } = line;
    let flags = if line.flags.is_empty() { "N" } else { line.flags };
    let [channels, patterns, shards] = line.topics;
    let queued = line.queued.map_or(-1, i64::from);
    let _ = write!(
        text,
        "id={id} addr={from} laddr={to} fd={descriptor} name={name} age={age_s} idle={idle_s} \
         flags={flags} db={database} sub={channels} psub={patterns} ssub={shards} \
         multi={queued} watch=0 qbuf={input} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 \
         obl={output} oll=0 omem=0 tot-mem={} events={} \
         cmd={} user={} redir=-1 resp={} lib-name={library} lib-ver={library_version} \
         pool={pool}",
        input + output,
        if *output > 0 { "rw" } else { "r" },
        line.command.unwrap_or("NULL"),
        if line.user.is_empty() { "default" } else { line.user },
        // Before HELLO, a client speaks the second.
        (*proto_version).max(2),
    );
    text.push('\n');
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: u16, line: &str, expected: Result<Inquiry, &str>) {
        let under: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        let read = read(command, &under);
        let read = read
            .map(|one| one.expect("it is one"))
            .map_err(|why| String::from_utf8_lossy(&why).into_owned());
        assert_eq!(read, expected.map_err(str::to_string), "{line}");
    }

    #[test]
    fn lists_take_what_servers_take() {
        let list = |filter| Ok(Inquiry::List(filter));
        let all = ClientFilter::default;
        check(id::CLIENT_LIST, "", list(all()));
        check(id::CLIENT_LIST, "TYPE normal", list(all()));
        check(id::CLIENT_LIST, "type Replica", list(ClientFilter { nobody: true, ..all() }));
        let ids = vec![5, 7];
        check(id::CLIENT_LIST, "id 5 -3 7 0", list(ClientFilter { ids, ..all() }));
        check(id::CLIENT_LIST, "id -3", list(ClientFilter { nobody: true, ..all() }));
        check(id::CLIENT_LIST, "type odd", Err("ERR Unknown client type 'odd'"));
        for line in ["type", "id", "user x", "type normal x"] {
            check(id::CLIENT_LIST, line, Err("ERR syntax error"));
        }
        for line in ["id x", "id 5 07", "id 99999999999999999999"] {
            check(id::CLIENT_LIST, line, Err("ERR Invalid client ID"));
        }
        let many = " 1".repeat(201);
        check(id::CLIENT_LIST, &format!("id{many}"), Err(std::str::from_utf8(MANY_IDS).unwrap()));
    }

    #[test]
    fn a_client_is_unblocked_as_by_servers() {
        let one = |id, with_error| {
            let filter = ClientFilter { ids: vec![id], ..ClientFilter::default() };
            Ok(Inquiry::Unblock { filter, with_error })
        };
        check(id::CLIENT_UNBLOCK, "5", one(5, false));
        check(id::CLIENT_UNBLOCK, "5 timeout", one(5, false));
        check(id::CLIENT_UNBLOCK, "5 Error", one(5, true));
        let filter = ClientFilter { nobody: true, ..ClientFilter::default() };
        check(id::CLIENT_UNBLOCK, "-1", Ok(Inquiry::Unblock { filter, with_error: false }));
        for (line, why) in [
            ("x", "ERR value is not an integer or out of range"),
            ("5 x", "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        ] {
            check(id::CLIENT_UNBLOCK, line, Err(why));
        }
    }

    #[test]
    fn clients_are_killed_by_any_filter() {
        let kill = |filter| Ok(Inquiry::Kill(filter));
        let old = ClientFilter { from: Some("1.2.3.4:5".into()), ..ClientFilter::default() };
        check(id::CLIENT_KILL, "1.2.3.4:5", kill(old));
        let others = || ClientFilter { not_own: true, ..ClientFilter::default() };
        check(id::CLIENT_KILL, "ID 5", kill(ClientFilter { ids: vec![5], ..others() }));
        let all = "laddr 1.2.3.4:5 addr 5.6.7.8:9 user anna type normal maxage 7 skipme no id 3";
        check(
            id::CLIENT_KILL,
            all,
            kill(ClientFilter {
                ids: vec![3],
                user: Some("anna".into()),
                from: Some("5.6.7.8:9".into()),
                to: Some("1.2.3.4:5".into()),
                age_min_s: 7,
                ..ClientFilter::default()
            }),
        );
        for line in ["id 0", "id -1", "id x", "id 1.5"] {
            check(id::CLIENT_KILL, line, Err("ERR client-id should be greater than 0"));
        }
        for line in ["id 5 user", "odd 5", "skipme maybe", "id 5 skipme"] {
            check(id::CLIENT_KILL, line, Err("ERR syntax error"));
        }
        check(id::CLIENT_KILL, "type odd", Err("ERR Unknown client type 'odd'"));
    }
}
