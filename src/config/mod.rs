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

mod node;
mod reader;
mod schema;
pub mod settings;
pub mod units;

use std::path::PathBuf;
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
    /// Where the file is that was written like this, once it is known that it can be read.
    pub file: &'a dyn Fn(&str) -> io::Result<PathBuf>,
}

/// Reads a configuration. `env` gives the values for `${NAME}`. Files that it names are taken as they are written, whether
/// they can be read or not.
///
/// # Errors
/// Every mistake in `text`, in the order of the file.
pub fn load(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Errors> {
    load_from(text, Outside { env, file: &|written| Ok(PathBuf::from(written)) })
}

/// As [`load`], with the files looked for.
///
/// # Errors
/// Every mistake in `text`, in the order of the file; a file that it names and that cannot be read is one.
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
