//! Faults, and how they are written.
//!
//! ```text
//! rules  = rule , { "," , rule }
//! rule   = [ scope , " " ] , fault
//! scope  = "leg1" | "leg2" | "#" , N          requests that begin, that go on with an answer; the N-th request for one, from 1
//!        | endpoint , [ "#" , N ]             requests to one endpoint, or the N-th to it
//! endpoint = "chat" | "completions" | "generate" | "render" | "derender" | "tokenize" | "detokenize" | "version"
//! fault  = kind , [ "@" , place , [ "+" , offset ] ] , [ ":" , argument ]
//! place  = N | "head" | "finish" | "usage" | "done"
//! offset = N | "half" | "char"                bytes; the middle; inside the first character of more than one byte
//! ```
//!
//! A place is *before* that event: after `rst@12` the client has events 0 to 11, and after `rst@12+5` five bytes of
//! event 12 as well. Event 0 is the role chunk. `head` is before the response's status line; `usage` is the usage chunk, or
//! what comes where it would be; `done` is `[DONE]`. With `+char`, event N or the first after it that has such a character.
//!
//! | kind | argument | what happens |
//! |---|---|---|
//! | `rst` | | the connection is reset |
//! | `eof` | | the connection is closed without the body's last chunk |
//! | `end` | | the body ends in good order: `end@12` without a finish reason, `end@done` only without `[DONE]` |
//! | `stall` | `comments` and/or a time | nothing more until released or the time is over; with `comments`, `: keep-alive` every 50 ms |
//! | `slow` | a time (needed) | a pause |
//! | `error` | a status, `flat` or `wrapped` | an error event, `[DONE]`, and the body's end |
//! | `abort` | | a finish chunk with reason `abort`, `[DONE]`, and the body's end; `abort@1` is an engine that shuts down |
//! | `done` | | `[DONE]` and the body's end, without a finish reason |
//! | `garbage` | | an event that is not JSON; then on |
//! | `long` | bytes (1 MiB) | an event with a data line of so many bytes; then on |
//! | `endless` | | a line that never ends (until the client leaves, or 64 MiB) |
//! | `comment` | | a `: keep-alive` comment; then on |
//! | `split` | | the event comes in two writes, parted at the offset; then on |
//! | `status` | a code (needed), then optionally a body: `status:503:{"busy":true}` | an answer with this status; takes no place |
//!
//! A request goes on with an answer if it has `continue_final_message` or `kv_transfer_params.prompt_token_ids`, if it is a completion
//! whose prompt is that of an earlier one and more, or if it asks for tokens. Without an endpoint in its scope, a rule is
//! for the three endpoints that give answers: chat, completions and generate. The others know only `status` and the faults at `head`.
//!
//! Offsets go with `rst`, `eof`, `end`, `stall`, `slow` and `split`. Several arguments are joined by `:`. An answer without
//! `stream` knows only `status` and the faults at `head`.
//!
//! A reset may overtake bytes that the client's machine has not taken yet, as it does in life; a client that reads as
//! it receives gets exactly what came before.

use std::fmt;
use std::time::Duration;

use super::endpoint::Endpoint;

/// One fault and the requests it applies to. `Display` gives the form it was written in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The requests it applies to.
    pub scope: Scope,
    /// What happens.
    pub fault: Fault,
    text: String,
}

/// Which requests a fault applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All requests for an answer.
    Every,
    /// Those that begin one.
    Leg1,
    /// Those that go on with one.
    Leg2,
    /// The n-th, counted from 1 since the start or the last reset.
    Nth(u64),
    /// Those to an endpoint, or only the n-th of them.
    To(Endpoint, Option<u64>),
}

/// What happens to an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An error status instead of the answer; `body` replaces the wire's own error body.
    Status {
        /// The HTTP status.
        code: u16,
        /// Sent as it is, as `application/json`.
        body: Option<String>,
    },
    /// Something at a position of the stream.
    At {
        /// Before which event.
        place: Place,
        /// How far into that event; `None`: before it.
        offset: Option<Offset>,
        /// What happens there.
        act: Act,
    },
}

/// A position between events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Before the status line.
    Head,
    /// Before the event of this number.
    Event(usize),
    /// Before the event with the (first) finish reason.
    Finish,
    /// Before the usage chunk, or what comes where it would be.
    Usage,
    /// Before `[DONE]`.
    Done,
}

/// A position inside an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offset {
    /// After so many bytes; at least one, and at most all but one of the event.
    Bytes(usize),
    /// In the middle.
    Half,
    /// After the first byte of the first character that has several.
    Char,
}

