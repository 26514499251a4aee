//! Engine versions, as `/version` gives them.

use std::fmt;

/// A release: major, minor, patch. What comes behind (`rc1`, `.dev5+g123`, `+cpu`) is not told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number; 0 where there is none.
    pub patch: u32,
}

impl Version {
    /// A version by its numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads `0.32.0`, `v0.33.1rc2.dev5+g123`, `0.28`. `None` when it does not begin with two numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let mut parts = text.split('.');
        let mut next = || {
            let part = parts.next()?;
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            part[..digits].parse().ok()
        };
        Some(Self { major: next()?, minor: next()?, patch: next().unwrap_or(0) })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_forms_are_read_and_compared() {
        for (text, version) in [
            ("0.32.0", Version::new(0, 32, 0)),
            ("0.32.0+cpu", Version::new(0, 32, 0)),
            ("v0.33.1rc2.dev5+g1234", Version::new(0, 33, 1)),
            ("0.28", Version::new(0, 28, 0)),
            ("0.28rc1", Version::new(0, 28, 0)),
            ("1.0.0", Version::new(1, 0, 0)),
        ] {
            assert_eq!(Version::parse(text), Some(version), "{text}");
        }
        for text in ["", "dev", "0", "x.1", "99999999999.0"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert!(Version::new(0, 9, 2) < Version::new(0, 10, 0));
    }
}
