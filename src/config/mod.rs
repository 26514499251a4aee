//! The configuration: what a person writes ([`schema`], over [`node`] and [`reader`]) becomes what it means
//! ([`settings`]).
//!
//! Invariants:
//! - All mistakes are reported at once, each with its line, its key and what is accepted there.
//! - An unknown key is a mistake. A key without a function does not exist.
//! - A value that came from `${NAME}` is never repeated in a message.
//! - [`Settings`] is complete: no default is filled in elsewhere, no reference is left to look up.
//!
//! Deliberately absent: reading files and the process's environment (both are handed in, see [`Outside`]), and everything of
//! Pingora.

mod certificate;
mod node;
mod reader;
mod schema;
pub mod settings;
pub mod units;

use std::{fmt, io};

pub use reader::Mistake;
pub use schema::ENGINES;
pub use settings::Settings;

/// Everything that is wrong with a configuration, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Mistake>);

impl Errors {
    /// The mistakes, in the order of the file.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.0
    }

    /// The mistakes as lines that begin with `file` and the line number: `baton.yaml:12: routes[0]…`.
    pub fn in_file<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        Lines { file, mistakes: &self.0 }
    }
}

impl fmt::Display for Errors {
    /// One line for each mistake, each beginning `config:` and its line number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Lines { file: "config", mistakes: &self.0 }.fmt(f)
    }
}

impl std::error::Error for Errors {}

struct Lines<'a> {
    file: &'a str,
    mistakes: &'a [Mistake],
}

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{mistake}", self.file)?;
        }
        Ok(())
    }
}

/// What a configuration may refer to outside of its own text.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// The value for `${NAME}`.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// What the file holds whose path was written like this.
    pub file: &'a dyn Fn(&str) -> io::Result<String>,
}

/// Reads a configuration that names no other file. `env` gives the values for `${NAME}`.
///
/// # Errors
/// Every mistake in `text`, in the order of the file.
pub fn load(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Errors> {
    load_from(text, Outside { env, file: &|_| Err(io::Error::other("it is not looked for")) })
}

/// As [`load`], of one that may name others.
///
/// # Errors
/// Every mistake in `text`, in the order of the file; a file that it names and that cannot be read, or is not what it should be, is one.
pub fn load_from(text: &str, outside: Outside<'_>) -> Result<Settings, Errors> {
    let mut mistakes = Vec::new();
    let settings =
        node::parse(text, outside.env, &mut mistakes).and_then(|root| schema::read(&root, outside.file, &mut mistakes));
    match settings {
        Some(settings) if mistakes.is_empty() => Ok(settings),
        _ => {
            mistakes.sort_by_key(|mistake| mistake.line);
            Err(Errors(mistakes))
        }
    }
}

#[cfg(test)]
mod tests;
