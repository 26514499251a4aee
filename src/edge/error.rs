//! From causes to HTTP: the one file that knows which status and which words a failure becomes.
//!
//! The shape is OpenAI's (`{"error":{"message","type","param","code"}}`), which every client library of this API can read. Messages say
//! what failed and what to do; they name upstreams and limits, which the operator chose, and never addresses, keys or an
//! engine's words.

use pingora::{Error, ErrorSource, ErrorType};
use serde::Serialize;

use crate::upstream::OpenError;

/// Why a request gets an answer from Baton and not from an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No route takes this model; `None` for a request whose model is not looked at.
    NoRoute {
        /// As the client wrote it.
        model: Option<String>,
    },
    /// The request's body is over `server.max_request_body`.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The client took too long to send its body.
    SlowBody,
    /// The request is not HTTP that Baton accepts.
    BadRequest,
    /// The upstream has no endpoint at the moment.
    NoEndpoint {
        /// The upstream's name.
        upstream: String,
    },
    /// No engine of the upstream accepts connections.
    Unreachable {
        /// The upstream's name.
        upstream: String,
    },
    /// An engine took the request and gave no usable answer.
    NoAnswer {
        /// The upstream's name.
        upstream: String,
    },
    /// An engine took the request and did not answer in time.
    TimedOut {
        /// The upstream's name.
        upstream: String,
    },
    /// There is no such stream, or it is another tenant's, or there is nothing of the kind to be asked of it.
    NoStream,
    /// The stream was there, and its time is over.
    StreamExpired,
    /// The request is not the one that has begun the stream, or that had its key.
    OtherRequest,
    /// The body of an acknowledgement has no number.
    BadAck,
    /// The stream does not hold any more what was asked for.
    Trimmed {
        /// The first number that it still holds.
        low: u64,
    },
    /// Baton holds as much as it may, and nothing of it can be given up.
    Overloaded,
    /// Baton itself is at fault.
    Internal,
}

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl Fault {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::NoRoute { .. } | Self::NoStream => 404,
            Self::StreamExpired | Self::Trimmed { .. } => 410,
            Self::OtherRequest => 422,
            Self::TooLarge { .. } => 413,
            Self::SlowBody => 408,
            Self::BadRequest | Self::BadAck => 400,
            Self::NoEndpoint { .. } | Self::Overloaded => 503,
            Self::Unreachable { .. } | Self::NoAnswer { .. } => 502,
            Self::TimedOut { .. } => 504,
            Self::Internal => 500,
        }
    }

    /// The stable name, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoRoute { .. } => "model_not_found",
            Self::TooLarge { .. } => "request_too_large",
            Self::SlowBody => "request_timeout",
            Self::BadRequest => "bad_request",
            Self::NoEndpoint { .. } => "upstream_without_endpoint",
            Self::Unreachable { .. } => "upstream_unreachable",
            Self::NoAnswer { .. } => "upstream_no_answer",
            Self::TimedOut { .. } => "upstream_timeout",
            Self::NoStream => "stream_not_found",
            Self::StreamExpired => "stream_expired",
            Self::Trimmed { .. } => "trimmed",
            Self::OtherRequest => "idempotency_key_reused",
            Self::BadAck => "bad_ack",
            Self::Overloaded => "overloaded",
            Self::Internal => "internal_error",
        }
    }

    /// Seconds after which it is worth trying again, where that is known.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(self, Self::Overloaded).then_some(5)
    }

    /// The JSON body.
    pub fn body(&self) -> String {
        let message = self.message();
        let kind = if self.status() < 500 { "invalid_request_error" } else { "server_error" };
        let param = matches!(self, Self::NoRoute { model: Some(_) }).then_some("model");
        let body = Body { error: Inner { message: &message, kind, param, code: self.code() } };
        // Strings always have a JSON form.
        serde_json::to_string(&body).unwrap_or_default()
    }

    fn message(&self) -> String {
        match self {
            Self::NoRoute { model: Some(model) } => {
                format!(
                    "No route takes the model `{model}`. Check the model's name, or add a route whose `match.model` takes it."
                )
            }
            Self::NoRoute { model: None } => {
                "No route takes this request. Baton looks at the model of chat completions only; \
                 other requests go to the first route whose `match.model` is `*`, and there is none."
                    .to_owned()
            }
            Self::TooLarge { limit } => format!(
                "The request's body is larger than {limit} bytes. Send less, or raise `server.max_request_body`."
            ),
            Self::SlowBody => "The request's body did not arrive in time. Send the request again.".to_owned(),
            Self::BadRequest => "The request is not valid HTTP. Check its headers.".to_owned(),
            Self::NoEndpoint { upstream } => format!(
                "The upstream `{upstream}` has no endpoint at the moment: its host names do not resolve. Try again later."
            ),
            Self::Unreachable { upstream } => format!(
                "No engine of the upstream `{upstream}` accepts connections. Try again later; the operator should check that the engines run."
            ),
            Self::NoAnswer { upstream } => format!(
                "An engine of the upstream `{upstream}` took the request and broke off before it answered. Send the request again."
            ),
            Self::TimedOut { upstream } => {
                format!("An engine of the upstream `{upstream}` did not answer in time. Send the request again.")
            }
            Self::NoStream => {
                "There is no such stream. Check its id, and send the `Authorization` that began it.".to_owned()
            }
            Self::StreamExpired => {
                "The stream is over and no longer kept. Send the request again for another answer.".to_owned()
            }
            Self::OtherRequest => {
                "The request's body differs from the one that began this stream. Send the same body, or another `Idempotency-Key`.".to_owned()
            }
            Self::BadAck => "The body has no event's number. Send {\"seq\": n}, a whole number.".to_owned(),
            Self::Trimmed { low } => {
                format!("The stream is kept from its event {low} on by now. Send the request again for a whole answer.")
            }
            Self::Overloaded => {
                "Baton has as many answers under way as it may hold. Send the request again in a few seconds.".to_owned()
            }
            Self::Internal => {
                "Baton failed to handle this request. The operator will find the reason in its log.".to_owned()
            }
        }
    }

    /// What a leg's failure is for the client.
    pub fn of_leg(error: &OpenError, upstream: &str) -> Self {
        let upstream = upstream.to_owned();
        match error {
            OpenError::NoEndpoint { .. } => Self::NoEndpoint { upstream },
            OpenError::Unreachable { .. } => Self::Unreachable { upstream },
            OpenError::Send { .. } | OpenError::NoResponse { .. } => Self::NoAnswer { upstream },
            OpenError::TimedOut { .. } => Self::TimedOut { upstream },
        }
    }

    /// What an error of Pingora's is for the client. `None`: the client is gone, nobody is left to answer.
    pub fn of_pingora(error: &Error, upstream: Option<&str>) -> Option<Self> {
        use ErrorType::*;
        let upstream = upstream.unwrap_or_default().to_owned();
        match (error.esource(), error.etype()) {
            (ErrorSource::Upstream, ConnectTimedout | ConnectRefused | ConnectNoRoute | ConnectError)
            | (ErrorSource::Upstream, TLSHandshakeFailure | TLSHandshakeTimedout | InvalidCert | HandshakeError) => {
                Some(Self::Unreachable { upstream })
            }
            (ErrorSource::Upstream, ReadTimedout | WriteTimedout) => Some(Self::TimedOut { upstream }),
            (ErrorSource::Upstream, _) => Some(Self::NoAnswer { upstream }),
            (ErrorSource::Downstream, ReadTimedout) => Some(Self::SlowBody),
            (ErrorSource::Downstream, InvalidHTTPHeader) => Some(Self::BadRequest),
            (ErrorSource::Downstream, Custom(name)) if *name == "InvalidChunk" => Some(Self::BadRequest),
            (ErrorSource::Downstream, _) => None,
            (ErrorSource::Internal | ErrorSource::Unset, _) => Some(Self::Internal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Fault> {
        let upstream = "qwen".to_owned();
        vec![
            Fault::NoRoute { model: Some("gpt-\"x\"".to_owned()) },
            Fault::NoRoute { model: None },
            Fault::TooLarge { limit: 10 },
            Fault::SlowBody,
            Fault::BadRequest,
            Fault::NoEndpoint { upstream: upstream.clone() },
            Fault::Unreachable { upstream: upstream.clone() },
            Fault::NoAnswer { upstream: upstream.clone() },
            Fault::TimedOut { upstream },
            Fault::NoStream,
            Fault::StreamExpired,
            Fault::OtherRequest,
            Fault::BadAck,
            Fault::Trimmed { low: 3 },
            Fault::Overloaded,
            Fault::Internal,
        ]
    }

    #[test]
    fn every_fault_has_the_shape_of_openai_s_errors() {
        for fault in all() {
            let body: serde_json::Value = serde_json::from_str(&fault.body()).unwrap();
            let error = &body["error"];
            assert!(error["message"].as_str().is_some_and(|m| m.ends_with('.')), "{body}");
            assert_eq!(error["code"], fault.code());
            let kind = if fault.status() < 500 { "invalid_request_error" } else { "server_error" };
            assert_eq!(error["type"], kind);
            assert!(error.as_object().unwrap().contains_key("param"));
        }
    }

    #[test]
    fn an_upstream_s_fault_names_the_upstream() {
        for fault in all().into_iter().filter(|fault| fault.code().starts_with("upstream")) {
            assert!(fault.body().contains("`qwen`"));
        }
    }

    #[test]
    fn an_unknown_model_is_named_as_the_parameter_at_fault() {
        let body: serde_json::Value = serde_json::from_str(&all()[0].body()).unwrap();
        assert_eq!(body["error"]["param"], "model");
        assert!(body["error"]["message"].as_str().unwrap().contains("gpt-\"x\""));
    }

    #[test]
    fn a_client_that_is_gone_gets_no_answer() {
        let gone = Error::explain(ErrorType::ConnectionClosed, "gone").into_down();
        assert_eq!(Fault::of_pingora(&gone, None), None);
    }

    #[test]
    fn pingora_s_errors_keep_the_difference_between_unreachable_and_unanswered() {
        let of = |kind| Fault::of_pingora(&Error::explain(kind, "").into_up(), Some("qwen"));
        assert_eq!(of(ErrorType::ConnectRefused), Some(Fault::Unreachable { upstream: "qwen".to_owned() }));
        assert_eq!(of(ErrorType::ConnectionClosed), Some(Fault::NoAnswer { upstream: "qwen".to_owned() }));
        assert_eq!(of(ErrorType::ReadTimedout), Some(Fault::TimedOut { upstream: "qwen".to_owned() }));
    }
}