/// What happens at a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Reset the connection.
    Rst,
    /// Close it without ending the body.
    Eof,
    /// End the body in good order.
    End,
    /// Wait until released, or for a time; with or without comments meanwhile.
    Stall {
        /// Whether `: keep-alive` comments are sent meanwhile.
        comments: bool,
        /// After how long it goes on by itself.
        limit: Option<Duration>,
    },
    /// Pause.
    Slow(Duration),
    /// An error event, then `[DONE]` and the end. `wrapped: None`: the wire's own form.
    Error {
        /// The `code` in the event.
        code: u16,
        /// `{"error":{…}}` or the flat form.
        wrapped: Option<bool>,
    },
    /// A finish chunk with `abort`, then `[DONE]` and the end.
    Abort,
    /// `[DONE]` and the end.
    Done,
    /// An event that is not JSON.
    Garbage,
    /// An event with a data line of so many bytes.
    Long(usize),
    /// A line that never ends.
    Endless,
    /// A comment.
    Comment,
    /// Two writes instead of one.
    Split,
}

/// A fault that cannot be read; says what would be accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "fault `{text}`: {problem}; accepted: [leg1 |leg2 |#N |ENDPOINT[#N] ]KIND@PLACE[+OFFSET][:ARGUMENT] or status:CODE[:BODY], where KIND is one of \
         rst, eof, end, stall, slow, error, abort, done, garbage, long, endless, comment, split; PLACE is an event number, head, finish, \
         usage or done; ENDPOINT is chat, completions, generate, render, derender, tokenize, detokenize or version; OFFSET is a number of bytes, half or char; several are parted by commas"
)]
pub struct BadFault {
    /// The rule that cannot be read.
    pub text: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Data bytes of a `long` event whose size is not given.
const LONG: usize = 1 << 20;
/// Largest `long` event, and how much an `endless` line sends at most.
pub(super) const LONG_LIMIT: usize = 64 << 20;

impl Rule {
    /// Reads a list of rules as they stand in a `mock-fault` header or on the command line. Empty text: no rules.
    ///
    /// # Errors
    /// The first rule that cannot be read.
    pub fn parse_all(text: &str) -> Result<Vec<Rule>, BadFault> {
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = Self::end(rest);
            rules.push(Self::parse(rest[..end].trim())?);
            rest = rest[end..].trim_start_matches(',').trim();
        }
        Ok(rules)
    }

    /// A rule ends at a comma; only a status body, which may hold commas, takes everything.
    fn end(text: &str) -> usize {
        let comma = text.find(',').unwrap_or(text.len());
        let (_, fault) = split_scope(&text[..comma]);
        let has_body = fault.strip_prefix("status:").is_some_and(|rest| rest.contains(':'));
        if has_body { text.len() } else { comma }
    }

    /// Reads one rule.
    ///
    /// # Errors
    /// When it is none; the error says what is accepted.
    pub fn parse(text: &str) -> Result<Rule, BadFault> {
        let bad = |problem| BadFault { text: text.to_owned(), problem };
        let (scope, fault) = split_scope(text);
        let scope = parse_scope(scope).ok_or_else(|| bad("unknown scope"))?;
        let fault = parse_fault(fault).map_err(bad)?;
        Ok(Rule { scope, fault, text: text.to_owned() })
    }

    /// Whether it is meant for this endpoint, and not for answers in general.
    pub(super) fn is_to(&self, endpoint: Endpoint) -> bool {
        matches!(self.scope, Scope::To(to, _) if to == endpoint)
    }

