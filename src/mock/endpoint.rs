//! The requests that an engine answers with something of its own, and that faults can be meant for.

/// An endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`, and `/beta/chat/completions`, where DeepSeek's own API takes a prefix.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /inference/v1/generate`.
    Generate,
    /// `POST /v1/chat/completions/render`.
    Render,
    /// `POST /v1/chat/completions/derender`.
    Derender,
    /// `POST /tokenize`.
    Tokenize,
    /// `POST /detokenize`.
    Detokenize,
    /// `GET /version`.
    Version,
}

impl Endpoint {
    /// All of them, with method, path and the name in the scope of a fault.
    pub(super) const ALL: [(Endpoint, &'static str, &'static str, &'static str); 9] = [
        (Endpoint::Chat, "POST", "/v1/chat/completions", "chat"),
        (Endpoint::Chat, "POST", "/beta/chat/completions", "chat"),
        (Endpoint::Completions, "POST", "/v1/completions", "completions"),
        (Endpoint::Generate, "POST", "/inference/v1/generate", "generate"),
        (Endpoint::Render, "POST", "/v1/chat/completions/render", "render"),
        (Endpoint::Derender, "POST", "/v1/chat/completions/derender", "derender"),
        (Endpoint::Tokenize, "POST", "/tokenize", "tokenize"),
        (Endpoint::Detokenize, "POST", "/detokenize", "detokenize"),
        (Endpoint::Version, "GET", "/version", "version"),
    ];

    pub(super) fn of(method: &str, path: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, own, at, _)| *own == method && *at == path);
        found.map(|(endpoint, ..)| *endpoint)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(.., own)| *own == name).map(|(endpoint, ..)| *endpoint)
    }

    /// Whether it answers with tokens of the model.
    pub(super) fn answers(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions | Endpoint::Generate)
    }

    /// Whether it needs `--enable-scale-out`.
    pub(super) fn is_scale_out(self) -> bool {
        matches!(self, Endpoint::Render | Endpoint::Derender | Endpoint::Generate)
    }
}
