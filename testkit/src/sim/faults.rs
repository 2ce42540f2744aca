//! Injects faults, and records them so that errors can be explained by them.

use proxy::{Closed, Time};

use super::conn::Conn;
use super::scene::FaultKind;
use super::server::{Trick, say};
use super::world::{World, say as tell};

impl World {
    pub fn fault(&mut self) {
        let pool = self.random.below(self.pools.len());
        let server = self.random.below(self.pools[pool].servers.len());
        let kind = *self.random.pick(&self.scene.faults);
        self.hearsay(pool, server);
        tell!(self, "FAULT {kind:?} on server {pool}.{server}");
        let until = self.now.after(self.random.range(500, 90_000) as u64);
        let event = self.journal.event();
        let model = &mut self.pools[pool].servers[server];
        model.trouble.any = event;
        if matches!(kind, FaultKind::Refuse | FaultKind::Full | FaultKind::Dribble) {
            model.rough_until = model.rough_until.max(until);
        }
        match kind {
            FaultKind::Stall => self.stall(pool, server, until),
            FaultKind::Refuse => model.refusing_until = until,
            FaultKind::Full => model.full_until = until,
            FaultKind::Dribble => {
                model.dribbles_until = until.after(DRIBBLE_US);
                model.rough_until = model.rough_until.max(until.after(DRIBBLE_US));
            }
            FaultKind::Poison => model.trick = Trick::Poison,
            FaultKind::ErrorLine => model.trick = Trick::ErrorLine,
            FaultKind::ExecuteThenReset => model.trick = Trick::Die,
            FaultKind::Reset => self.reset_one(pool, server),
            FaultKind::Close => self.close_one(pool, server),
            FaultKind::Restart => self.restart(pool, server),
            FaultKind::Loading => self.load(pool, server, until),
            FaultKind::NoSocket => model.trick = Trick::NoSocket,
            FaultKind::Unasked => self.say_unasked(pool, server),
        }
    }

    /// Stalls a server until then; other workers may have noticed it as well.
    pub fn stall(&mut self, pool: usize, server: usize, until: Time) {
        let event = self.journal.event();
        let model = &mut self.pools[pool].servers[server];
        model.trouble.any = event;
        model.rough_until = model.rough_until.max(until);
        model.stalled_until = until;
        if self.random.permille(500) {
            self.begin_rumour(pool, server, until);
        }
    }

    /// Returns how many commands of a connection its server executes now. One that may take long
    /// keeps its server silent first, now and then: for a server that does one thing at a time,
    /// that is the same as silence until its reply.
    pub fn pace(&mut self, at: usize) -> usize {
        let commands = *self.random.pick(&[0, 1, 1, 3, 100]);
        let far = if self.is_calm { 0 } else { self.scene.far };
        let Some(conn) = self.conns[at].as_mut() else { return commands };
        let (pool, server) = (conn.pool, conn.server);
        let commands = match far {
            0 => commands,
            // The path of its answer passes before it answers.
            far if conn.asked_at().after(far) > self.now => return 0,
            _ => commands.min(1),
        };
        let may_be_slow = SLOW.iter().any(|slow| conn.next_name().eq_ignore_ascii_case(slow));
        let may_stall = !self.is_calm && !self.scene.faults.is_empty();
        let is_slow = may_be_slow && may_stall && conn.is_established;
        if !is_slow || !self.random.permille(150) {
            return commands;
        }
        // `slow` is four times as long as `reply`: a request that has had that time is answered,
        // and its link is closed after as much time again.
        let times = *self.random.pick(&[2, 2, 2, 2, 2, 2, 2, 9, 9, 25]);
        let longest = times * self.pools[pool].plan.timeouts.reply;
        let until = self.now.after(self.random.range(500, longest as usize) as u64);
        tell!(self, "server {pool}.{server} is busy until {} us", until.0);
        self.stall(pool, server, until);
        0
    }

    /// Lets it load its data before it does anything else.
    fn load(&mut self, pool: usize, server: usize, until: Time) {
        let model = &mut self.pools[pool].servers[server];
        if let Some(redis) = &mut model.redis {
            redis.loads_until = until;
            model.rough_until = model.rough_until.max(until);
        }
    }

    /// Returns a live connection of that server, if there is one.
    fn find_conn(&mut self, pool: usize, server: usize) -> Option<usize> {
        let count = self.conns.len();
        let start = self.random.below(count.max(1));
        (0..count).map(|step| (start + step) % count).find(|at| {
            let conn = self.conns[*at].as_ref();
            conn.is_some_and(|one| one.pool == pool && one.server == server && one.is_up())
        })
    }

    /// Resets a connection: some commands were executed, some answers arrive, then it ends.
    fn reset_one(&mut self, pool: usize, server: usize) {
        let is_busy = |conn: &Conn| (conn.pool, conn.server) == (pool, server) && conn.owes();
        let busy = self.conns.iter().position(|conn| conn.as_ref().is_some_and(is_busy));
        let Some(at) = busy.or_else(|| self.find_conn(pool, server)) else { return };
        let count = self.random.below(4);
        self.serve(at, count);
        let Some(conn) = self.conns[at].as_ref() else { return };
        let n = self.random.range(0, conn.undelivered());
        self.deliver(at, n);
        if self.conns[at].is_some() {
            self.end_conn(at, Closed::Reset);
        }
    }

    /// Closes in order: all requests are answered first.
    fn close_one(&mut self, pool: usize, server: usize) {
        let Some(at) = self.find_conn(pool, server) else { return };
        self.serve(at, usize::MAX);
        self.deliver(at, usize::MAX);
        if self.conns[at].is_some() {
            self.end_conn(at, Closed::Eof);
        }
    }

    fn restart(&mut self, pool: usize, server: usize) {
        for at in 0..self.conns.len() {
            let conn = self.conns[at].as_ref();
            if conn.is_some_and(|one| one.pool == pool && one.server == server && one.is_up()) {
                self.end_conn(at, Closed::Reset);
            }
        }
        self.orphans.retain(|one| one.pool != pool || one.server != server);
        // Another version, with other commands, starts without data.
        let is_other = self.random.permille(300);
        if is_other || self.random.permille(600) {
            let event = self.journal.event();
            let model = &mut self.pools[pool].servers[server];
            model.has_meta ^= is_other;
            model.ever_lacked |= !model.has_meta;
            model.store.wipe(event);
            model.trouble.any = event;
            if let Some(redis) = &mut model.redis {
                redis.speaks_three = model.has_meta;
                redis.forget();
            }
        }
    }

    /// Sends a reply to no request. It certainly answers none only if nothing is on its way.
    fn say_unasked(&mut self, pool: usize, server: usize) {
        let Some(at) = self.find_conn(pool, server) else { return };
        let conn = self.conns[at].as_mut().expect("one was found there");
        if !conn.is_idle() || conn.poison.is_some() {
            return;
        }
        let start = conn.output.len();
        let words: &[&str] = match self.pools[pool].is_redis {
            true => &["+OK", "-ERR", ":7", "$-1", "*0", ">2\r\n+message\r\n:1"],
            false => &["STORED", "END", "VALUE 00 0 0\r\n\r\nEND", "ERROR", "7"],
        };
        say(conn, self.random.pick::<&str>(words));
        conn.poison = Some((start, conn.output.len()));
        self.deliver(at, usize::MAX);
    }
}

/// The commands that may take long, as they stand on their lines.
const SLOW: &[&[u8]] = &[b"keys\r", b"evalsha\r", b"evalsha_ro\r"];
/// Time by which a server dribbles longer than other faults last: a whole reply may take long.
const DRIBBLE_US: u64 = 200_000;
