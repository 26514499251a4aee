//! The events of completions and of tokens, as recorded from vLLM 0.32. Neither parses anything.

use std::fmt::Write as _;

use super::answer::{Beat, Finish};
use super::wire::{Form, Stream, id_list};

impl Stream<'_> {
    /// A chunk with one choice of a completion, or of tokens.
    pub(super) fn form_chunk(
        &self,
        data: &mut String,
        at: usize,
        beat: Option<usize>,
        reason: Option<&str>,
        finish: Option<&Finish>,
    ) {
        let empty = Beat::default();
        let of = beat.and_then(|beat| self.choices[at].beats.get(beat)).unwrap_or(&empty);
        let stop = finish.map_or("null".to_owned(), |finish| self.stop_reason_of(finish));
        match self.form {
            Form::Tokens { with_text } => self.tokens_chunk(data, at, of, reason, &stop, with_text),
            Form::Text | Form::Chat => self.text_chunk(data, at, of, beat == Some(0), reason, &stop),
        }
    }

    /// A finish chunk with `abort`, after this beat.
    pub(super) fn form_abort_chunk(&self, data: &mut String, beat: Option<usize>) {
        let tokens = beat.and_then(|beat| self.choices[0].beats.get(beat)).map_or(0, |beat| beat.tokens);
        let of = Beat { tokens, ..Beat::default() };
        match self.form {
            Form::Tokens { with_text } => self.tokens_chunk(data, 0, &of, Some("abort"), "null", with_text),
            Form::Text | Form::Chat => self.text_chunk(data, 0, &of, false, Some("abort"), "null"),
        }
    }

    fn text_chunk(&self, data: &mut String, at: usize, of: &Beat, first: bool, reason: Option<&str>, stop: &str) {
        self.text_head(data);
        let (text, reason_json) = (self.quoted(&of.said.content), quoted_or_null(reason));
        let prompt = id_list(self.prompt_ids.as_deref().filter(|_| first));
        let ids = id_list(self.returns_ids.then_some(&of.ids));
        let _ = write!(
            data,
            ",\"choices\":[{{\"index\":{at},\"text\":{text},\"logprobs\":null,\"finish_reason\":{reason_json},\
             \"stop_reason\":{stop},\"prompt_token_ids\":{prompt},\"token_ids\":{ids}}}]"
        );
        if self.continuous_usage {
            let _ = write!(data, ",\"usage\":{}", self.plain_usage(of.tokens, false));
        }
        if reason.is_some() && !self.include_usage {
            self.fingerprint(data);
        }
        data.push('}');
    }

    fn text_head(&self, data: &mut String) {
        let (id, created, model) = (self.quoted(&self.id), self.created, self.quoted(&self.model));
        let _ = write!(data, "{{\"id\":{id},\"object\":\"text_completion\",\"created\":{created},\"model\":{model}");
    }

    fn tokens_chunk(&self, data: &mut String, at: usize, of: &Beat, reason: Option<&str>, stop: &str, with_text: bool) {
        let usage = if self.continuous_usage { self.plain_usage(of.tokens, true) } else { "null".to_owned() };
        let _ = write!(data, "{{\"request_id\":{},\"usage\":{usage},", self.quoted(&self.id));
        let first = of.tokens == of.ids.len() && !of.ids.is_empty();
        if let Some(ids) = self.prompt_ids.as_deref().filter(|_| first) {
            let _ = write!(data, "\"prompt_token_ids\":{},", id_list(Some(ids)));
        }
        let text = if with_text { format!("\"text\":{},", self.quoted(&of.said.content)) } else { String::new() };
        let _ = write!(
            data,
            "\"output_mode\":\"{}\",\"choices\":[{{\"index\":{at},\"finish_reason\":{},\"stop_reason\":{stop},\"token_ids\":{},\
             \"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":{},{text}\"logprobs\":null}}]}}",
            output_mode(with_text),
            quoted_or_null(reason),
            id_list(Some(&of.ids)),
            self.weights(reason.is_some(), of.tokens),
        );
    }

    fn weights(&self, finished: bool, tokens: usize) -> String {
        match finished {
            true => format!("[{{\"version\":\"default\",\"start\":0,\"end\":{tokens}}}]"),
            false => "null".to_owned(),
        }
    }

    /// The usage chunk.
    pub(super) fn form_usage_chunk(&self, data: &mut String) {
        let usage = self.plain_usage(self.totals().0, false);
        if let Form::Tokens { with_text } = self.form {
            let (id, mode) = (self.quoted(&self.id), output_mode(with_text));
            let _ = write!(data, "{{\"request_id\":{id},\"usage\":{usage},\"output_mode\":\"{mode}\",\"choices\":[]}}");
            return;
        }
        self.text_head(data);
        let _ = write!(data, ",\"choices\":[],\"usage\":{usage}");
        self.fingerprint(data);
        data.push('}');
    }

    /// Usage without a count of reasoning; with nulls for what is not known, or without.
    fn plain_usage(&self, completion: usize, nulls: bool) -> String {
        let prompt = self.prompt_tokens;
        let nulls = if nulls { ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null" } else { "" };
        let total = prompt + completion as u64;
        format!("{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}{nulls}}}")
    }

    /// The body of the answer to a request without `stream`.
    pub(super) fn form_whole(&self) -> String {
        let choice = &self.choices[0];
        let (finish, stop) = (choice.finish.name(), self.stop_reason_of(&choice.finish));
        let text = self.quoted(&choice.text(super::text::Kind::Content));
        let tokens = choice.totals().0;
        let usage = self.plain_usage(tokens, true);
        let mut data = String::new();
        let prompt = id_list(self.prompt_ids.as_deref());
        if let Form::Tokens { with_text } = self.form {
            let (id, model, mode) = (self.quoted(&self.id), self.quoted(&self.model), output_mode(with_text));
            let text = if with_text { format!("\"text\":{text},") } else { String::new() };
            let _ = write!(
                data,
                "{{\"request_id\":{id},\"model\":{model},\"created\":{},\"usage\":{usage},\"prompt_logprobs\":null,\
                 \"prompt_token_id_logprobs\":null,\"prompt_token_ids\":{prompt},\"mm_placeholders\":null,\"metrics\":null,\
                 \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"output_mode\":\"{mode}\",\"choices\":[{{\"index\":0,\
                 \"finish_reason\":\"{finish}\",\"stop_reason\":{stop},\"token_ids\":{},\"routed_experts\":null,\
                 \"sampling_mask\":null,\"weight_versions\":{},{text}\"logprobs\":null}}]}}",
                self.created,
                id_list(Some(&choice.ids())),
                self.weights(true, tokens),
            );
            return data;
        }
        self.text_head(&mut data);
        let ids = choice.ids();
        let ids = id_list(self.returns_ids.then_some(&ids[..]));
        let _ = write!(
            data,
            ",\"choices\":[{{\"index\":0,\"text\":{text},\"logprobs\":null,\"finish_reason\":\"{finish}\",\
             \"stop_reason\":{stop},\"token_ids\":{ids},\"prompt_logprobs\":null,\"prompt_token_ids\":{prompt},\
             \"routed_experts\":null}}],\"service_tier\":null"
        );
        self.fingerprint(&mut data);
        let _ = write!(
            data,
            ",\"usage\":{usage},\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}"
        );
        data
    }
}

fn output_mode(with_text: bool) -> &'static str {
    if with_text { "text" } else { "tokens" }
}

fn quoted_or_null(text: Option<&str>) -> String {
    text.map_or("null".to_owned(), |text| format!("\"{text}\""))
}
