//! Pages of other origins: on real sockets, what a browser would be told.

mod support;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;

use support::{Rig, Setup, client, request, within};

const PAGE: &str = "https://app.example";

/// Baton before one engine, with these origins.
async fn rig(cors: &str) -> (Rig, baton::mock::Running) {
    let engine =
        baton::mock::Engine::start(support::engines("qwen3", "").remove(0)).await.expect("a mock engine starts");
    let keys = if cors.is_empty() { String::new() } else { format!("server: {{cors: {{origins: {cors}}}}}\n") };
    (Setup::new("").start_before(&[engine.url()], &keys).await, engine)
}

async fn send(request: RequestBuilder) -> Response {
    within(request.send()).await.expect("Baton answers")
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    let mut values = response.headers().get_all(name).iter();
    let value = values.next().map(|value| value.to_str().expect("text"));
    assert!(values.next().is_none(), "a browser refuses {name} said twice");
    value
}

fn at(rig: &Rig, path: &str) -> String {
    format!("http://{}{path}", rig.address)
}

fn preflight(rig: &Rig, path: &str, headers: &str) -> RequestBuilder {
    client()
        .request(Method::OPTIONS, at(rig, path))
        .header("Origin", PAGE)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", headers)
}

/// One answer of every kind that Baton gives, by what it is.
async fn answers(rig: &Rig) -> Vec<(&'static str, u16, Response)> {
    let http = client();
    let from_page = |request: RequestBuilder| send(request.header("Origin", PAGE));
    let stream = from_page(http.post(rig.url()).header("Baton-Resume", "on").body(request().to_string())).await;
    let plain = from_page(http.post(rig.url()).body(request().to_string())).await;
    let place = header(&stream, "location").unwrap_or_default().to_owned();
    let of = |what: &str| at(rig, &format!("{place}{what}"));
    let whole = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    vec![
        ("a stream", 200, stream),
        ("a stream that is not come back to", 200, plain),
        ("the rest", 200, from_page(http.get(of("?after=3"))).await),
        ("an acknowledgement", 204, from_page(http.post(of("/ack")).body(r#"{"seq":1}"#)).await),
        ("one that says nothing", 400, from_page(http.post(of("/ack")).body("{}")).await),
        ("the status", 200, from_page(http.get(of("/status"))).await),
        ("a cancel", 202, from_page(http.post(of("/cancel"))).await),
        ("a stream that there is not", 404, from_page(http.get(at(rig, "/v1/streams/x"))).await),
        ("an answer that does not stream", 200, from_page(http.post(rig.url()).body(whole)).await),
        ("what is passed on", 200, from_page(http.get(at(rig, "/v1/models"))).await),
        ("an engine's own refusal", 404, from_page(http.get(at(rig, "/nothing"))).await),
        ("Baton's health", 200, from_page(http.get(at(rig, "/health"))).await),
    ]
}

#[tokio::test]
async fn every_answer_says_who_may_read_it() {
    for (cors, allowed, vary) in [(format!("[\"{PAGE}\"]"), PAGE, Some("Origin")), ("\"*\"".to_owned(), "*", None)] {
        let (rig, engine) = rig(&cors).await;
        for (what, status, response) in answers(&rig).await {
            assert_eq!(response.status(), status, "{what}");
            assert_eq!(header(&response, "access-control-allow-origin"), Some(allowed), "{what}");
            let exposed = header(&response, "access-control-expose-headers");
            assert_eq!(exposed, Some("Baton-Stream, Location, Retry-After"), "{what}");
            assert_eq!(header(&response, "access-control-allow-credentials"), None, "{what}");
            assert_eq!(header(&response, "vary"), vary, "{what}");
        }
        // Pingora's loop finds nobody, and Baton says so.
        engine.kill(baton::mock::Stop::Fin).await;
        let gone = send(client().get(at(&rig, "/v1/models")).header("Origin", PAGE)).await;
        assert_eq!((gone.status().as_u16(), header(&gone, "access-control-allow-origin")), (502, Some(allowed)));
    }
}

#[tokio::test]
async fn a_page_of_another_origin_may_read_nothing() {
    let (rig, _engine) = rig("[\"https://other.example\"]").await;
    for (what, status, response) in answers(&rig).await {
        assert_eq!(response.status(), status, "{what}");
        assert_eq!(header(&response, "access-control-allow-origin"), None, "{what}");
        assert_eq!(header(&response, "vary"), Some("Origin"), "{what}");
    }
    let refused = send(preflight(&rig, "/v1/chat/completions", "authorization")).await;
    assert_eq!(refused.status(), 204);
    assert_eq!(header(&refused, "access-control-allow-origin"), None);
    assert_eq!(header(&refused, "access-control-allow-headers"), None);
}

#[tokio::test]
async fn a_preflight_is_answered_without_an_engine() {
    let (rig, engine) = rig(&format!("[\"{PAGE}\"]")).await;
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/streams/x", "/v1/streams/x/ack", "/v1/models"];
    for path in paths {
        let response = send(preflight(&rig, path, "authorization,baton-resume,x-stainless-os,x-other")).await;
        assert_eq!(response.status(), 204, "{path}");
        assert_eq!(header(&response, "access-control-allow-origin"), Some(PAGE));
        assert_eq!(header(&response, "access-control-allow-methods"), Some("GET, POST, OPTIONS"));
        let headers = header(&response, "access-control-allow-headers").expect("the headers that are allowed");
        for name in ["Authorization", "Content-Type", "Baton-Resume", "Idempotency-Key", "Last-Event-ID"] {
            assert!(headers.split(", ").any(|allowed| allowed == name), "{name}: {headers}");
        }
        assert!(headers.ends_with(", x-stainless-os"), "{headers}");
        assert_eq!(header(&response, "access-control-max-age"), Some("7200"));
        assert_eq!(header(&response, "vary"), Some("Origin"));
    }
    assert!(engine.requests().iter().all(|seen| seen.method != "OPTIONS"));
}

#[tokio::test]
async fn without_origins_nothing_is_said_of_them_and_a_preflight_is_the_engine_s() {
    let (rig, engine) = rig("").await;
    for (what, status, response) in answers(&rig).await {
        assert_eq!(response.status(), status, "{what}");
        let said = response.headers().keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!((said, header(&response, "vary")), (None, None), "{what}");
    }
    send(preflight(&rig, "/v1/chat/completions", "authorization")).await;
    assert!(engine.requests().iter().any(|seen| seen.method == "OPTIONS"));
}
