//! Diagnostics as they are found.

use super::file::Entry;
use super::report::{Diagnostic, Place, Severity, Spot};
use super::value::Fault;

/// Collects diagnostics, so that one mistake does not hide the next.
#[derive(Default)]
pub struct Findings {
    pub diagnostics: Vec<Diagnostic>,
    /// The directive that is being set at run time: whatever is found is about it, because places
    /// in its value are none in the file.
    pub set: Option<Spot>,
}

impl Findings {
    pub fn error(&mut self, spot: impl Into<Spot>, message: impl Into<String>) {
        self.fault(spot, Fault::new(message));
    }

    pub fn warning(&mut self, spot: impl Into<Spot>, message: impl Into<String>) {
        self.doubt(spot, Fault::new(message));
    }

    pub fn doubt(&mut self, spot: impl Into<Spot>, fault: Fault) {
        self.add(Severity::Warning, spot.into(), fault);
    }

    pub fn fault(&mut self, spot: impl Into<Spot>, fault: Fault) {
        self.add(Severity::Error, spot.into(), fault);
    }

    /// An entry of a mapping has the key of an earlier one.
    pub fn twice(&mut self, entry: &Entry, entries: &[Entry]) {
        self.error(entry.key_place, format!("`{}` is written twice here", entry.key));
        let first = entries.iter().find(|one| one.key.eq_ignore_ascii_case(&entry.key));
        self.first(first.map(|first| first.key_place));
    }

    /// The last finding is about something that was also written earlier.
    pub fn first(&mut self, place: Option<Place>) {
        if let (Some(last), None) = (self.diagnostics.last_mut(), &self.set) {
            last.first = place;
        }
    }

    /// Returns a place in the text that is read now as the subject of a later finding.
    pub fn spot(&self, place: Place) -> Spot {
        self.set.clone().unwrap_or(Spot::Text(place))
    }

    fn add(&mut self, severity: Severity, spot: Spot, fault: Fault) {
        let spot = self.set.clone().unwrap_or(spot);
        let Fault { message, suggestion, help, part: _ } = fault;
        let first = None;
        self.diagnostics.push(Diagnostic { severity, spot, message, suggestion, help, first });
    }
}
