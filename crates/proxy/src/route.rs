//! The route of a request: the server it goes to, and in which form, which may depend on that
//! server's capabilities. Nothing is changed and nothing is sent here.
//!
//! ```text
//!   adapt(request) ── Ask ────────────────────────────────────────────────▶ go
//!        └─ Unknown ── route ── capabilities known ── adapt again ── Ask ─▶ go, to that server
//!                         │                                └─ Refused ────▶ answered, nothing sent
//!                         └─ unknown ── the client is paused until a handshake has shown them
//! ```

use proto::{Adapted, Ask, Capabilities, Class, Local, Place, Reach, Refusal, Span};
use shard::Distribution;

use crate::base::Base;
use crate::base::fault::Fault;
use crate::base::limits;
use crate::base::part::Incoming;
use crate::base::plan::MultiKey;
use crate::base::pool::Pool;
use crate::base::tenants::NOBODY;

/// The route of a request.
#[derive(Clone, Copy)]
pub(crate) enum Route {
    /// It is sent in this form; to this server, if the server is known already.
    Go { ask: Ask, server: Option<usize> },
    /// It fails before anything is sent, as it could not arrive.
    Fault(Option<u32>, Fault),
    /// It waits for this server: for its capabilities, which are unknown, or until it is known
    /// whether the server can be asked at all.
    Wait(usize),
    /// It goes to several servers.
    Spread,
    /// It waits for the driver to give the addresses of its client's connection.
    NeedsEndpoints,
    /// It waits for what all workers have to tell.
    NeedsWorkers,
    /// It waits for the answers to those before it.
    AfterAll,
    /// The proxy answers it, unless the only server of the pool is busy.
    UnlessBusy,
    /// The only server of the pool is busy, and refuses it.
    Busy,
    /// No form for the server means the same.
    Refused(Refusal),
    /// Its keys belong to different servers.
    Apart(Apart),
}

/// Two keys of a request, by their positions in it, and their servers.
#[derive(Clone, Copy)]
pub(crate) struct Apart {
    keys: [Span; 2],
    servers: [usize; 2],
}

/// A request whose keys cannot be found in it, in a pool where they may be on any server.
pub(crate) const NOT_SOLE: &str =
    "its keys cannot be read from the request: only in a pool of one server";
/// A request about what the same connection has asked before.
pub(crate) const NOT_OWN: &str =
    "it is about what one connection has written: only in a pool with `links: private`";
pub(crate) const NOT_ALONE: &str =
    "it is about what one connection has written: only in a pool of one server";
const NOT_ONE: &str = "refused by the proxy: each server has its own; ask the server itself";
/// Bytes that a key, with its value if any, may take in a message beyond those in a line.
const KEY_FRAME_LEN: usize = 8;

/// Returns the route of a request, if it depends on servers and is not a read of single keys.
/// `is_located` says that the addresses of its client's connection are known.
#[inline]
pub(crate) fn route(
    base: &mut Base,
    incoming: &Incoming<'_>,
    is_located: impl FnOnce() -> bool,
) -> Option<Route> {
    let Incoming { asks, request, .. } = *incoming;
    match request.class {
        Class::Single { .. } => Some(route_of_single(base, incoming)),
        Class::Split { .. } => Some(route_of_split(base, incoming)),
        Class::Broadcast { writes, reach: Reach::All | Reach::Survey, .. } => {
            let pool = &base.pools[asks.pool()];
            match why_not_of_all(pool, &request.class) {
                // Nobody's answers would be an answer too, such as 0 keys.
                None if pool.planned() == 0 => Some(Route::Fault(None, Fault::NoServer)),
                None => writes.then_some(Route::Spread),
                Some(_) => None,
            }
        }
        Class::Local(Local::Own) => route_of_own(base, incoming, is_located),
        Class::Local(Local::Clients) => {
            let is_allowed = why_not_of_clients(base, incoming).is_none();
            let asks_all = || asks.protocol.inquiry(request, incoming.head).is_some();
            (is_allowed && asks_all()).then_some(Route::NeedsWorkers)
        }
        Class::Local(Local::Subscribe) => Some(Route::AfterAll),
        _ => None,
    }
}

