//! `allow:` of a pool: the commands that reach its servers only because the operator permits them.
//! The protocol's table marks the commands that can be allowed.

use proto::{Class, Command, Local, Protocol, Refusal};

use super::draft::{AllowDraft, PoolDraft};
use super::findings::Findings;
use super::report::nearest;
use super::rules::Rules;
use super::value::Fault;

impl PoolDraft {
    /// Returns the allowed commands by their names in the protocol's table. A container stands for
    /// all its subcommands that can be allowed.
    pub fn allowed(&self) -> Vec<String> {
        let protocol = self.protocol();
        let rows = self.allow.iter().flat_map(|draft| meant(protocol, &draft.name));
        let gated = rows.filter(|row| is_gated(row)).map(|row| row.name.to_string());
        let mut names: Vec<String> = Vec::new();
        for name in gated {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Rules<'_> {
    /// Checks that `allow` names commands of the pool's protocol that can be allowed.
    pub fn check_allowed(&self, findings: &mut Findings) {
        for AllowDraft { name, spot } in &self.draft.allow {
            if let Some(fault) = fault(self.draft.protocol(), name) {
                findings.fault(spot.clone(), fault);
            }
        }
    }
}

/// Returns the fault of a name under `allow:`, if there is one.
fn fault(protocol: &dyn Protocol, name: &str) -> Option<Fault> {
    let rows: Vec<&Command> = meant(protocol, name).collect();
    if rows.iter().any(|row| is_gated(row)) {
        return None;
    }
    let reasons = rows.iter().filter_map(|row| match row.class {
        Class::Refuse(Refusal::ByName(why)) => Some(why),
        _ => None,
    });
    let reasons: Vec<&str> = reasons.collect();
    if rows.is_empty() {
        let speaks = protocol.name();
        let mut message = format!("allow: `{name}` is not a command of pools that speak {speaks}");
        if meant(protocol, &name.replace(' ', "|")).next().is_some() {
            message.push_str("; subcommands are written with `|`");
        }
        return Some(Fault::new(message).suggest(nearest(&name.to_lowercase(), names(protocol))));
    }
    let Some(&why) = reasons.first() else {
        return Some(Fault::new(format!("allow: `{name}` needs no permission; remove it")));
    };
    // The reason of one subcommand must not be shown for others that pass or have other reasons.
    let is_shared = reasons.iter().all(|other| *other == why) && 2 * reasons.len() > rows.len();
    Some(Fault::new(if rows.len() == 1 || is_shared {
        let why = why.strip_prefix("refused by the proxy: ").unwrap_or(why);
        format!("allow: `{name}` cannot be allowed: {why}")
    } else {
        let why = "they need no permission, or are refused";
        format!("allow: `{name}` has no subcommand that could be allowed: {why}")
    }))
}

/// Returns the table rows that a name stands for, in any case: one, or those of a container.
fn meant<'n>(
    protocol: &dyn Protocol,
    name: &'n str,
) -> impl Iterator<Item = &'static Command> + 'n {
    let is_it = move |row: &&Command| {
        let above = row.name.split_once('|').map(|(above, _)| above);
        row.name.eq_ignore_ascii_case(name)
            || above.is_some_and(|above| above.eq_ignore_ascii_case(name))
    };
    protocol.commands().iter().filter(is_it)
}

/// Returns every name that can be allowed, containers included.
fn names(protocol: &dyn Protocol) -> impl Iterator<Item = &'static str> {
    let gated = protocol.commands().iter().filter(|row| is_gated(row));
    gated.flat_map(|row| {
        let container = row.name.split_once('|').map(|(above, _)| above);
        std::iter::once(row.name).chain(container)
    })
}

fn is_gated(row: &Command) -> bool {
    matches!(
        row.class,
        Class::Broadcast { gated: true, .. } | Class::Local(Local::Clients | Local::Monitor)
    )
}
