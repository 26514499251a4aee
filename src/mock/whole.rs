//! The body of the answer to a request without `stream`.

use std::fmt::Write as _;

use super::text::Kind;
use super::wire::{Stream, id_list};

impl Stream<'_> {
    /// The whole answer; on vLLM as recorded from 0.32.
    pub(super) fn whole(&self) -> String {
        let choices: Vec<String> = (0..self.choices.len()).map(|at| self.whole_choice(at)).collect();
        let mut data = String::new();
        let (id, created, model) = (self.quoted(&self.id), self.created, self.quoted(&self.model));
        let _ = write!(
            data,
            "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\"choices\":[{}]",
            choices.join(",")
        );
        if self.is_vllm() {
            data.push_str(",\"service_tier\":null");
            self.fingerprint(&mut data);
        }
        data.push_str(",\"usage\":");
        let (tokens, reasoning) = self.totals();
        self.usage(&mut data, tokens, reasoning, true);
        if self.is_vllm() {
            let ids = id_list(self.prompt_ids.as_deref());
            let _ = write!(
                data,
                ",\"prompt_logprobs\":null,\"prompt_token_ids\":{ids},\"prompt_text\":null,\"kv_transfer_params\":null,\
                 \"ec_transfer_params\":null,\"metrics\":null"
            );
        }
        data.push('}');
        data
    }

    fn whole_choice(&self, at: usize) -> String {
        let choice = &self.choices[at];
        let text = |kind: Kind| match choice.text(kind) {
            text if text.is_empty() => "null".to_owned(),
            text => self.quoted(&text),
        };
        let (content, role) = (text(Kind::Content), self.quoted(&self.role));
        let reasoning = self.reasoning(&choice.text(Kind::Reasoning));
        let call = choice.call().map(|(name, arguments)| {
            format!(
                "[{{\"id\":\"{}\",\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}]",
                self.call_id(at),
                self.quoted(&name),
                self.quoted(&arguments)
            )
        });
        let reason = choice.finish.name();
        if self.is_vllm() {
            let calls = call.map(|call| format!(",\"tool_calls\":{call}")).unwrap_or_default();
            let ids = choice.ids();
            let ids = id_list(self.returns_ids.then_some(&ids[..]));
            return format!(
                "{{\"index\":{at},\"message\":{{\"role\":{role},\"content\":{content},\"refusal\":null,\"annotations\":null,\
                 \"audio\":null,\"function_call\":null{calls},{reasoning}}},\"logprobs\":null,\"finish_reason\":\"{reason}\",\
                 \"stop_reason\":{},\"token_ids\":{ids},\"routed_experts\":null}}",
                self.stop_reason_of(&choice.finish)
            );
        }
        let calls = call.unwrap_or_else(|| "null".to_owned());
        format!(
            "{{\"index\":{at},\"message\":{{\"role\":{role},\"content\":{content},{reasoning},\"tool_calls\":{calls}}},\
             \"logprobs\":null,\"finish_reason\":\"{reason}\",\"matched_stop\":null}}"
        )
    }
}
