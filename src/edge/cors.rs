//! Pages of other origins, and which of them may read what Baton answers.
//!
//! A browser sends a page's request to another origin only after a preflight (`OPTIONS`) that allows it, and shows the page an answer
//! only if its header names the page's origin. Without `server.cors` Baton says nothing of this, and what engines say passes. With
//! it, Baton answers every preflight itself, and its word replaces the engine's on every answer: a browser that finds two refuses both.
//!
//! Architecture invariant: never with credentials. What opens a stream is the `Authorization` that a page's own script sends, never
//! a cookie that a browser would add to any page's request.

use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;

use super::reply;
use crate::config::settings::Cors;

/// What Baton's own paths and the passed-on ones of this API are called by.
const METHODS: &str = "GET, POST, OPTIONS";

/// What clients send of their own accord: those that come back to a stream, and the official ones. `User-Agent` is asked for by
/// browsers that let a page set it.
const HEADERS: &str = "Authorization, Content-Type, Baton-Resume, Idempotency-Key, Last-Event-ID, User-Agent, \
                       OpenAI-Organization, OpenAI-Project";

/// The prefix of what the official clients tell of themselves, in some nine headers; a release may add one.
const STAINLESS: &str = "x-stainless-";

/// What a page may read besides the few headers that any page may: where its stream is, and when to try again.
const EXPOSED: &str = "Baton-Stream, Location, Retry-After";

/// How long a browser may remember a preflight, in seconds: two hours, the most that Chromium does.
const MAX_AGE: &str = "7200";

/// What an engine may have said that is Baton's to say.
const REPLACED: [HeaderName; 5] = [
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
];

/// Whether a browser asks for a page whether it may send what it wants to.
pub(super) fn is_preflight(head: &RequestHeader) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(header::ORIGIN)
        && head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Answers a preflight. One from an origin that is not allowed gets an answer that allows nothing.
pub(super) async fn preflight(cors: &Cors, session: &mut ServerSession) -> Result<()> {
    let mut header = ResponseHeader::build(204, Some(6))?;
    let head = session.req_header();
    if allowed(cors, head).is_some() {
        header.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS)?;
        header.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, headers_for(head))?;
        header.insert_header(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE)?;
    }
    header.insert_header(header::CACHE_CONTROL, "no-store")?;
    reply::header(cors, session, header).await
}

/// Writes into an answer's header who may read it.
pub(super) fn dress(cors: &Cors, request: &RequestHeader, response: &mut ResponseHeader) -> Result<()> {
    if *cors == Cors::Off {
        return Ok(());
    }
    // A preflight's answer has what it allows already; an engine's is not believed.
    let own = response.status == 204 && is_preflight(request);
    for name in REPLACED.iter().filter(|_| !own) {
        response.remove_header(name);
    }
    if let Cors::Only(_) = cors {
        // Also where there is no origin: what a cache keeps of it is not for one that has.
        response.append_header(header::VARY, "Origin")?;
    }
    if let Some(origin) = allowed(cors, request) {
        response.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
        response.append_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED)?;
    }
    Ok(())
}

/// The origin that the answer to this request is allowed to, as a header says it.
fn allowed(cors: &Cors, request: &RequestHeader) -> Option<HeaderValue> {
    match cors {
        Cors::Off => None,
        Cors::Any => Some(HeaderValue::from_static("*")),
        Cors::Only(origins) => {
            let origin = request.headers.get(header::ORIGIN)?;
            origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
        }
    }
}

/// The headers that a preflight allows.
fn headers_for(request: &RequestHeader) -> String {
    let asked = request.headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let names = asked.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim);
    let is_known = |name: &&str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        name.get(..STAINLESS.len()).is_some_and(|start| start.eq_ignore_ascii_case(STAINLESS)) && name.bytes().all(fits)
    };
    names.filter(is_known).fold(HEADERS.to_owned(), |allowed, name| allowed + ", " + name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "https://app.example";

    fn only() -> Cors {
        Cors::Only(vec![PAGE.to_owned(), "http://localhost:3000".to_owned()])
    }

    fn request(method: &str, headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build(method, b"/v1/chat/completions", None).unwrap();
        for (name, value) in headers {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    /// The fields of an answer to a page of this origin, of an engine that said these.
    fn dressed(cors: &Cors, origin: Option<&str>, engine: &[(&'static str, &str)]) -> Vec<(String, String)> {
        let origin: Vec<_> = origin.map(|origin| ("Origin", origin)).into_iter().collect();
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in engine {
            response.append_header(*name, *value).unwrap();
        }
        dress(cors, &request("POST", &origin), &mut response).unwrap();
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        response.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    fn fields(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const EXPOSE: (&str, &str) = ("access-control-expose-headers", EXPOSED);

    #[test]
    fn without_cors_an_answer_is_as_it_was() {
        let engine = [("access-control-allow-origin", "https://its.own"), ("vary", "Accept")];
        assert_eq!(dressed(&Cors::Off, Some(PAGE), &engine), fields(&engine));
        assert_eq!(dressed(&Cors::Off, Some(PAGE), &[]), fields(&[]));
    }

    #[test]
    fn an_allowed_origin_is_named_and_no_other_one() {
        let vary = ("vary", "Origin");
        let named = [vary, ("access-control-allow-origin", PAGE), EXPOSE];
        assert_eq!(dressed(&only(), Some(PAGE), &[]), fields(&named));
        for other in ["https://app.example.evil", "http://app.example", "https://APP.example", "null", ""] {
            assert_eq!(dressed(&only(), Some(other), &[]), fields(&[vary]), "{other}");
        }
        assert_eq!(dressed(&only(), None, &[]), fields(&[vary]));
    }

    #[test]
    fn any_origin_is_allowed_alike_so_that_nothing_varies() {
        let any = fields(&[("access-control-allow-origin", "*"), EXPOSE]);
        assert_eq!(dressed(&Cors::Any, Some(PAGE), &[]), any);
        assert_eq!(dressed(&Cors::Any, None, &[]), any);
    }

    #[test]
    fn an_engine_s_word_on_origins_is_replaced_and_what_it_exposes_stays() {
        let engine = [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "X-Request-Id"),
        ];
        let exposed = ("access-control-expose-headers", "X-Request-Id");
        let expected = [exposed, EXPOSE, ("access-control-allow-origin", PAGE), ("vary", "Origin")];
        let mut found = dressed(&only(), Some(PAGE), &engine);
        found.sort();
        let mut expected = fields(&expected);
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_preflight_is_an_options_request_that_names_origin_and_method() {
        let asks = ("Access-Control-Request-Method", "POST");
        assert!(is_preflight(&request("OPTIONS", &[("Origin", PAGE), asks])));
        assert!(!is_preflight(&request("OPTIONS", &[("Origin", PAGE)])));
        assert!(!is_preflight(&request("OPTIONS", &[asks])));
        assert!(!is_preflight(&request("POST", &[("Origin", PAGE), asks])));
    }

    #[test]
    fn a_preflight_allows_what_official_clients_tell_of_themselves_and_nothing_else_that_is_asked_for() {
        let of = |asked: &str| headers_for(&request("OPTIONS", &[("Access-Control-Request-Headers", asked)]));
        assert_eq!(
            of("authorization,x-stainless-os, X-Stainless-Retry-Count,x-evil"),
            format!("{HEADERS}, x-stainless-os, X-Stainless-Retry-Count")
        );
        assert_eq!(of("x-stainless-\"os\",x-stainless-a b,x-stainles"), HEADERS);
        assert_eq!(of(""), HEADERS);
    }
}