    /// Whether it applies to a request to this endpoint: the `nth` request for an answer (from 1), and the `own`-th to it.
    pub(super) fn applies(&self, endpoint: Endpoint, is_continuation: bool, nth: u64, own: u64) -> bool {
        match self.scope {
            Scope::To(to, n) => to == endpoint && n.is_none_or(|n| n == own),
            _ if !endpoint.answers() => false,
            Scope::Every => true,
            Scope::Leg1 => !is_continuation,
            Scope::Leg2 => is_continuation,
            Scope::Nth(n) => n == nth,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

fn split_scope(text: &str) -> (&str, &str) {
    let first = text.split(':').next().unwrap_or_default();
    match first.split_once(' ') {
        Some((scope, _)) => (scope, text[scope.len()..].trim_start()),
        None => ("", text),
    }
}

fn parse_scope(text: &str) -> Option<Scope> {
    match text {
        "" => Some(Scope::Every),
        "leg1" => Some(Scope::Leg1),
        "leg2" => Some(Scope::Leg2),
        _ => {
            let (endpoint, nth) = text.split_once('#').map_or((text, None), |(name, nth)| (name, Some(nth)));
            let nth = nth.map(|nth| nth.parse().ok().filter(|n| *n > 0).ok_or(()));
            match (endpoint, nth) {
                ("", Some(Ok(nth))) => Some(Scope::Nth(nth)),
                (_, Some(Err(()))) => None,
                (name, nth) => Some(Scope::To(Endpoint::named(name)?, nth.and_then(Result::ok))),
            }
        }
    }
}

fn parse_fault(text: &str) -> Result<Fault, &'static str> {
    let (head, argument) = match text.split_once(':') {
        Some((head, argument)) => (head, Some(argument)),
        None => (text, None),
    };
    if head == "status" {
        return parse_status(argument.ok_or("a status needs a code")?);
    }
    let (kind, position) = head.split_once('@').map_or((head, None), |(kind, position)| (kind, Some(position)));
    let act = parse_act(kind, argument)?;
    let position = position.ok_or("a place is missing")?;
    let (place, offset) = position.split_once('+').map_or((position, None), |(place, offset)| (place, Some(offset)));
    let place = parse_place(place).ok_or("unknown place")?;
    let offset = offset.map(|offset| parse_offset(offset).ok_or("unknown offset")).transpose()?;
    check_position(&act, place, offset)?;
    Ok(Fault::At { place, offset, act })
}

fn check_position(act: &Act, place: Place, offset: Option<Offset>) -> Result<(), &'static str> {
    let cuts = matches!(act, Act::Rst | Act::Eof | Act::End | Act::Stall { .. } | Act::Slow(_) | Act::Split);
    if offset.is_some() && (!cuts || place == Place::Head) {
        return Err("it takes no offset here");
    }
    if offset.is_none() && *act == Act::Split {
        return Err("a split needs an offset");
    }
    let before_head = match act {
        Act::Rst | Act::Eof | Act::Slow(_) => true,
        Act::Stall { comments, .. } => !comments,
        _ => false,
    };
    if place == Place::Head && !before_head {
        return Err("it cannot happen before the head");
    }
    Ok(())
}

fn parse_status(argument: &str) -> Result<Fault, &'static str> {
    let (code, body) = argument.split_once(':').map_or((argument, None), |(code, body)| (code, Some(body.to_owned())));
    let code = code.parse().ok().filter(|code| (400..600).contains(code)).ok_or("a status is from 400 to 599")?;
    Ok(Fault::Status { code, body })
}

fn parse_place(text: &str) -> Option<Place> {
    Some(match text {
        "head" => Place::Head,
        "finish" => Place::Finish,
        "usage" => Place::Usage,
        "done" => Place::Done,
        _ => Place::Event(text.parse().ok()?),
    })
}

fn parse_offset(text: &str) -> Option<Offset> {
    Some(match text {
        "half" => Offset::Half,
        "char" => Offset::Char,
        _ => Offset::Bytes(text.parse().ok().filter(|bytes| *bytes > 0)?),
    })
}

fn parse_act(kind: &str, argument: Option<&str>) -> Result<Act, &'static str> {
    let plain = |act| if argument.is_some() { Err("it takes no argument") } else { Ok(act) };
    match kind {
        "rst" => plain(Act::Rst),
        "eof" => plain(Act::Eof),
        "end" => plain(Act::End),
        "abort" => plain(Act::Abort),
        "done" => plain(Act::Done),
        "garbage" => plain(Act::Garbage),
        "endless" => plain(Act::Endless),
        "comment" => plain(Act::Comment),
        "split" => plain(Act::Split),
        "slow" => {
            let time = argument.and_then(|text| humantime::parse_duration(text).ok());
            time.map(Act::Slow).ok_or("it needs a time such as 250ms")
        }
        "long" => match argument.map(str::parse) {
            None => Ok(Act::Long(LONG)),
            Some(Ok(bytes)) if bytes <= LONG_LIMIT => Ok(Act::Long(bytes)),
            Some(_) => Err("its argument is a number of bytes, at most 64 MiB"),
        },
        "stall" => parse_stall(argument.unwrap_or_default()),
        "error" => parse_error(argument.unwrap_or_default()),
        _ => Err("unknown kind"),
    }
}

