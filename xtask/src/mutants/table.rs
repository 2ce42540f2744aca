//! The score of a crate, as a row of docs/mutants.md.

use super::play::{Fate, Mutant};
use super::survivors::Survivor;

pub const HEAD: &str = "\
| crate | mutants | viable | noticed | survived | equivalent | score | 95 % |
|---|---|---|---|---|---|---|---|
";

/// Numbers of one crate's mutants.
#[derive(Debug, PartialEq, Eq)]
pub struct Score {
    viable: usize,
    noticed: usize,
    equivalent: usize,
}

impl Score {
    pub fn of(mutants: &[Mutant], list: &[Survivor]) -> Score {
        let count = |fate| mutants.iter().filter(|mutant| mutant.fate == fate).count();
        let may = |mutant: &&Mutant| {
            list.iter().any(|survivor| survivor.equivalent && survivor.is(mutant))
        };
        let equivalent = mutants.iter().filter(|mutant| mutant.survived()).filter(may).count();
        Score {
            viable: mutants.len() - count(Fate::Unviable),
            noticed: count(Fate::Noticed),
            equivalent,
        }
    }

    /// Returns the percentage of detectable mutants that were noticed. None: no mutant was viable,
    /// so nothing was measured.
    pub fn percent(&self) -> Option<f64> {
        match self.told() {
            0 => (self.viable > 0).then_some(100.0),
            told => Some(100.0 * self.noticed as f64 / told as f64),
        }
    }

    fn told(&self) -> usize {
        self.viable - self.equivalent
    }

    pub fn row(&self, name: &str, mutants: usize) -> String {
        let Score { viable, noticed, equivalent } = self;
        let survived = viable - noticed;
        let counts = format!("{mutants} | {viable} | {noticed} | {survived} | {equivalent}");
        let Some(percent) = self.percent() else {
            return format!("| {name} | {counts} | | |\n");
        };
        let (low, high) = interval(*noticed, self.told());
        format!("| {name} | {counts} | {percent:.1} % | {low:.1} to {high:.1} |\n")
    }
}

/// Returns Wilson's interval for a share measured in a sample, in percent.
fn interval(met: usize, of: usize) -> (f64, f64) {
    const Z: f64 = 1.96;
    let n = of.max(1) as f64;
    let share = met as f64 / n;
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z * Z / n;
    (100.0 * (middle - half) / whole, 100.0 * (middle + half) / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons() {
        let (low, high) = interval(90, 100);
        assert!((low - 82.56).abs() < 0.01 && (high - 94.48).abs() < 0.01, "{low} {high}");
        assert_eq!(interval(10, 10).1.round(), 100.0);
    }

    #[test]
    fn an_equivalent_mutant_does_not_count() {
        let score = Score { viable: 100, noticed: 90, equivalent: 10 };
        assert_eq!(score.percent(), Some(100.0));
        assert_eq!(Score { viable: 1, noticed: 0, equivalent: 1 }.percent(), Some(100.0));
        assert!(
            score.row("shard", 105).starts_with("| shard | 105 | 100 | 90 | 10 | 10 | 100.0 %")
        );
    }

    #[test]
    fn what_was_not_measured_has_no_score() {
        let unviable = Mutant {
            file: "crates/shard/src/hash.rs".to_string(),
            text: "hash ^= 1;".to_string(),
            column: 6,
            change: "replace ^= with |= in hash".to_string(),
            fate: Fate::Unviable,
        };
        for mutants in [vec![], vec![unviable]] {
            let score = Score::of(&mutants, &[]);
            assert_eq!(score.percent(), None);
            let row = score.row("shard", mutants.len());
            assert_eq!(row, format!("| shard | {} | 0 | 0 | 0 | 0 | | |\n", mutants.len()));
        }
    }
}
