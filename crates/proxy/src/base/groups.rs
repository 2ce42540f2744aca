//! Groups of clients that share a worker's time and memory by weight: each tenant, and of the
//! clients without one those of each protocol.
//!
//! What a group does not want is the others'. So a group that is alone has everything, and nothing
//! is looked at until clients reach their share of a turn, or half of the memory is in use.

use proto::PROTOCOLS;

use super::limits;
use super::memory::Memory;
use super::share::TurnShare;
use super::tenants::NOBODY;
use crate::Time;

/// All groups. The first are those of the protocols; tenants come after them, by their indexes.
pub(crate) struct Groups {
    list: Vec<Group>,
    /// The least share of a client of any group: all are below it nearly always.
    least: u32,
    /// Clients have reached their share of this turn, or do not have all of it again.
    is_busy: bool,
    /// A group holds more memory than its part, while there is little.
    any_over: bool,
    /// When the memory of groups was last looked at.
    looked: Time,
}

struct Group {
    weight: u32,
    turn: TurnShare,
    /// Bytes that its clients hold, as of when that was last looked at.
    held: usize,
    is_over: bool,
}

impl Group {
    fn new(weight: u32, turn_work: u32) -> Group {
        Group { weight, turn: TurnShare::new(turn_work), held: 0, is_over: false }
    }
}

impl Groups {
    pub(crate) fn new(turn_work: u32) -> Groups {
        let list = PROTOCOLS.iter().map(|_| Group::new(1, turn_work)).collect();
        Groups { list, least: turn_work, is_busy: false, any_over: false, looked: Time(0) }
    }

    /// Returns the group of clients of this tenant, or, without one, of this protocol.
    pub(crate) fn of(tenant: u16, protocol_place: usize) -> u16 {
        match tenant {
            NOBODY => protocol_place.min(PROTOCOLS.len() - 1) as u16,
            tenant => PROTOCOLS.len() as u16 + tenant - 1,
        }
    }

    /// Has the shares of all groups looked at: the work of a turn may be another.
    pub(crate) fn renew(&mut self) {
        self.is_busy = true;
    }

    /// Whether any group holds more memory than its part.
    #[inline]
    pub(crate) fn any_over(&self) -> bool {
        self.any_over
    }

    /// Sets the weight of a tenant.
    pub(crate) fn set_weight(&mut self, tenant: u16, weight: u32, turn_work: u32) {
        let at = usize::from(Groups::of(tenant, 0));
        if at >= self.list.len() {
            self.list.resize_with(at + 1, || Group::new(1, turn_work));
        }
        self.list[at].weight = weight;
    }

    /// Returns work that a client of any group may cause in this turn.
    #[inline]
    pub(crate) fn least(&self) -> u32 {
        self.least
    }

    /// Returns the work that one client of a group may cause in this turn.
    #[cold]
    pub(crate) fn work(&self, group: u16) -> u32 {
        self.list[usize::from(group)].turn.work()
    }

    /// Notes that a client has reached its share of the turn, and may want more.
    pub(crate) fn note_reached(&mut self, group: u16) {
        self.list[usize::from(group)].turn.note_reached();
        self.is_busy = true;
    }

    /// Ends the turn with this number. The groups of which clients want more have it by weight.
    #[inline]
    pub(crate) fn end_turn(&mut self, turn: u64, most: u32) {
        if self.is_busy {
            self.end_busy_turn(turn, most);
        }
    }

    #[cold]
    fn end_busy_turn(&mut self, turn: u64, most: u32) {
        let busy = self.list.iter().filter(|group| group.turn.is_reached());
        let total: u64 = busy.map(|group| u64::from(group.weight)).sum();
        self.is_busy = false;
        for group in &mut self.list {
            let part = match group.turn.is_reached() {
                true => u64::from(most) * u64::from(group.weight) / total.max(1),
                false => u64::from(most),
            };
            group.turn.end_turn(turn, (part as u32).clamp(limits::TURN_WORK_MIN.min(most), most));
            self.is_busy |= group.turn.work() < most;
        }
        self.least = self.list.iter().map(|group| group.turn.work()).min().unwrap_or(most);
    }

    /// Whether a group holds more memory than its part, while there is little: its next requests
    /// get no more, nor does one that has come in part where less than an eighth is left. The
    /// answers to those that were sent are not dropped for it.
    #[inline]
    pub(crate) fn is_over(&self, group: u16) -> bool {
        self.any_over && self.list[usize::from(group)].is_over
    }

    /// Lets a group have more until it is looked at again, since a request of it was given up.
    #[cold]
    pub(crate) fn forgive(&mut self, group: u16) {
        self.list[usize::from(group)].is_over = false;
    }

