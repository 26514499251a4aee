//! A file as the rules see it, and a fault in one.

use std::fmt;

/// What is wrong, where, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    pub file: String,
    pub line: usize,
    pub text: String,
}

impl Fault {
    pub fn new(file: &Source, line: usize, text: impl Into<String>) -> Self {
        Self { file: file.path.clone(), line, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// A text file. For Rust also what is left of it when comments and literals are blanked out; every view has the same
/// lines.
pub struct Source {
    /// From the repository's root, with `/`.
    pub path: String,
    pub text: String,
    /// Rust without comments and without the content of literals.
    pub code: String,
    /// `code` without what is compiled for tests only.
    pub production: String,
    /// The string literals, as written between their quotes, with the line they begin on.
    pub strings: Vec<(usize, String)>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let (code, strings) = if path.ends_with(".rs") { mask(text) } else { (String::new(), Vec::new()) };
        let in_tests = path.ends_with("/tests.rs") || path.contains("/tests/") || path.starts_with("tests/");
        let production = if in_tests { blank(&code) } else { without_tests(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, production, strings }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The file name without its extension.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }
}

/// Lines of a view, numbered from 1.
pub fn lines(view: &str) -> impl Iterator<Item = (usize, &str)> {
    view.lines().enumerate().map(|(i, line)| (i + 1, line))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands in `line` with no letter, digit or underscore beside it.
pub fn find_word(line: &str, word: &str) -> Option<usize> {
    line.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = line[..*at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_as_word = word.chars().next_back().is_some_and(is_word);
        !(before.is_some_and(is_word) || ends_as_word && after.is_some_and(is_word))
    })
}

/// Spaces, in the same lines.
fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { ' ' }).collect()
}

/// The number of the line that byte `at` of `text` is on.
pub fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Blanks out comments and the content of literals, and collects the strings.
fn mask(text: &str) -> (String, Vec<(usize, String)>) {
    let (mut code, mut strings) = (String::with_capacity(text.len()), Vec::new());
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let after_word = code.chars().next_back().is_some_and(is_word);
        let (taken, hidden) = if let Some(length) = comment(rest) {
            (length, 0..length)
        } else if let Some((length, content)) = string(rest, after_word) {
            strings.push((line, rest[content.clone()].to_owned()));
            (length, content)
        } else if let Some(length) = character(rest, after_word) {
            (length, 1..length - 1)
        } else {
            (first.len_utf8(), 0..0)
        };
        code.push_str(&rest[..hidden.start]);
        code.push_str(&blank(&rest[hidden.clone()]));
        code.push_str(&rest[hidden.end..taken]);
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    (code, strings)
}

/// The length of the comment that `rest` begins with. Block comments nest.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    let mut depth = 0;
    let mut at = 0;
    while rest[at..].starts_with("/*") || depth > 0 {
        match rest.get(at..at + 2) {
            Some("/*") => (depth, at) = (depth + 1, at + 2),
            Some("*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += rest[at..].chars().next()?.len_utf8(),
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The length of the string literal that `rest` begins with, and where its content lies.
fn string(rest: &str, after_word: bool) -> Option<(usize, std::ops::Range<usize>)> {
    let prefix = rest.find(|c: char| !matches!(c, 'b' | 'c' | 'r'))?;
    if prefix > 2 || (prefix > 0 && after_word) {
        return None;
    }
    let raw = rest[..prefix].contains('r');
    let hashes = if raw { rest[prefix..].bytes().take_while(|b| *b == b'#').count() } else { 0 };
    let start = prefix + hashes + 1;
    if rest.as_bytes().get(start - 1) != Some(&b'"') {
        return None;
    }
    let mut end = start;
    let close = format!("\"{}", "#".repeat(hashes));
    while !rest[end..].starts_with(&close) {
        let escaped = !raw && rest[end..].starts_with('\\');
        let mut chars = rest[end..].chars();
        end += chars.next()?.len_utf8();
        if escaped {
            end += chars.next()?.len_utf8();
        }
    }
    Some((end + close.len(), start..end))
}

/// The length of the character or byte literal that `rest` begins with; a lifetime is none.
fn character(rest: &str, after_word: bool) -> Option<usize> {
    let byte = rest.strip_prefix("b'").filter(|_| !after_word);
    let inner = byte.or_else(|| rest.strip_prefix('\''))?;
    let mut chars = inner.chars();
    let length = match chars.next()? {
        '\\' => {
            let escaped = chars.next()?.len_utf8();
            inner[1 + escaped..].find('\'')? + 1 + escaped
        }
        c => c.len_utf8(),
    };
    let quotes = rest.len() - inner.len() + 1;
    (!after_word && inner[length..].starts_with('\'')).then_some(length + quotes)
}

/// Blanks out every item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let (mut out, mut rest) = (String::with_capacity(code.len()), code);
    while let Some(at) = rest.find(MARK) {
        let end = at + MARK.len();
        let length = item(&rest[end..]).unwrap_or(rest.len() - end);
        out.push_str(&rest[..at]);
        out.push_str(&blank(&rest[at..end + length]));
        rest = &rest[end + length..];
    }
    out.push_str(rest);
    out
}

/// The length of the item that masked `code` begins with: to its `;`, or to the end of its braces.
pub fn item(code: &str) -> Option<usize> {
    let (mut braces, mut others) = (0_usize, 0_usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => others += 1,
            ')' | ']' => others = others.checked_sub(1)?,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && others == 0 {
                    return Some(at + 1);
                }
            }
            ';' if braces == 0 && others == 0 => return Some(at + 1),
            _ => {}
        }
    }
    None
}