fn route_of_single(base: &mut Base, incoming: &Incoming<'_>) -> Route {
    let Incoming { asks, request, head } = *incoming;
    if request.database > 0 && request.database >= base.pools[asks.pool()].plan.databases {
        return Route::Refused(Refusal::NoDatabase);
    }
    if base.keys.len() > 1 || request.place != Place::Keys {
        return route_of_many(base, incoming);
    }
    match asks.protocol.adapt(request, head, None) {
        Adapted::Ask(ask) => return Route::Go { ask, server: None },
        Adapted::Refused(refusal) => return Route::Refused(refusal),
        Adapted::Unknown => {}
    }
    let Some(server) = server_for(base, incoming) else {
        return Route::Fault(None, Fault::NoServer);
    };
    match base.pools[asks.pool()].servers[server].capabilities {
        None => Route::Wait(server),
        Some(known) => form(incoming, known)
            .map_or_else(Route::Refused, |ask| Route::Go { ask, server: Some(server) }),
    }
}

/// Returns the form of a request for a server with these capabilities.
fn form(incoming: &Incoming<'_>, known: Capabilities) -> Result<Ask, Refusal> {
    let Incoming { asks, request, head } = *incoming;
    match asks.protocol.adapt(request, head, Some(known)) {
        Adapted::Refused(refusal) => Err(refusal),
        Adapted::Ask(ask) => Ok(ask),
        Adapted::Unknown => unreachable!("the capabilities were given"),
    }
}

/// Returns the route of a request whose keys must be on one server, or which has none.
fn route_of_many(base: &mut Base, incoming: &Incoming<'_>) -> Route {
    let Incoming { asks, request, .. } = *incoming;
    let ask = match form(incoming, Capabilities::default()) {
        Ok(ask) => ask,
        Err(refusal) => return Route::Refused(refusal),
    };
    if request.place == Place::Keys {
        return match common_server(base, incoming) {
            Ok(server) => to(ask, server),
            Err(apart) => Route::Apart(apart),
        };
    }
    let pool = &base.pools[asks.pool()];
    match request.place {
        _ if pool.planned() == 0 => Route::Fault(None, Fault::NoServer),
        // Where there were several, clients may still have cursors of them.
        Place::Nth(_) | Place::From(_) | Place::Nowhere if pool.servers.len() == 1 => {
            to(ask.unchanged(), pool.place_from(0).map(|at| at as usize))
        }
        Place::Nowhere => Route::Refused(Refusal::NoPlace),
        Place::Nth(at) if pool.place_from(at) != Some(at) => Route::Refused(Refusal::NoPlace),
        Place::From(at) if pool.place_from(at).is_none() => Route::Refused(Refusal::NoPlace),
        Place::Nth(at) | Place::From(at) => {
            let at = pool.place_from(at + u32::from(bug!(ScanElsewhere)));
            to(ask, at.map(|at| at as usize))
        }
        Place::Sole if pool.planned() != 1 => Route::Refused(Refusal::ByName(NOT_SOLE)),
        Place::Own if !pool.plan.private => Route::Refused(Refusal::ByName(NOT_OWN)),
        Place::Own if pool.planned() != 1 => Route::Refused(Refusal::ByName(NOT_ALONE)),
        Place::Sole | Place::Own => to(ask, pool.place_from(0).map(|at| at as usize)),
        Place::Any | Place::Keys => to(ask, pool.any_place(asks.id.index())),
    }
}

fn to(ask: Ask, server: Option<usize>) -> Route {
    match server {
        Some(_) => Route::Go { ask, server },
        None => Route::Fault(None, Fault::NoServer),
    }
}

/// Routes to one server if one has all keys, and otherwise to each server with its keys.
fn route_of_split(base: &mut Base, incoming: &Incoming<'_>) -> Route {
    let Incoming { asks, .. } = *incoming;
    match common_server(base, incoming) {
        Ok(server) => form(incoming, Capabilities::default())
            .map_or_else(Route::Refused, |ask| to(ask, server)),
        Err(apart) if base.pools[asks.pool()].plan.multi_key == MultiKey::Refuse => {
            Route::Apart(apart)
        }
        Err(_) => Route::Spread,
    }
}

/// Whether a local command has to wait for the capabilities of servers.
fn route_of_own(
    base: &Base,
    incoming: &Incoming<'_>,
    is_located: impl FnOnce() -> bool,
) -> Option<Route> {
    let Incoming { asks, request, head } = *incoming;
    if asks.protocol.shows_endpoints(request) && !is_located() {
        return Some(Route::NeedsEndpoints);
    }
    if asks.protocol.adapt(request, head, None) != Adapted::Unknown {
        let may_be_refused = asks.protocol.is_refused_by_busy(request);
        return may_be_refused.then_some(Route::UnlessBusy);
    }
    // A server that cannot be asked now is not waited for, unless there is no other.
    let pool = &base.pools[asks.pool()];
    match pool.unknown() {
        Some(server) => Some(Route::Wait(server)),
        None if pool.capabilities().is_some() => None,
        None => pool.any_place(asks.id.index()).map(Route::Wait),
    }
}

