//! The state of a client that is handed over to another worker, as it travels beside the
//! connection. The types of the pure crates are written here again, for serde only.
//!
//! Most clients have said nothing about themselves, and then nothing is written of it. Protocols
//! bound what a client can say, and so the message is bounded: a longer one would not be sent, and
//! the client would stay where it is.

use std::net::IpAddr;

use proto::{ConnKey, Profile, ReplyMode, Session};
use proxy::{Passed, Tally, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A client that is handed over from worker to worker, beside its connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientState {
    #[serde(with = "PassedFields")]
    pub passed: Passed,
    /// The client's address by its PROXY header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Passed")]
struct PassedFields {
    pool: u32,
    protocol: Option<u8>,
    logged_in: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    failed_logins: u8,
    #[serde(with = "SessionFields", default, skip_serializing_if = "is_untouched")]
    session: Session,
    /// It differs from client to client, and travels beside those that are alike otherwise.
    #[serde(skip)]
    tally: Tally,
}

/// What a client has done, in microseconds of the machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientTally {
    id: u64,
    came: u64,
    active: u64,
    requests: u64,
    received: u64,
    sent: u64,
}

impl From<Tally> for ClientTally {
    fn from(tally: Tally) -> ClientTally {
        let Tally { id, came, active, requests, received, sent } = tally;
        ClientTally { id, came: came.0, active: active.0, requests, received, sent }
    }
}

impl From<ClientTally> for Tally {
    fn from(tally: ClientTally) -> Tally {
        let ClientTally { id, came, active, requests, received, sent } = tally;
        Tally { id, came: Time(came), active: Time(active), requests, received, sent }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Session")]
struct SessionFields {
    id: u64,
    #[serde(with = "ConnKeyFields")]
    conn_key: ConnKey,
    #[serde(with = "ReplyModes")]
    reply_mode: ReplyMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "write_profile", deserialize_with = "read_profile")]
    profile: Option<Box<Profile>>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ConnKey")]
struct ConnKeyFields {
    proto_version: u8,
    database: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ReplyMode", rename_all = "snake_case")]
enum ReplyModes {
    On,
    SkipNext,
    SkipThis,
    Off,
}

/// User, name, library and its version are bytes of any kind.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Profile")]
struct ProfileFields {
    user: Vec<u8>,
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
    no_evict: bool,
    no_touch: bool,
}

fn is_untouched(session: &Session) -> bool {
    *session == Session::default()
}

fn write_profile<S: Serializer>(it: &Option<Box<Profile>>, to: S) -> Result<S::Ok, S::Error> {
    match it {
        Some(profile) => ProfileFields::serialize(profile, to),
        None => to.serialize_none(),
    }
}

fn read_profile<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Box<Profile>>, D::Error> {
    ProfileFields::deserialize(from).map(|profile| Some(Box::new(profile)))
}

#[cfg(test)]
mod tests {
    use super::super::MESSAGE_LEN_MAX;
    use super::*;

    /// Returns the state that arrives at the other worker, and how long its message was.
    fn travel(client: &Passed) -> (Passed, usize) {
        let state = ClientState { passed: client.clone(), from: None };
        let text = serde_json::to_vec(&state).unwrap();
        let client: ClientState = serde_json::from_slice(&text).unwrap();
        (client.passed, text.len())
    }

    fn client(session: Session) -> Passed {
        let user = Some("anna".to_string());
        Passed {
            pool: 3,
            protocol: Some(2),
            logged_in: true,
            user,
            failed_logins: 1,
            session,
            tally: Tally::default(),
        }
    }

    #[test]
    fn what_a_client_has_said_arrives_as_it_was_said() {
        let profile = Profile {
            user: b"anna".to_vec(),
            name: b"a\0\xff".to_vec(),
            library: b"lib".to_vec(),
            library_version: b"1.2".to_vec(),
            no_evict: true,
            no_touch: false,
        };
        let conn_key = ConnKey { proto_version: 3, database: 9 };
        for reply_mode in [ReplyMode::On, ReplyMode::SkipNext, ReplyMode::SkipThis, ReplyMode::Off]
        {
            let profile = Some(Box::new(profile.clone()));
            let client = client(Session { id: u64::MAX, conn_key, reply_mode, profile });
            assert_eq!(travel(&client).0, client);
        }
        let silent = client(Session { conn_key, ..Session::default() });
        assert_eq!(travel(&silent).0, silent);
    }

    #[test]
    fn who_has_said_nothing_costs_nothing() {
        let client = Passed { user: None, ..client(Session::default()) };
        let (arrived, len) = travel(&client);
        assert_eq!(arrived, client);
        assert!(len < 70, "{len}");
    }

    #[test]
    fn the_longest_that_can_be_said_fits_a_message() {
        // CLIENT SETNAME and SETINFO take no more than a KiB, and users have shorter names.
        let long = || vec![0xff; 1024];
        let [user, name, library, library_version] = [long(), long(), long(), long()];
        let profile = Profile { user, name, library, library_version, ..Profile::default() };
        let session = Session { profile: Some(Box::new(profile)), ..Session::default() };
        assert!(travel(&client(session)).1 < MESSAGE_LEN_MAX / 2);
    }
}
