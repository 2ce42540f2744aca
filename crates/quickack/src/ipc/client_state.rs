//! The state of a client that is handed over to another worker, as it travels beside the
//! connection: the fields of [`Passed`].
//!
//! Most clients have said nothing about themselves, and then nothing is written of it. Protocols
//! bound what a client can say, and so the message is bounded: a longer one would not be sent, and
//! the client would stay where it is.

use std::net::IpAddr;

use proto::{ConnKey, Profile, ReplyMode, Session};
use proxy::Passed;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientState {
    pub pool: u32,
    pub protocol: Option<u8>,
    pub logged_in: bool,
    pub failed_logins: u8,
    /// The client's address by its PROXY header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// The session that the client has set up, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<SessionState>>,
}

/// A [`Session`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    id: u64,
    proto_version: u8,
    database: u32,
    reply_mode: ReplyState,
    aborted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<Box<Names>>,
}

/// [`ReplyMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplyState {
    On,
    SkipNext,
    SkipThis,
    Off,
}

/// A [`Profile`]: user, name, library and its version are bytes of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Names {
    user: Vec<u8>,
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
    no_evict: bool,
    no_touch: bool,
}

impl From<Passed> for ClientState {
    fn from(client: Passed) -> ClientState {
        let Passed { pool, protocol, logged_in, failed_logins, session } = client;
        let session =
            (session != Session::default()).then(|| Box::new(SessionState::from(session)));
        ClientState { pool, protocol, logged_in, failed_logins, from: None, session }
    }
}

impl From<ClientState> for Passed {
    fn from(client: ClientState) -> Passed {
        let ClientState { pool, protocol, logged_in, failed_logins, from: _, session } = client;
        let session = session.map_or_else(Session::default, |state| Session::from(*state));
        Passed { pool, protocol, logged_in, failed_logins, session }
    }
}

impl From<Session> for SessionState {
    fn from(session: Session) -> SessionState {
        let Session {
            id,
            conn_key: ConnKey { proto_version, database },
            reply_mode,
            aborted,
            profile,
        } = session;
        let reply_mode = match reply_mode {
            ReplyMode::On => ReplyState::On,
            ReplyMode::SkipNext => ReplyState::SkipNext,
            ReplyMode::SkipThis => ReplyState::SkipThis,
            ReplyMode::Off => ReplyState::Off,
        };
        let profile = profile.map(|it| Box::new((*it).into()));
        SessionState { id, proto_version, database, reply_mode, aborted, profile }
    }
}

impl From<SessionState> for Session {
    fn from(state: SessionState) -> Session {
        let SessionState { id, proto_version, database, reply_mode, aborted, profile } = state;
        let reply_mode = match reply_mode {
            ReplyState::On => ReplyMode::On,
            ReplyState::SkipNext => ReplyMode::SkipNext,
            ReplyState::SkipThis => ReplyMode::SkipThis,
            ReplyState::Off => ReplyMode::Off,
        };
        let profile = profile.map(|names| Box::new((*names).into()));
        Session { id, conn_key: ConnKey { proto_version, database }, reply_mode, aborted, profile }
    }
}

impl From<Profile> for Names {
    fn from(profile: Profile) -> Names {
        let Profile { user, name, library, library_version, no_evict, no_touch } = profile;
        Names { user, name, library, library_version, no_evict, no_touch }
    }
}

impl From<Names> for Profile {
    fn from(names: Names) -> Profile {
        let Names { user, name, library, library_version, no_evict, no_touch } = names;
        Profile { user, name, library, library_version, no_evict, no_touch }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MESSAGE_LEN_MAX;
    use super::*;

    /// Returns the state that arrives at the other worker, and how long its message was.
    fn travel(client: &Passed) -> (Passed, usize) {
        let text = serde_json::to_vec(&ClientState::from(client.clone())).unwrap();
        let client: ClientState = serde_json::from_slice(&text).unwrap();
        (client.into(), text.len())
    }

    fn client(session: Session) -> Passed {
        Passed { pool: 3, protocol: Some(2), logged_in: true, failed_logins: 1, session }
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
            let client =
                client(Session { id: u64::MAX, conn_key, reply_mode, aborted: true, profile });
            assert_eq!(travel(&client).0, client);
        }
        let silent = client(Session { conn_key, ..Session::default() });
        assert_eq!(travel(&silent).0, silent);
    }

    #[test]
    fn who_has_said_nothing_costs_nothing() {
        let client = client(Session::default());
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
