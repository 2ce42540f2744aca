//! Diagnostics as they are found.

use super::report::{Diagnostic, Severity, Spot};
use super::value::Fault;

/// Collects diagnostics, so that one mistake does not hide the next.
#[derive(Default)]
pub struct Findings {
    pub diagnostics: Vec<Diagnostic>,
}

impl Findings {
    pub fn error(&mut self, spot: impl Into<Spot>, message: impl Into<String>) {
        self.fault(spot, Fault::new(message));
    }

    pub fn warning(&mut self, spot: impl Into<Spot>, message: impl Into<String>) {
        self.add(Severity::Warning, spot.into(), Fault::new(message));
    }

    pub fn fault(&mut self, spot: impl Into<Spot>, fault: Fault) {
        self.add(Severity::Error, spot.into(), fault);
    }

    fn add(&mut self, severity: Severity, spot: Spot, fault: Fault) {
        let Fault { message, suggestion, part: _ } = fault;
        self.diagnostics.push(Diagnostic { severity, spot, message, suggestion });
    }
}
