//! The small languages of the configuration: durations, sizes, addresses, endpoints, globs. All strict: a number
//! without its unit is a mistake, because nobody can tell whether `20` meant seconds or milliseconds.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::settings::{Endpoint, Scheme};

/// 2¹⁰ bytes.
pub const KIB: usize = 1 << 10;
/// 2²⁰ bytes.
pub const MIB: usize = 1 << 20;
/// 2³⁰ bytes.
pub const GIB: usize = 1 << 30;

const DURATIONS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
const SIZES: [(&str, usize); 4] = [("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("B", 1)];

/// Why a written value was not accepted. Reads after the value itself: `"20" is not a duration; write 500ms, 8s or 5m`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Not a whole number with a unit of time.
    #[error("is not a duration; write 500ms, 8s or 5m")]
    Duration,
    /// Not a whole number with a unit of size.
    #[error("is not a size; write 64KiB, 10MiB or 1GiB")]
    Size,
    /// Understood, and outside what makes sense here. Both ends are allowed values, as they would be written.
    #[error("is out of range; write a value from {low} to {high}")]
    Range {
        /// The least that is allowed.
        low: String,
        /// The most that is allowed.
        high: String,
    },
    /// Not a whole number.
    #[error("is not a whole number")]
    Whole,
    /// Not a number.
    #[error("is not a number; write 4 or 1.6")]
    Number,
    /// Not a boolean.
    #[error("is neither true nor false")]
    Flag,
    /// Not text, where text is expected: YAML read it as something else.
    #[error("is not text; put it in quotes if it is meant as text")]
    Text,
    /// Text of no length.
    #[error("is empty")]
    Empty,
    /// None of the words that are known here.
    #[error("is not known here; write {}", list(.0))]
    OneOf(&'static [&'static str]),
    /// A word that is none of the known ones, but close to one.
    #[error("is not known here; did you mean {0:?}?")]
    Near(String),
    /// Not an IP address with a port.
    #[error(
        "is not an address to listen on; write an IP address and a port: 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080"
    )]
    Address,
    /// Not the address of an engine.
    #[error("is not an endpoint: {0}; write http://host:port")]
    Endpoint(NotAnEndpoint),
    /// Not the origin of a page, as a browser writes it.
    #[error(
        "is not an origin; write it as browsers do, https://app.example or http://localhost:3000: lower case, no path, no \
         port that is the scheme's own"
    )]
    Origin,
    /// A name with characters that would break a log line or a metric.
    #[error("is not a name; use letters, digits, and any of - _ . / : up to 128 characters")]
    Name,
    /// A glob over its length, or with control characters.
    #[error("is not a model pattern; write a model's name, with * for any characters, up to 256 bytes")]
    Glob,
}

/// What is wrong with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnEndpoint {
    /// Neither `http://` nor `https://`.
    #[error("it begins with neither http:// nor https://")]
    Scheme,
    /// Credentials before the host. They would end up in logs, and Baton would not send them.
    #[error("a user name or password does not belong in it")]
    UserInfo,
    /// Something after the host and port.
    #[error("a path, query or fragment does not belong in it, requests keep their own path")]
    Path,
    /// No host, or one with characters that no host name has.
    #[error("its host is not a host name or IP address")]
    Host,
    /// A port that is none.
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

/// `a, b or c`.
pub fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// A whole number and one of `units`, nothing between them.
fn quantity<T: Copy>(text: &str, units: &[(&str, T)]) -> Option<(u64, T)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    Some((number.parse().ok()?, scale))
}

/// Reads `500ms`, `8s`, `5m`, `1h`.
///
/// # Errors
/// [`Wrong::Duration`] for anything else.
pub fn duration(text: &str) -> Result<Duration, Wrong> {
    let (number, scale) = quantity(text, &DURATIONS).ok_or(Wrong::Duration)?;
    number.checked_mul(scale).map(Duration::from_millis).ok_or(Wrong::Duration)
}

/// Reads `512B`, `64KiB`, `10MiB`, `1GiB`.
///
/// # Errors
/// [`Wrong::Size`] for anything else.
pub fn size(text: &str) -> Result<usize, Wrong> {
    let (number, scale) = quantity(text, &SIZES).ok_or(Wrong::Size)?;
    usize::try_from(number).ok().and_then(|number| number.checked_mul(scale)).ok_or(Wrong::Size)
}

/// A duration as it is written in the file: in the largest unit that gives a whole number.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let (unit, scale) =
        DURATIONS.iter().rev().find(|(_, scale)| ms.is_multiple_of(u128::from(*scale))).unwrap_or(&DURATIONS[0]);
    format!("{}{unit}", ms / u128::from(*scale))
}

