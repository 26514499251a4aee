//! Which headers cross Baton.

use std::sync::Arc;

use http::header::{self, HeaderName};
use http::{HeaderMap, Version};
use pingora::http::{RequestHeader, ResponseHeader};

/// Fields that belong to one connection (RFC 9110, section 7.6.1, and the older ones still seen).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// The prefix of the headers that are between a client and Baton.
const OWN_PREFIX: &str = "baton-";

/// How a client names the last event that it has.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

/// Names a request, so that it is known when it comes again.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

fn is_own(name: &HeaderName) -> bool {
    name.as_str().starts_with(OWN_PREFIX)
}

/// Whether a header of Baton's own, a list of words, has this one.
pub(super) fn says(head: &RequestHeader, name: &str, word: &str) -> bool {
    let values = head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|said| said.trim().eq_ignore_ascii_case(word))
}

/// The names to drop: the hop-by-hop ones, those that `Connection` names, and the ones `also` says.
fn dropped(headers: &HeaderMap, also: impl Fn(&HeaderName) -> bool) -> Vec<HeaderName> {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    let is_dropped = |name: &&HeaderName| {
        HOP_BY_HOP.contains(name) || name.as_str() == "proxy-connection" || named.contains(name) || also(name)
    };
    headers.keys().filter(is_dropped).cloned().collect()
}

/// The head of every leg: the client's, less what is between the client and Baton. `Host` and `Content-Length` are the
/// leg's own; `Accept-Encoding` goes because a compressed event stream could not be read; `Expect` because the body is here
/// already.
pub(super) fn for_legs(client: &RequestHeader) -> RequestHeader {
    let mut head = client.clone();
    let own = [header::HOST, header::CONTENT_LENGTH, header::ACCEPT_ENCODING, header::EXPECT];
    // What names an event holds a stream's id, which is for its client only.
    let is_own = |name: &HeaderName| is_own(name) || own.contains(name) || name.as_str() == LAST_EVENT_ID;
    for name in dropped(&client.headers, is_own) {
        head.remove_header(&name);
    }
    head.set_version(Version::HTTP_11);
    // HTTP/2 requests, and absolute targets, name the authority that the client asked for.
    let target = client.uri.path_and_query().map_or("/", |target| target.as_str());
    if let Ok(target) = target.parse() {
        head.set_uri(target);
    }
    head
}

/// The same for the legs behind the first, whose requests are others: a server that knows requests by their keys must not take
/// them for the client's own.
pub(super) fn for_later_legs(first: &Arc<RequestHeader>) -> Arc<RequestHeader> {
    if !first.headers.contains_key(IDEMPOTENCY_KEY) {
        return Arc::clone(first);
    }
    let mut head = RequestHeader::clone(first);
    head.remove_header(IDEMPOTENCY_KEY);
    Arc::new(head)
}

/// Takes the headers that are for Baton out of a request that goes through Pingora's own loop, which strips the hop-by-hop
/// ones itself.
pub(super) fn strip_own(request: &mut RequestHeader) {
    let own: Vec<HeaderName> = request.headers.keys().filter(|name| is_own(name)).cloned().collect();
    for name in own {
        request.remove_header(&name);
    }
}

/// An engine's response header as the client gets it through Pingora's own loop, which needs the framing for itself.
pub(super) fn strip_response(response: &mut ResponseHeader) {
    for name in dropped(&response.headers, |_| false) {
        if name != header::TRANSFER_ENCODING {
            response.remove_header(&name);
        }
    }
}

/// An engine's response header as the client gets it from a leg. `client` is the version of the client's request, which
/// decides how a body without a length is framed.
pub(super) fn for_client(engine: &ResponseHeader, client: Version) -> ResponseHeader {
    let mut response = engine.clone();
    for name in dropped(&engine.headers, |_| false) {
        response.remove_header(&name);
    }
    response.set_version(Version::HTTP_11);
    let has_body = !matches!(response.status.as_u16(), 204 | 304);
    if has_body && client == Version::HTTP_11 && !response.headers.contains_key(header::CONTENT_LENGTH) {
        // Without it Pingora would end the body by closing the connection.
        let framed = response.insert_header(header::TRANSFER_ENCODING, "chunked");
        debug_assert!(framed.is_ok(), "a static header is valid");
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &'static str)]) -> RequestHeader {
        let mut head = RequestHeader::build("POST", b"/v1/chat/completions?a=b", None).unwrap();
        for (name, value) in headers {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_leg_gets_the_client_s_headers_less_those_of_the_connection() {
        let head = for_legs(&request(&[
            ("Authorization", "Bearer k"),
            ("X-Request-Id", "7"),
            ("Connection", "keep-alive, X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Transfer-Encoding", "chunked"),
            ("Host", "baton.example"),
            ("Content-Length", "12"),
            ("Accept-Encoding", "gzip"),
            ("Expect", "100-continue"),
            ("Baton-Resume", "on"),
        ]));
        assert_eq!(names(&head.headers), ["authorization", "x-request-id"]);
        assert_eq!(head.uri.to_string(), "/v1/chat/completions?a=b");
    }

    #[test]
    fn a_leg_s_target_names_no_authority() {
        let mut client = request(&[]);
        client.set_uri("https://baton.example/v1/chat/completions?x".parse().unwrap());
        client.set_version(Version::HTTP_2);
        let head = for_legs(&client);
        assert_eq!(head.uri.to_string(), "/v1/chat/completions?x");
        assert_eq!(head.version, Version::HTTP_11);
    }

    #[test]
    fn a_repeated_header_crosses_with_all_its_values() {
        let head = for_legs(&request(&[("X-Tag", "a"), ("X-Tag", "b")]));
        assert_eq!(head.headers.get_all("x-tag").iter().count(), 2);
    }

    fn response(headers: &[(&'static str, &'static str)]) -> ResponseHeader {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in headers {
            response.append_header(*name, *value).unwrap();
        }
        response
    }

    #[test]
    fn a_response_keeps_its_length_and_gets_no_other_framing() {
        let engine = response(&[("Content-Length", "2"), ("Connection", "close"), ("X-Engine", "1")]);
        assert_eq!(names(&for_client(&engine, Version::HTTP_11).headers), ["content-length", "x-engine"]);
    }

    #[test]
    fn a_response_without_a_length_is_chunked_for_http_1_1_only() {
        let engine = response(&[]);
        let chunked = |version| for_client(&engine, version).headers.contains_key("transfer-encoding");
        assert!(chunked(Version::HTTP_11));
        assert!(!chunked(Version::HTTP_10));
        assert!(!chunked(Version::HTTP_2));
    }

    #[test]
    fn only_baton_s_own_headers_are_taken_from_a_request_that_passes() {
        let mut passing = request(&[("Baton-Resume", "on"), ("Accept-Encoding", "gzip")]);
        strip_own(&mut passing);
        assert_eq!(names(&passing.headers), ["accept-encoding"]);
    }
}
