//! From ids to text, token by token, as vLLM 0.32 does it (`v1/engine/detokenizer.py`).
//!
//! Three things make the text lag behind the ids: a token that ends inside a character is held back as a whole; with stop strings
//! the last characters are, because they may be the beginning of one; and what ends the answer has no text at all.
//! And there is one trap: a decoder that was started inside a character takes the whole prompt for its first text
//! (vllm#48853; recorded).

use super::tokens::{decode, decode_into, ends_inside_character};

/// An incremental decoder.
#[derive(Clone, Debug)]
pub(super) struct Detok {
    skip_special: bool,
    /// Bytes that are no text yet.
    pending: Vec<u8>,
    stop: Vec<String>,
    /// Characters held back for the stop strings.
    hold: usize,
    min_tokens: usize,
    tokens: usize,
    text: String,
    /// Bytes of `text` that have been given out.
    given: usize,
    /// The next text begins with the prompt.
    trapped: bool,
}

impl Detok {
    pub(super) fn new(prompt: &[u32], skip_special: bool) -> Self {
        let bytes = decode(prompt, skip_special);
        let trapped = ends_inside_character(&bytes);
        let pending = if trapped { bytes } else { Vec::new() };
        let (stop, text) = (Vec::new(), String::new());
        Self { skip_special, pending, stop, hold: 0, min_tokens: 0, tokens: 0, text, given: 0, trapped }
    }

    /// With stop strings, which are looked for only after so many tokens.
    pub(super) fn stopping_at(mut self, stop: Vec<String>, min_tokens: usize) -> Self {
        self.hold = stop.iter().map(|stop| stop.chars().count()).max().unwrap_or(1) - 1;
        (self.stop, self.min_tokens) = (stop, min_tokens);
        self
    }

    /// Adds a token. Gives the stop string that is complete with it; the text then ends before it.
    pub(super) fn push(&mut self, id: u32) -> Option<String> {
        self.tokens += 1;
        decode_into(id, self.skip_special, &mut self.pending);
        if ends_inside_character(&self.pending) {
            return None;
        }
        let before = self.text.len();
        self.text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
        if self.tokens <= self.min_tokens {
            return None;
        }
        let found = |stop: &&String| {
            let from = (0..=before.saturating_sub(stop.len() - 1)).rev().find(|at| self.text.is_char_boundary(*at))?;
            let at = from + self.text[from..].find(stop.as_str())?;
            Some((at + stop.len(), at, (*stop).clone()))
        };
        let (_, at, stop) = self.stop.iter().filter(|stop| !stop.is_empty()).filter_map(|s| found(&s)).min()?;
        self.text.truncate(at);
        Some(stop)
    }

    /// The text that may be given out now and was not before; at the end, all of it. Whether it begins with the prompt.
    pub(super) fn take(&mut self, finished: bool) -> (String, bool) {
        let hold = if finished { 0 } else { self.hold };
        let end = match hold {
            0 => self.text.len(),
            hold => self.text.char_indices().rev().nth(hold - 1).map_or(0, |(at, _)| at),
        };
        let Some(text) = self.text.get(self.given..end).filter(|text| !text.is_empty()) else {
            return (String::new(), false);
        };
        let text = text.to_owned();
        self.given = end;
        (text, std::mem::take(&mut self.trapped))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::encode;
    use super::*;

    fn run(prompt: &str, text: &str, stop: &[&str]) -> (Vec<String>, Option<String>) {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let mut detok = Detok::new(&encode(prompt), false).stopping_at(stop, 0);
        let mut given = Vec::new();
        let ids = encode(text);
        for (at, id) in ids.iter().enumerate() {
            let stop = detok.push(*id);
            given.push(detok.take(stop.is_some() || at + 1 == ids.len()).0);
            if stop.is_some() {
                return (given, stop);
            }
        }
        (given, None)
    }

    #[test]
    fn a_token_that_ends_inside_a_character_is_held_back_as_a_whole() {
        assert_eq!(run("x", " the 🙂 light", &[]).0, [" the", "", "", " 🙂", " light"]);
    }

    #[test]
    fn with_stop_strings_as_many_characters_are_held_back_as_the_longest_has_less_one() {
        // Recorded from vLLM 0.32 with `"stop":["light ","short story"]`: ten characters.
        let (given, stop) = run("x", " the river keeps", &["light ", "short story"]);
        assert_eq!((given, stop), (vec![String::new(), String::new(), " the river keeps".to_owned()], None));
    }

    #[test]
    fn the_text_ends_before_the_stop_string_that_is_complete_first() {
        let (given, stop) = run("x", " the river light keeps", &["light", "er lig"]);
        assert_eq!((given.concat(), stop.as_deref()), (" the riv".to_owned(), Some("er lig")));
    }

    #[test]
    fn a_decoder_started_inside_a_character_gives_the_whole_prompt_first() {
        let ids = encode("Say: 🧵!");
        let mut detok = Detok::new(&ids[..ids.len() - 2], true);
        assert_eq!(detok.push(ids[ids.len() - 2]), None);
        assert_eq!(detok.take(false), ("Say: 🧵".to_owned(), true));
        detok.push(ids[ids.len() - 1]);
        assert_eq!(detok.take(false), ("!".to_owned(), false));
    }
}