/// A size as it is written in the file: in the largest unit that gives a whole number.
pub fn show_size(bytes: usize) -> String {
    let units = [("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];
    let (unit, scale) = units.iter().find(|(_, scale)| bytes.is_multiple_of(*scale)).unwrap_or(&units[3]);
    format!("{}{unit}", bytes / scale)
}

/// Reads an IP address with a port. Names are not looked up: what is listened on must not depend on a resolver.
///
/// # Errors
/// [`Wrong::Address`] for anything else, port 0 included.
pub fn address(text: &str) -> Result<SocketAddr, Wrong> {
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0).ok_or(Wrong::Address)
}

/// Reads `http://host:port`; the port may be left out for 80, or 443 with `https`.
///
/// # Errors
/// [`Wrong::Endpoint`] with the part that is wrong.
pub fn endpoint(text: &str) -> Result<Endpoint, Wrong> {
    let (scheme, default_port, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (Scheme::Http, 80, rest),
        (_, Some(rest)) => (Scheme::Https, 443, rest),
        _ => return Err(Wrong::Endpoint(NotAnEndpoint::Scheme)),
    };
    if rest.contains('@') {
        return Err(Wrong::Endpoint(NotAnEndpoint::UserInfo));
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#']) {
        return Err(Wrong::Endpoint(NotAnEndpoint::Path));
    }
    let (host, port) = split_port(rest).ok_or(Wrong::Endpoint(NotAnEndpoint::Host))?;
    let port = match port {
        None => default_port,
        Some(digits) => match digits.parse() {
            Ok(port) if port != 0 && digits.bytes().all(|b| b.is_ascii_digit()) => port,
            _ => return Err(Wrong::Endpoint(NotAnEndpoint::Port)),
        },
    };
    Ok(Endpoint { scheme, host: host.to_owned(), port })
}

/// Splits `host:port`, `host`, `[v6]:port` and `[v6]`; `None` where the host is none.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            _ => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let named = host.len() <= 253 && host.split('.').all(label);
    (named || host.parse::<IpAddr>().is_ok()).then_some((host, port))
}

/// Reads the origin of a page, or `*`. What it is compared with is written by browsers, so that only their form can ever match.
///
/// # Errors
/// [`Wrong::Origin`].
pub fn origin(text: &str) -> Result<String, Wrong> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let (scheme, rest) = text.split_once("://").ok_or(Wrong::Origin)?;
    let (_, port) = split_port(rest).ok_or(Wrong::Origin)?;
    // Apps in a browser's clothes have schemes of their own.
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.');
    let fits = !scheme.is_empty()
        && scheme.bytes().all(plain)
        && !text.bytes().any(|b| b.is_ascii_uppercase())
        && port.is_none_or(|port| port.parse().is_ok_and(|number: u16| number != 0 && number.to_string() == port))
        && !matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
    if fits { Ok(text.to_owned()) } else { Err(Wrong::Origin) }
}

/// Reads the name of an upstream or a family: it becomes a metric label and a word in a log line.
///
/// # Errors
/// [`Wrong::Empty`], or [`Wrong::Name`] for characters or lengths that do not fit there.
pub fn name(text: &str) -> Result<String, Wrong> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
    match text {
        "" => Err(Wrong::Empty),
        _ if text.len() <= 128 && text.bytes().all(fits) => Ok(text.to_owned()),
        _ => Err(Wrong::Name),
    }
}

/// A pattern for model names: `*` stands for any run of characters (`/` too), everything else for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob(String);

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`Wrong::Empty`], or [`Wrong::Glob`] over 256 bytes and for control characters.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "" => Err(Wrong::Empty),
            _ if text.len() <= 256 && !text.contains(char::is_control) => Ok(Self(text.to_owned())),
            _ => Err(Wrong::Glob),
        }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Does the pattern match every name?
    pub fn is_any(&self) -> bool {
        self.0.bytes().all(|b| b == b'*')
    }

    /// Does `name` match? Linear in both for a pattern with one star, and never worse than their product.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Where the last star stood and how far its run has been taken: on a mismatch the run takes one more byte.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(byte) if *byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match &mut star {
                    None => return false,
                    Some((at, taken)) => {
                        *taken += 1;
                        (p, n) = (*at + 1, *taken);
                    }
                },
            }
        }
        pattern[p..].iter().all(|b| *b == b'*')
    }
}