fn parse_stall(arguments: &str) -> Result<Act, &'static str> {
    let (mut comments, mut limit) = (false, None);
    for argument in arguments.split(':').filter(|argument| !argument.is_empty()) {
        if argument == "comments" {
            comments = true;
        } else {
            limit = Some(
                humantime::parse_duration(argument)
                    .map_err(|_| "its arguments are `comments` and a time such as 2s")?,
            );
        }
    }
    Ok(Act::Stall { comments, limit })
}

fn parse_error(arguments: &str) -> Result<Act, &'static str> {
    let (mut code, mut wrapped) = (500, None);
    for argument in arguments.split(':').filter(|argument| !argument.is_empty()) {
        match argument {
            "wrapped" => wrapped = Some(true),
            "flat" => wrapped = Some(false),
            _ => code = argument.parse().map_err(|_| "its arguments are a status, `flat` and `wrapped`")?,
        }
    }
    Ok(Act::Error { code, wrapped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_form_is_read() {
        for text in [
            "rst@12",
            "leg1 rst@12",
            "leg2 eof@0+5",
            "#3 end@12",
            "derender status:503",
            "render#2 rst@head",
            "stall@3",
            "stall@3:comments",
            "stall@3:comments:2s",
            "stall@head",
            "slow@0:250ms",
            "error@5",
            "error@5:503:flat",
            "error@5:wrapped",
            "abort@1",
            "done@4",
            "garbage@2",
            "long@2:4096",
            "long@2",
            "endless@2",
            "comment@2",
            "split@2+half",
            "eof@7+char",
            "rst@finish",
            "eof@usage+3",
            "end@done",
            "rst@head",
            "status:503",
            "status:429:{\"busy\":true}",
        ] {
            assert_eq!(Rule::parse(text).map(|rule| rule.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_would_be_accepted() {
        for (text, problem) in [
            ("rst", "a place is missing"),
            ("rst@", "unknown place"),
            ("rst@x", "unknown place"),
            ("rst@-1", "unknown place"),
            ("boom@1", "unknown kind"),
            ("leg9 rst@1", "unknown scope"),
            ("#0 rst@1", "unknown scope"),
            ("derender#x rst@1", "unknown scope"),
            ("elsewhere#1 rst@1", "unknown scope"),
            ("rst@1+0", "unknown offset"),
            ("abort@1+2", "it takes no offset here"),
            ("split@1", "a split needs an offset"),
            ("rst@1:now", "it takes no argument"),
            ("end@head", "it cannot happen before the head"),
            ("slow@1", "it needs a time such as 250ms"),
            ("status", "a status needs a code"),
            ("status:200", "a status is from 400 to 599"),
            ("", "unknown kind"),
        ] {
            let error = Rule::parse(text).expect_err(text);
            assert_eq!(error.problem, problem, "{text}");
            assert!(error.to_string().contains("accepted: "));
        }
    }

    #[test]
    fn rules_are_parted_by_commas_except_inside_a_status_body() {
        let rules = Rule::parse_all(" comment@1 , #2 status:503:{\"a\":1,\"b\":2}").expect("reads");
        assert_eq!(rules.len(), 2);
        let body = Some("{\"a\":1,\"b\":2}".to_owned());
        assert_eq!(rules[1].fault, Fault::Status { code: 503, body });
        assert_eq!(rules[1].scope, Scope::Nth(2));
        assert_eq!(Rule::parse_all("status:503, rst@1").map(|rules| rules.len()), Ok(2));
    }

    #[test]
    fn a_scope_picks_its_requests() {
        let to = |endpoint, text: &str, continuation, nth| {
            Rule::parse(text).expect("reads").applies(endpoint, continuation, nth, 2)
        };
        let applies = |text: &str, continuation, nth| to(Endpoint::Chat, text, continuation, nth);
        assert!(
            applies("rst@1", true, 9)
                && applies("leg1 rst@1", false, 9)
                && applies("leg2 rst@1", true, 9)
                && applies("#9 rst@1", true, 9)
        );
        assert!(!applies("leg1 rst@1", true, 1) && !applies("leg2 rst@1", false, 1) && !applies("#2 rst@1", false, 1));
        assert!(to(Endpoint::Derender, "derender status:500", false, 9));
        assert!(to(Endpoint::Derender, "derender#2 status:500", false, 9));
        assert!(!to(Endpoint::Derender, "derender#3 status:500", false, 3));
        assert!(!to(Endpoint::Derender, "status:500", false, 1) && !to(Endpoint::Render, "#1 status:500", false, 1));
        assert!(to(Endpoint::Generate, "leg2 rst@1", true, 1) && !to(Endpoint::Chat, "generate rst@1", true, 1));
    }
}
