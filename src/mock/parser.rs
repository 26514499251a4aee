//! The engine's reasoning and tool parser: from text to what a delta says.
//!
//! As measured on vLLM 0.32 with its qwen3 reasoning parser and its hermes tool parser. While thinking, and while answering if there
//! are tools, text that may be the beginning of a tag waits for what follows, so that a token such as ` <` brings only its blank.

use super::config::Template;
use super::family::Family;
use super::text::Kind;
use super::tokens::encode;

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// What one event says. All of it can come at once when an event holds several tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
}

/// A piece of a tool call: its name, or some of its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Name(String),
    Arguments(String),
}

impl Said {
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    fn add(&mut self, kind: Kind, text: &str) {
        match kind {
            Kind::Reasoning => self.reasoning.push_str(text),
            Kind::Content => self.content.push_str(text),
        }
    }
}

/// Where a parser stands when the prompt ends with these ids: the last tag since the turn began decides (vLLM 0.32,
/// `parser/engine/parser_engine.py is_reasoning_end`); without any it is whether the request is answered with thinking.
pub(super) fn state_after(prompt: &[u32], family: &Family, thinks: bool) -> Kind {
    let turn = prompt.iter().rposition(|id| *id == super::tokens::START).unwrap_or(0);
    let last = |tag: &str| {
        let tag = encode(tag);
        prompt[turn..].windows(tag.len()).rposition(|window| window == tag)
    };
    let closed = last(family.close).max(last(CALL));
    match (last(family.open), closed) {
        (open, Some(closed)) if Some(closed) > open => Kind::Content,
        (Some(_), _) => Kind::Reasoning,
        (None, _) if thinks => Kind::Reasoning,
        (None, _) => Kind::Content,
    }
}

/// A parser in the middle of an answer.
#[derive(Clone, Debug)]
pub(super) struct Parser {
    family: Family,
    tools: bool,
    state: State,
    /// Text that may be the beginning of a tag.
    held: String,
}

#[derive(Clone, Debug)]
enum State {
    Reasoning,
    Content,
    Call(Body),
    /// After a call; nothing more is said.
    Over,
}

impl Parser {
    pub(super) fn new(family: &Family, state: Kind, tools: bool) -> Self {
        let state = if state == Kind::Reasoning { State::Reasoning } else { State::Content };
        Self { family: *family, tools, state, held: String::new() }
    }

    /// Takes text in; at the end, what was held back comes out.
    pub(super) fn feed(&mut self, text: &str, finished: bool) -> Said {
        let mut said = Said::default();
        self.held.push_str(text);
        loop {
            let held = std::mem::take(&mut self.held);
            let tags: &[&str] = match self.state {
                State::Reasoning => &[self.family.close, self.family.open, CALL, CALL_END],
                State::Content if self.tools => &[CALL],
                State::Content | State::Over => &[],
                State::Call(_) => &[CALL_END],
            };
            let found = tags.iter().filter_map(|tag| Some((held.find(tag)?, *tag))).min_by_key(|(at, _)| *at);
            if let Some((at, tag)) = found {
                self.say(&held[..at], &mut said);
                self.held = held[at + tag.len()..].to_owned();
                self.pass(tag);
                continue;
            }
            let waits = (0..held.len()).filter(|at| held.is_char_boundary(*at)).find(|at| {
                let end = &held[*at..];
                !finished && self.waits() && tags.iter().any(|tag| tag.starts_with(end))
            });
            let (now, later) = held.split_at(waits.unwrap_or(held.len()));
            self.say(now, &mut said);
            self.held = later.to_owned();
            return said;
        }
    }

    /// Whether text that may be the beginning of a tag waits. The parsers of DeepSeek and Mistral look for the tags' ids and not for their
    /// text (vLLM 0.32, `reasoning/basic_parsers.py`); a tag of several tokens has to be awaited all the same.
    fn waits(&self) -> bool {
        let by_id = [Template::DeepseekR1, Template::DeepseekV3, Template::Mistral].contains(&self.family.template);
        !(by_id && matches!(self.state, State::Reasoning))
    }

    /// Text of which nothing is read: the prompt that a decoder started inside a character gives out.
    pub(super) fn verbatim(&mut self, text: &str) -> Said {
        let mut said = Said::default();
        let kind = if matches!(self.state, State::Reasoning) { Kind::Reasoning } else { Kind::Content };
        said.add(kind, text);
        said
    }

    fn say(&mut self, text: &str, said: &mut Said) {
        match &mut self.state {
            State::Reasoning => said.add(Kind::Reasoning, text),
            State::Content => said.add(Kind::Content, text),
            State::Call(body) => body.feed(text, &mut said.calls),
            State::Over => {}
        }
    }

    fn pass(&mut self, tag: &str) {
        self.state = match tag {
            CALL if self.tools => State::Call(Body::default()),
            CALL_END if matches!(self.state, State::Call(_)) => State::Over,
            tag if tag == self.family.close => State::Content,
            _ => return,
        };
    }
}