impl std::fmt::Display for Glob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The word of `known` that `word` was probably meant to be: the one with the fewest single-letter changes, if these
/// are few for its length. Bounded by refusing words over 64 bytes.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    if word.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(3).min(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance, over characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_whole_number_and_a_unit() {
        for (text, ms) in [("0ms", 0), ("500ms", 500), ("8s", 8_000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "20",
            "s",
            "1.5s",
            "-1s",
            "+1s",
            "5 s",
            "5S",
            "5min",
            "1s ",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert_eq!(duration(text), Err(Wrong::Duration), "{text}");
        }
    }

    #[test]
    fn sizes_need_a_whole_number_and_a_binary_unit() {
        for (text, bytes) in [("0B", 0), ("512B", 512), ("64KiB", 64 * KIB), ("10MiB", 10 * MIB), ("1GiB", GIB)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "20", "10MB", "10mib", "1.5GiB", "-1B", "10 MiB", "KiB", "99999999999GiB"] {
            assert_eq!(size(text), Err(Wrong::Size), "{text}");
        }
    }

    #[test]
    fn a_shown_quantity_reads_back_as_itself() {
        for text in ["0h", "1ms", "1500ms", "8s", "90s", "5m", "1h"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
        for text in ["0GiB", "1B", "1500B", "64KiB", "10MiB", "1GiB"] {
            assert_eq!(show_size(size(text).unwrap()), text);
        }
    }

    #[test]
    fn an_address_to_listen_on_is_an_ip_address_with_a_port() {
        for text in ["127.0.0.1:8080", "0.0.0.0:1", "[::1]:65535"] {
            assert_eq!(address(text).map(|a| a.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "8080", ":8080", "localhost:8080", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "::1:80x"] {
            assert_eq!(address(text), Err(Wrong::Address), "{text}");
        }
    }

    #[test]
    fn an_endpoint_reads_back_as_it_was_written() {
        for text in
            ["http://10.0.0.1:8000", "http://engine-a.local:8000", "https://engine:8443", "http://[fd00::1]:8000"]
        {
            assert_eq!(endpoint(text).map(|e| e.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn an_endpoint_without_a_port_has_the_port_of_its_scheme() {
        assert_eq!(endpoint("http://engine").map(|e| e.port), Ok(80));
        assert_eq!(endpoint("https://[::1]/").map(|e| e.port), Ok(443));
    }

    #[test]
    fn a_wrong_endpoint_says_which_part_is_wrong() {
        for (text, why) in [
            ("10.0.0.1:8000", NotAnEndpoint::Scheme),
            ("ftp://a:1", NotAnEndpoint::Scheme),
            ("HTTP://a:1", NotAnEndpoint::Scheme),
            ("http://me:secret@a:1", NotAnEndpoint::UserInfo),
            ("http://a:1/v1", NotAnEndpoint::Path),
            ("http://a:1?x", NotAnEndpoint::Path),
            ("http://", NotAnEndpoint::Host),
            ("http://:80", NotAnEndpoint::Host),
            ("http://a..b:80", NotAnEndpoint::Host),
            ("http://a b:80", NotAnEndpoint::Host),
            ("http://[::1:80", NotAnEndpoint::Host),
            ("http://[::1]80", NotAnEndpoint::Host),
            ("http://a:", NotAnEndpoint::Port),
            ("http://a:0", NotAnEndpoint::Port),
            ("http://a:+80", NotAnEndpoint::Port),
            ("http://a:65536", NotAnEndpoint::Port),
        ] {
            assert_eq!(endpoint(text), Err(Wrong::Endpoint(why)), "{text}");
        }
    }

    #[test]
    fn an_origin_is_what_a_browser_would_send() {
        for text in [
            "*",
            "https://app.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "https://a:80",
            "capacitor://localhost",
            "chrome-extension://abcdef",
        ] {
            assert_eq!(origin(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "null",
            "app.example",
            "https://",
            "https://app.example/",
            "https://app.example/chat",
            "https://App.example",
            "HTTPS://app.example",
            "https://app.example:443",
            "http://a:80",
            "http://a:080",
            "http://a:0",
            "http://a:",
            "http://me@a",
            "https://*.example",
            "://a",
        ] {
            assert_eq!(origin(text), Err(Wrong::Origin), "{text}");
        }
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters_and_the_rest_for_itself() {
        let matches = |pattern: &str, name| Glob::parse(pattern).unwrap().matches(name);
        for (pattern, name) in [
            ("*", ""),
            ("*", "Qwen/Qwen3-8B"),
            ("**", "x"),
            ("qwen", "qwen"),
            ("qwen*", "qwen3"),
            ("*/Qwen3-*", "Qwen/Qwen3-8B"),
            ("a*b*c", "a-b-b-c"),
            ("*模型*", "一个模型吗"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("qwen", ""), ("qwen", "qwen3"), ("qwen*", "Qwen3"), ("a*b", "a-b-c"), ("a?c", "abc"), ("a*a", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_does_not_explode() {
        let stars = "a*".repeat(100);
        assert!(Glob::parse(&stars).unwrap().matches(&"a".repeat(5_000)));
        assert!(!Glob::parse(&(stars + "c")).unwrap().matches(&"a".repeat(5_000)));
    }

    #[test]
    fn a_near_word_is_suggested_and_a_far_one_is_not() {
        let known = ["listen", "admin", "threads", "max_request_body"];
        assert_eq!(nearest("listne", &known), Some("listen"));
        assert_eq!(nearest("max_request_bdy", &known), Some("max_request_body"));
        assert_eq!(nearest("thread", &known), Some("threads"));
        assert_eq!(nearest("drain", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest(&"listen".repeat(20), &known), None);
    }

    #[test]
    fn names_fit_into_labels_and_log_lines() {
        assert_eq!(name("qwen3.6-a_b/c:d").as_deref(), Ok("qwen3.6-a_b/c:d"));
        assert_eq!(name(""), Err(Wrong::Empty));
        for text in ["a b", "a\"b", "a\nb", "模", &"a".repeat(129)] {
            assert_eq!(name(text), Err(Wrong::Name), "{text}");
        }
    }
}