/// Returns why a request for every server is refused in this pool, if it is.
pub(crate) fn why_not_of_all(pool: &Pool, class: &Class) -> Option<Refusal> {
    let Class::Broadcast { ask, gated, reach, .. } = *class else { return None };
    let name = pool.plan.protocol.commands()[usize::from(ask.command)].name;
    if gated && !pool.plan.allow.iter().any(|allowed| allowed == name) {
        return Some(Refusal::NotAllowed(name));
    }
    (reach == Reach::Sole && pool.planned() > 1).then_some(Refusal::ByName(NOT_ONE))
}

/// Returns why a client may not ask about others, if it may not. A tenant may, about its own.
pub(crate) fn why_not_of_clients(base: &Base, incoming: &Incoming<'_>) -> Option<Refusal> {
    let Incoming { asks, request, .. } = *incoming;
    let plan = &base.pools[asks.pool()].plan;
    let name = plan.protocol.commands()[usize::from(request.command)].name;
    let needs_no_leave = asks.tenant != NOBODY && request.class == Class::Local(Local::Clients);
    let may = needs_no_leave || plan.allow.iter().any(|allowed| allowed == name);
    (!may).then_some(Refusal::NotAllowed(name))
}

/// Returns the one server that all keys of a request belong to; none if the ring is empty.
pub(crate) fn common_server(
    base: &mut Base,
    incoming: &Incoming<'_>,
) -> Result<Option<usize>, Apart> {
    let Incoming { asks, .. } = *incoming;
    let first = server_of(base, incoming, base.keys[0]);
    // With the random distribution, all keys of a request go to the same random server.
    let goes_anywhere = base.pools[asks.pool()].plan.distribution == Distribution::Random;
    for at in 1..if goes_anywhere { 0 } else { base.keys.len() } {
        let key = base.keys[at];
        let server = server_of(base, incoming, key);
        if let (Some(one), Some(other)) = (first, server)
            && one != other
            && !bug!(SendApart)
        {
            return Err(Apart { keys: [base.keys[0], key], servers: [one, other] });
        }
    }
    Ok(first)
}

/// Returns the server that the only key of a request belongs to, if it has one.
#[inline]
pub(crate) fn server_for(base: &mut Base, incoming: &Incoming<'_>) -> Option<usize> {
    let key = *base.keys.first()?;
    server_of(base, incoming, key)
}

/// Returns the server that a key of a request belongs to.
#[inline]
pub(crate) fn server_of(base: &mut Base, incoming: &Incoming<'_>, key: Span) -> Option<usize> {
    match base.pools[incoming.asks.pool()].only() {
        None => server_of_several(base, incoming, key),
        only => only,
    }
}

#[inline(never)]
fn server_of_several(base: &mut Base, incoming: &Incoming<'_>, key: Span) -> Option<usize> {
    let Incoming { asks, request, head } = *incoming;
    let key = asks.protocol.key(request, head, key, &mut base.scratch);
    let random = &mut base.random;
    base.pools[asks.pool()].route(key, || random.next())
}

/// Returns the most messages in which the keys of a request may leave for one server. A message
/// ends at so many keys, or when it and the next together reach so many bytes.
pub(crate) fn messages_max(base: &Base, head: &[u8]) -> usize {
    let bytes = head.len() + base.keys.len() * KEY_FRAME_LEN;
    let by_bytes = bytes / (limits::BATCH_BYTES_MAX / 2 - limits::BATCH_KEYS_MAX);
    1 + base.keys.len() / limits::BATCH_KEYS_MAX + by_bytes
}

impl Apart {
    /// Returns the two keys, decoded.
    pub(crate) fn keys(self, incoming: &Incoming<'_>) -> [Vec<u8>; 2] {
        let Incoming { asks, request, head } = *incoming;
        self.keys.map(|key| {
            let mut decoded = Vec::new();
            asks.protocol.key(request, head, key, &mut decoded).to_vec()
        })
    }

    pub(crate) fn servers(self) -> [usize; 2] {
        self.servers
    }
}
