//! The order in which the clients that wait for a link are served: the tenants in turn, by their
//! weights, and the clients of each tenant in turn.
//!
//! ```text
//!   shop  weight 3  balance  8000   [a b c]    ┐
//!   rest  weight 1  balance -1200   [d]        ├ in turn; with each round a balance rises by
//!   no tenant       balance  4000   [e f]      ┘ a quantum for each unit of the weight
//! ```
//!
//! Both levels are deficit round robin with debts, as `queue.rs` describes it for clients. Clients
//! of no tenant are a group like any other. A group that is alone is not charged: it owes nothing
//! to one that comes later.

use std::collections::VecDeque;

use crate::base::limits;

/// A tenant's index, and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weighted {
    pub(super) tenant: u16,
    pub(super) weight: u32,
}

/// The queues of clients, by their indexes, in the order of their turns.
#[derive(Default)]
pub(super) struct Order {
    groups: VecDeque<Group>,
    /// How many of them, at the front, are new.
    new: usize,
}

/// The clients of one tenant that wait.
struct Group {
    of: Weighted,
    ring: VecDeque<u32>,
    /// How many of the ring, at its front, are new.
    new: usize,
    /// The cost that it may still have served in this round.
    balance: i64,
}

impl Order {
    /// Adds a client that had no queue. It is served before those that had.
    pub(super) fn insert(&mut self, of: Weighted, at: u32) {
        let group = self.group_of(of);
        group.ring.insert(group.new, at);
        group.new += 1;
    }

    /// Adds a client behind all others of its tenant.
    pub(super) fn push_back(&mut self, of: Weighted, at: u32) {
        self.group_of(of).ring.push_back(at);
    }

    /// Returns the client that is next.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        if let [group] = self.groups.as_slices().0
            && let Some(first) = group.ring.front()
            && self.groups.len() == 1
        {
            return Some(*first);
        }
        self.next_of_several()
    }

    fn next_of_several(&mut self) -> Option<u32> {
        loop {
            let is_alone = self.groups.len() == 1;
            let is_new = self.new > 0;
            let group = self.groups.front_mut()?;
            if group.ring.is_empty() && (is_alone || group.balance > 0 && !is_new) {
                self.groups.pop_front();
                self.new = self.new.saturating_sub(1);
            } else if group.ring.is_empty() || group.balance <= 0 && !is_alone {
                if group.balance <= 0 {
                    group.balance += limits::QUANTUM * i64::from(group.of.weight);
                }
                self.end_turn_of_group();
            } else {
                return group.ring.front().copied();
            }
        }
    }

    /// Returns the client that `next` has returned.
    pub(super) fn first(&self) -> u32 {
        self.groups[0].ring[0]
    }

    /// Whether that client is new.
    pub(super) fn is_first_new(&self) -> bool {
        self.groups[0].new > 0
    }

    /// Charges its tenant for what is served.
    #[inline]
    pub(super) fn charge(&mut self, cost: i64) {
        if self.groups.len() > 1 {
            self.groups[0].balance -= cost;
        }
    }

    /// Puts the client that is next behind all others of its tenant.
    pub(super) fn end_turn_of_first(&mut self) {
        let group = &mut self.groups[0];
        group.ring.rotate_left(1);
        group.new = group.new.saturating_sub(1);
    }

    /// Takes out the client that is next.
    pub(super) fn pop_first(&mut self) {
        let group = &mut self.groups[0];
        group.ring.pop_front();
        group.new = group.new.saturating_sub(1);
    }

    /// Lets the client that is next wait until all others have had their turn. Returns how many
    /// clients there are.
    pub(super) fn skip_first(&mut self) -> usize {
        self.end_turn_of_first();
        self.end_turn_of_group();
        self.groups.iter().map(|group| group.ring.len()).sum()
    }

    /// Lists the clients in the order of their turns, tenant by tenant.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().flat_map(|group| group.ring.iter().copied())
    }

    fn end_turn_of_group(&mut self) {
        self.groups.rotate_left(1);
        self.new = self.new.saturating_sub(1);
    }

    fn group_of(&mut self, of: Weighted) -> &mut Group {
        let at = self.groups.iter().position(|group| group.of.tenant == of.tenant);
        let at = at.unwrap_or_else(|| {
            // One that was alone has had its turns.
            self.new = if self.groups.len() > 1 { self.new } else { 0 };
            let balance = limits::QUANTUM * i64::from(of.weight);
            let group = Group { of, ring: VecDeque::new(), new: 0, balance };
            self.groups.insert(self.new, group);
            self.new += 1;
            self.new - 1
        });
        // The weight may have changed since.
        self.groups[at].of = of;
        &mut self.groups[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: u16, weight: u32) -> Weighted {
        Weighted { tenant, weight }
    }

    /// Serves clients that always want more, each at this cost; returns what each tenant had.
    fn play(order: &mut Order, tenants: &[u16], cost: i64, rounds: usize) -> Vec<i64> {
        let mut served = vec![0; 1 + usize::from(*tenants.iter().max().unwrap())];
        for _ in 0..rounds {
            let at = order.next().expect("all want more");
            order.charge(cost);
            served[usize::from(tenants[at as usize])] += cost;
            order.end_turn_of_first();
        }
        served
    }

    #[test]
    fn tenants_have_shares_by_weight_however_many_clients_they_have() {
        for cost in [300, 4_096, 50_000] {
            let mut order = Order::default();
            // Ten clients of a tenant with weight 1, and one of a tenant with weight 3.
            let tenants = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2];
            for (at, tenant) in tenants.iter().enumerate() {
                order.insert(of(*tenant, if *tenant == 2 { 3 } else { 1 }), at as u32);
            }
            let served = play(&mut order, &tenants, cost, 8_000);
            let share = served[2] as f64 / served[1] as f64;
            assert!((2.7..=3.3).contains(&share), "{share} at {cost}");
        }
    }

    #[test]
    fn one_that_was_alone_owes_nothing_to_one_that_comes_later() {
        let mut order = Order::default();
        order.insert(of(1, 1), 0);
        play(&mut order, &[1], 10_000, 1_000);
        order.insert(of(2, 1), 1);
        let served = play(&mut order, &[1, 2], 4_096, 100);
        assert!((served[1] - served[2]).abs() <= 3 * 4_096, "{served:?}");
    }

    #[test]
    fn a_tenant_that_had_nothing_waiting_is_served_first_once_in_a_round() {
        let mut order = Order::default();
        (0..3).for_each(|at| order.insert(of(1, 1), at));
        play(&mut order, &[1, 1, 1], 4_096, 7);
        order.insert(of(2, 1), 3);
        assert_eq!(order.next(), Some(3));
        order.charge(300);
        order.pop_first();
        assert!(order.next().is_some_and(|at| at < 3), "it has nothing any more");
        (0..3).for_each(|_| {
            order.next();
            order.pop_first();
        });
        assert_eq!(order.next(), None);
        assert!(order.groups.is_empty() && order.new == 0);
    }

    #[test]
    fn one_that_had_no_queue_is_served_first_though_others_like_it_have_gone() {
        let mut order = Order::default();
        (0..2).for_each(|at| order.insert(of(1, 1), at));
        assert_eq!(order.next(), Some(0));
        order.pop_first();
        assert_eq!(order.next(), Some(1));
        order.end_turn_of_first();
        assert!(!order.is_first_new(), "it has had its turn");
        order.insert(of(1, 1), 2);
        assert_eq!(order.next(), Some(2));
    }
}
