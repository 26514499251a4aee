//! The two questions to an engine's tokenizer, which vLLM always has (0.32, entrypoints/serve/tokenize/protocol.py).

use crate::proto::chat::TokenIds;
use crate::proto::chat::json::{self, Object};

/// Text to ids.
pub(super) const TOKENIZE: &str = "/tokenize";
/// Ids to text.
pub(super) const DETOKENIZE: &str = "/detokenize";

/// Asks [`DETOKENIZE`] which text these ids are. Where the client names no `model`, none need be named here.
pub(super) fn detokenize(model: Option<&str>, ids: &TokenIds) -> String {
    let mut body = of_model(model);
    body.set("tokens", json::raw_text(ids.to_json()));
    body.to_text()
}

/// The text in the answer to [`detokenize`].
pub(super) fn detokenized(body: &str) -> Option<String> {
    Object::parse(body).ok()?.text("prompt")
}

/// Asks [`TOKENIZE`] which ids this text is, where it stands behind a prompt, so that nothing is added to it.
pub(super) fn tokenize(model: Option<&str>, text: &str) -> String {
    let mut body = of_model(model);
    body.set("prompt", json::raw(text));
    body.set("add_special_tokens", json::raw(&false));
    body.to_text()
}

/// The ids in the answer to [`tokenize`].
pub(super) fn tokenized(body: &str) -> Option<TokenIds> {
    TokenIds::read(Object::parse(body).ok()?.get("tokens")?.get())
}

fn of_model(model: Option<&str>) -> Object<'static> {
    let mut body = Object::default();
    if let Some(model) = model {
        body.set("model", json::raw(model));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_name_a_model_where_the_client_does() {
        let ids: TokenIds = [1, 2].into_iter().collect();
        assert_eq!(detokenize(Some("m\""), &ids), r#"{"model":"m\"","tokens":[1,2]}"#);
        assert_eq!(detokenize(None, &ids), r#"{"tokens":[1,2]}"#);
        assert_eq!(tokenize(None, "\n"), r#"{"prompt":"\n","add_special_tokens":false}"#);
    }

    #[test]
    fn answers_of_another_kind_are_none() {
        assert_eq!(detokenized(r#"{"prompt":"a\n"}"#).as_deref(), Some("a\n"));
        assert_eq!(tokenized(r#"{"count":2,"tokens":[1,2]}"#).map(|ids| ids.len()), Some(2));
        for body in ["", "[]", "{}", r#"{"prompt":1,"tokens":"1"}"#, r#"{"tokens":[-1]}"#] {
            assert_eq!((detokenized(body), tokenized(body)), (None, None), "{body}");
        }
    }
}
