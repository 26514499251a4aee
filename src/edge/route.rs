//! Which route a request takes.

use http::Method;
use http::header::CONTENT_LENGTH;
use pingora::http::RequestHeader;
use serde::Deserialize;

use super::cors;
use crate::config::Settings;
use crate::config::settings::Cors;
use crate::proto::chat::Api;

/// What is done with a request, as far as its header tells.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Kind {
    /// A browser's question, for a page, whether it may send a request.
    Preflight,
    /// Baton's own health.
    Health,
    /// Its body says that it is too large for anyone.
    TooLarge,
    /// A chat, or a completion, whose body Baton reads.
    Claimed(Api),
    /// About a stream that Baton keeps.
    Stream(Call),
    /// Everything else: not looked into.
    Other,
}

/// What is wanted of a stream.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Call {
    /// Its events.
    Read,
    /// How it is.
    Status,
    /// Its end.
    Cancel,
    /// That its events have come so far.
    Ack,
    /// Something that there is not, or not by this method.
    Unknown,
}

/// Where streams are found, with their ids behind it.
pub(super) const STREAMS: &str = "/v1/streams/";

/// The id in the path of a request for a stream, and what is wanted of it.
pub(super) fn call(head: &RequestHeader) -> Option<(&str, Call)> {
    let (id, what) = match head.uri.path().strip_prefix(STREAMS)?.split_once('/') {
        Some((id, what)) => (id, Some(what)),
        None => (head.uri.path().strip_prefix(STREAMS)?, None),
    };
    let call = match (&head.method, what) {
        (&Method::GET, None) => Call::Read,
        (&Method::GET, Some("status")) => Call::Status,
        (&Method::POST, Some("cancel")) => Call::Cancel,
        (&Method::POST, Some("ack")) => Call::Ack,
        _ => Call::Unknown,
    };
    Some((id, call))
}

/// Decides by the header alone.
pub(super) fn kind(head: &RequestHeader, settings: &Settings) -> Kind {
    if settings.server.cors != Cors::Off && cors::is_preflight(head) {
        return Kind::Preflight;
    }
    let path = head.uri.path();
    if path == "/health" && matches!(head.method, Method::GET | Method::HEAD) {
        return Kind::Health;
    }
    let length = declared_length(head);
    if length.is_some_and(|length| length > settings.server.max_request_body) {
        return Kind::TooLarge;
    }
    if let Some((_, call)) = call(head) {
        return Kind::Stream(call);
    }
    // Every one is read, however long, for its model decides where it goes.
    let api = [Api::Chat, Api::Completions].into_iter().find(|api| path.ends_with(api.path()));
    api.filter(|_| head.method == Method::POST).map_or(Kind::Other, Kind::Claimed)
}

fn declared_length(head: &RequestHeader) -> Option<usize> {
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// The route of a request whose model is not known: the first that takes any.
///
/// Its index among [`Settings::routes`].
pub(super) fn for_any(settings: &Settings) -> Option<usize> {
    settings.routes.iter().position(|route| route.model.is_any())
}

/// The model that a body names, for a body that is JSON but not a chat request.
pub(super) fn model_of(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        model: String,
    }
    serde_json::from_slice::<Named>(body).ok().map(|named| named.model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{Journal, Route, Server};
    use crate::config::units::Glob;

    fn settings(globs: &[&str]) -> Settings {
        Settings {
            server: Server { max_request_body: 1_000, ..Server::default() },
            upstreams: Vec::new(),
            routes: globs
                .iter()
                .map(|glob| {
                    let mut route = Route::new(Glob::parse(glob).unwrap(), 0);
                    route.continuation.max_body = 100;
                    route
                })
                .collect(),
            journal: Journal::default(),
            warnings: Vec::new(),
        }
    }

    fn check(method: &str, path: &str, length: Option<&str>, expected: Kind) {
        let mut head = RequestHeader::build(method, path.as_bytes(), None).unwrap();
        if let Some(length) = length {
            head.insert_header(CONTENT_LENGTH, length).unwrap();
        }
        assert_eq!(kind(&head, &settings(&["*"])), expected, "{method} {path} {length:?}");
    }

    #[test]
    fn the_header_tells_what_is_done_with_a_request() {
        check("GET", "/health", None, Kind::Health);
        check("POST", "/health", None, Kind::Other);
        check("POST", "/v1/chat/completions", Some("100"), Kind::Claimed(Api::Chat));
        check("POST", "/v1/chat/completions", None, Kind::Claimed(Api::Chat));
        check("POST", "/tenant/v1/chat/completions", Some("5"), Kind::Claimed(Api::Chat));
        check("POST", "/v1/chat/completions", Some("101"), Kind::Claimed(Api::Chat));
        check("POST", "/v1/chat/completions", Some("1001"), Kind::TooLarge);
        check("GET", "/v1/chat/completions", None, Kind::Other);
        check("POST", "/v1/completions", Some("5"), Kind::Claimed(Api::Completions));
        check("GET", "/v1/completions", None, Kind::Other);
        check("POST", "/v1/embeddings", Some("1001"), Kind::TooLarge);
        check("GET", "/v1/streams/x", None, Kind::Stream(Call::Read));
        check("GET", "/v1/streams/x/status", None, Kind::Stream(Call::Status));
        check("POST", "/v1/streams/x/cancel", None, Kind::Stream(Call::Cancel));
        check("POST", "/v1/streams/x/ack", None, Kind::Stream(Call::Ack));
        check("GET", "/v1/streams/x/cancel", None, Kind::Stream(Call::Unknown));
        check("DELETE", "/v1/streams/x", None, Kind::Stream(Call::Unknown));
        check("GET", "/v1/streams/", None, Kind::Stream(Call::Read));
        check("GET", "/v1/streams", None, Kind::Other);
    }

    #[test]
    fn a_preflight_is_a_request_like_any_other_until_origins_are_configured() {
        let mut head = RequestHeader::build("OPTIONS", b"/v1/models", None).unwrap();
        head.insert_header("Origin", "https://app.example").unwrap();
        head.insert_header("Access-Control-Request-Method", "GET").unwrap();
        let mut settings = settings(&["*"]);
        assert_eq!(kind(&head, &settings), Kind::Other);
        settings.server.cors = Cors::Any;
        assert_eq!(kind(&head, &settings), Kind::Preflight);
    }

    #[test]
    fn a_request_whose_model_is_not_looked_at_takes_the_first_route_for_any_model() {
        assert_eq!(for_any(&settings(&["qwen*", "*"])), Some(1));
        assert_eq!(for_any(&settings(&["qwen*"])), None);
    }

    #[test]
    fn the_model_is_found_in_a_body_that_is_no_chat_request() {
        assert_eq!(model_of(br#"{"prompt":"x","model":"qwen"}"#).as_deref(), Some("qwen"));
        assert_eq!(model_of(b"{\"model\":"), None);
        assert_eq!(model_of(b"{\"model\":7}"), None);
    }
}