    /// Whether the memory that groups hold is to be looked at now.
    #[inline]
    pub(crate) fn wants_look(&self, memory: &Memory, now: Time) -> bool {
        let is_looked_at = memory.is_looked_at() || self.any_over;
        is_looked_at && now.since(self.looked) >= LOOK_US
    }

    /// Takes what clients hold now, by group. Groups that hold more than their part by weight get
    /// no more until others do not need it.
    #[cold]
    pub(crate) fn look(
        &mut self,
        memory: &Memory,
        now: Time,
        held: impl Iterator<Item = (u16, usize)>,
    ) {
        self.looked = now;
        self.list.iter_mut().for_each(|group| (group.held, group.is_over) = (0, false));
        held.for_each(|(group, bytes)| self.list[usize::from(group)].held += bytes);
        let holders = self.list.iter().filter(|group| group.held > 0);
        let total: u64 = holders.map(|group| u64::from(group.weight)).sum();
        let is_little = memory.is_little();
        for group in self.list.iter_mut().filter(|group| group.held > 0 && is_little) {
            let part = memory.max as u128 * u128::from(group.weight) / u128::from(total);
            group.is_over = group.held as u128 > part;
        }
        self.any_over = self.list.iter().any(|group| group.is_over);
    }
}

/// How often the memory of groups is looked at, while there is little.
const LOOK_US: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = limits::TURN_WORK_MAX;

    fn two() -> Groups {
        let mut groups = Groups::new(MOST);
        groups.set_weight(1, 1, MOST);
        groups.set_weight(2, 3, MOST);
        groups
    }

    #[test]
    fn each_protocol_and_each_tenant_has_a_group_of_its_own() {
        let protocols = (0..PROTOCOLS.len()).map(|place| Groups::of(NOBODY, place));
        let groups = protocols.chain((1..=8).map(|tenant| Groups::of(tenant, 0)));
        assert!(groups.eq(0..PROTOCOLS.len() as u16 + 8), "none is shared, and none is left out");
    }

    #[test]
    fn tenants_that_want_more_have_the_turn_by_weight_whatever_their_clients() {
        let mut groups = two();
        let [one, other] = [1, 2].map(|tenant| Groups::of(tenant, 0));
        let mut done = [0_u64; 2];
        for turn in 0..1_000 {
            // Ten clients of one, and one of the other.
            for (at, (group, clients)) in [(one, 10), (other, 1)].into_iter().enumerate() {
                done[at] += u64::from(clients * groups.work(group));
                (0..clients).for_each(|_| groups.note_reached(group));
            }
            groups.end_turn(turn, MOST);
        }
        let share = done[1] as f64 / done[0] as f64;
        assert!((2.0..4.5).contains(&share), "{share}: {done:?}");
        for turn in 1_000..1_200 {
            groups.end_turn(turn, MOST);
        }
        assert_eq!((groups.work(one), groups.work(other)), (MOST, MOST), "all is theirs again");
        assert!(!groups.is_busy);
    }

    #[test]
    fn a_group_gets_no_more_memory_than_its_part_once_half_is_in_use() {
        let mut groups = two();
        let [one, other] = [1, 2].map(|tenant| Groups::of(tenant, 0));
        let mut memory = Memory::new(1_000);
        let mut look = |used, held: [usize; 2]| {
            memory.used = used;
            groups.look(&memory, Time(1), [(one, held[0]), (other, held[1])].into_iter());
            (groups.is_over(one), groups.is_over(other))
        };
        assert_eq!(look(400, [400, 0]), (false, false), "there is much");
        assert_eq!(look(900, [900, 0]), (false, false), "nobody else wants it");
        assert_eq!(look(600, [300, 300]), (true, false), "its part is a quarter");
        assert_eq!(look(600, [200, 400]), (false, false));
        assert_eq!(look(600, [250, 350]), (false, false), "it has its part, and no more");
        assert_eq!(look(990, [200, 790]), (false, true));
        assert_eq!(look(100, [90, 10]), (false, false));
    }

    #[test]
    fn what_groups_hold_is_looked_at_now_and_then_and_only_while_there_is_little() {
        let (mut groups, mut memory) = (two(), Memory::new(1_000));
        assert!(!groups.wants_look(&memory, Time(LOOK_US)), "there is much");
        memory.used = 500;
        let wants = [LOOK_US - 1, LOOK_US].map(|now| groups.wants_look(&memory, Time(now)));
        assert_eq!(wants, [false, true]);
        groups.look(
            &memory,
            Time(LOOK_US),
            [(Groups::of(1, 0), 500), (Groups::of(2, 0), 1)].into_iter(),
        );
        assert!(groups.any_over());
        memory.used = 0;
        assert!(groups.wants_look(&memory, Time(2 * LOOK_US)), "one is over its part");
    }
}