/// The JSON of a call, as far as it has come: `{"name": "…", "arguments": {…}}`.
#[derive(Clone, Debug, Default)]
struct Body {
    text: String,
    named: bool,
    /// Where the arguments begin, how much of them is out, and whether they are whole.
    arguments: Option<usize>,
    given: usize,
    whole: bool,
}

impl Body {
    fn feed(&mut self, text: &str, calls: &mut Vec<Call>) {
        self.text.push_str(text);
        if !self.named {
            let name = self.text.split_once("\"name\": \"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
            let Some(name) = name else { return };
            calls.push(Call::Name(name.to_owned()));
            self.named = true;
        }
        const KEY: &str = "\"arguments\":";
        if self.arguments.is_none() {
            let Some(key) = self.text.find(KEY).map(|at| at + KEY.len()) else { return };
            let Some(begin) = self.text[key..].find('{') else { return };
            (self.arguments, self.given) = (Some(key + begin), key + begin);
        }
        if self.whole {
            return;
        }
        let end = self.arguments.and_then(|from| Some(from + object_end(&self.text[from..])?));
        self.whole = end.is_some();
        let end = end.unwrap_or(self.text.len());
        if end > self.given {
            calls.push(Call::Arguments(self.text[self.given..end].to_owned()));
            self.given = end;
        }
    }
}

/// Where a JSON object ends, if it does.
fn object_end(json: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(state: Kind, tools: bool, texts: &[&str]) -> Vec<Said> {
        let mut parser = Parser::new(&Family::named("qwen3"), state, tools);
        let last = texts.len() - 1;
        texts.iter().enumerate().map(|(at, text)| parser.feed(text, at == last)).collect()
    }

    fn reasoning(text: &str) -> Said {
        Said { reasoning: text.to_owned(), ..Said::default() }
    }

    fn content(text: &str) -> Said {
        Said { content: text.to_owned(), ..Said::default() }
    }

    #[test]
    fn while_thinking_the_beginning_of_a_tag_waits() {
        // Recorded from vLLM 0.32: the tokens of "Hello < world (<b> <tool x </th e".
        let texts = ["Hello", " <", " world", " (<", "b", ">", " <", "tool", " x", " </", "th", " e"];
        let said = said(Kind::Reasoning, false, &texts);
        let want = ["Hello", " ", "< world", " (", "<b", ">", " ", "", "<tool x", " ", "", "</th e"];
        assert_eq!(said, want.map(reasoning));
    }

    #[test]
    fn while_answering_it_waits_only_where_a_tool_could_be_called() {
        let texts = ["Hello", " <", "tool", " x", " </", "th", "<"];
        assert_eq!(said(Kind::Content, false, &texts), texts.map(content));
        let want = ["Hello", " ", "", "<tool x", " </", "th", "<"];
        assert_eq!(said(Kind::Content, true, &texts), want.map(content));
    }

    #[test]
    fn one_text_can_hold_the_end_of_thinking_an_answer_and_a_call() {
        let text = " I</think>\n\nI<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"";
        let end = "city\": \"}\\\"\"}}\n</tool_call><|im_end|>";
        let said = said(Kind::Reasoning, true, &[text, end]);
        let calls = vec![Call::Name("get_weather".to_owned()), Call::Arguments("{\"".to_owned())];
        let first = Said { reasoning: " I".to_owned(), content: "\n\nI".to_owned(), calls };
        let calls = vec![Call::Arguments("city\": \"}\\\"\"}".to_owned())];
        assert_eq!(said, [first, Said { calls, ..Said::default() }]);
    }

    #[test]
    fn without_tools_the_markup_of_a_call_is_content() {
        assert_eq!(said(Kind::Content, false, &["<tool_call>", "\n{"]), [content("<tool_call>"), content("\n{")]);
    }

    #[test]
    fn a_parser_that_looks_for_ids_holds_nothing_back() {
        let mut parser = Parser::new(&Family::named("deepseek-r1"), Kind::Reasoning, false);
        assert_eq!(parser.feed(" </", false), reasoning(" </"));
        assert_eq!(parser.feed("x</think>y", false), Said { content: "y".to_owned(), ..reasoning("x") });
    }

    #[test]
    fn the_prompt_says_whether_thinking_is_open() {
        let family = Family::named("qwen3");
        let state = |text: &str| state_after(&encode(text), &family, true);
        assert_eq!(state("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\nHm"), Kind::Reasoning);
        assert_eq!(state("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Kind::Content);
        assert_eq!(state("<|im_start|>assistant\n"), Kind::Reasoning);
        assert_eq!(state("<think></think><|im_start|>user\n"), Kind::Reasoning);
        assert_eq!(state_after(&encode("x"), &family, false), Kind::Content);
    }
}
