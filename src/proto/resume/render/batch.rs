//! The generating stream, and which of its tokens are made text together.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::events::Writer;
use super::{Broken, GENERATE};
use crate::proto::chat::TokenIds;
use crate::proto::resume::family::Marks;
use crate::proto::sse::{self, Decoder, Item};

/// Events that wait behind a full batch because they may end half a mark or half a character. A mark of more tokens is not waited
/// for.
const MAX_WAITING: usize = 16;

/// Tokens that are derendered together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    pub(super) ids: TokenIds,
    /// The generation is over with them.
    pub(super) finish: Option<Finish>,
    /// Of the ids, those of marks of thinking.
    pub(super) marks: usize,
    /// They end the thinking, if there is any.
    pub(super) closes: bool,
    /// Whether the engine said what text the tokens are.
    pub(super) told: bool,
}

impl Batch {
    /// The ids that are text. The token that ended the turn is none: a chat completion leaves it out before the parser sees the
    /// text (vLLM 0.32, v1/engine/detokenizer.py, `stop_terminated`), and derender would write it.
    pub(super) fn spoken(&self, stop_is_text: bool) -> TokenIds {
        let mut ids = self.ids.clone();
        if !stop_is_text {
            ids.truncate(ids.len().saturating_sub(self.stops()));
        }
        ids
    }

    /// How many ids at the end ended the turn.
    pub(super) fn stops(&self) -> usize {
        usize::from(self.finish.as_ref().is_some_and(Finish::is_by_token))
    }
}

/// How the generation ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finish {
    /// The engine's word for it.
    pub(super) reason: String,
    /// Its `stop_reason`, as JSON.
    pub(super) stop: String,
}

impl Finish {
    /// As a chat completion says it: the parser makes `tool_calls` of a `stop`, and of nothing else. (vLLM 0.32's derender makes it
    /// of every reason, its chat completions only of `stop`.)
    pub(super) fn with(&self, parser: Option<&str>) -> Self {
        let reason = if self.reason == "stop" { parser.unwrap_or("stop") } else { &self.reason };
        Self { reason: reason.to_owned(), stop: self.stop.clone() }
    }

    /// The model ended its turn: by its own token (`null`) or by one that the request names (its id).
    fn is_by_token(&self) -> bool {
        self.reason == "stop" && !self.stop.starts_with('"')
    }

    /// The engine was told to stop: nothing is finished, and what the parser holds back must not come out.
    fn is_abort(&self) -> bool {
        self.reason == "abort"
    }
}

/// One event's tokens.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    ids: TokenIds,
    /// `None`: the engine does not say (`output_mode` is not known to it).
    text: Option<String>,
}

/// What has come and is not derendered yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stream {
    decoder: Decoder,
    pieces: Vec<Piece>,
    finish: Option<Finish>,
    /// An `abort`, which the parser is not told.
    aborted: Option<Finish>,
    usage: Option<String>,
    /// The data of an error event.
    error: Option<Vec<u8>>,
    done: bool,
    ended: bool,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<serde_json::Value>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    text: Option<String>,
}

impl Stream {
    pub(super) fn new(max_event: usize) -> Self {
        Self {
            decoder: Decoder::new(max_event),
            pieces: Vec::new(),
            finish: None,
            aborted: None,
            usage: None,
            error: None,
            done: false,
            ended: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
        let mut events = decoder.feed(bytes);
        let mut fed = Ok(());
        while let Some(item) = events.next() {
            match item {
                // The decoder wants to be read to the end.
                Ok(Item::Event(event)) if fed.is_ok() => fed = self.take(event.data),
                Ok(_) => {}
                Err(error) => fed = Err(error.into()),
            }
        }
        self.decoder = decoder;
        fed
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Broken> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let malformed = |what| Broken::Malformed { path: GENERATE, what };
        let event: Event<'_> = serde_json::from_slice(data).map_err(|_| malformed("event of tokens"))?;
        if event.error.is_some() {
            self.error = Some(data.to_vec());
            return Ok(());
        }
        self.usage = event.usage.map(|usage| usage.get().to_owned()).or(self.usage.take());
        for choice in event.choices {
            if self.finish.is_some() || self.aborted.is_some() {
                return Err(malformed("end behind its finish reason"));
            }
            if choice.token_ids.is_none() && choice.text.as_ref().is_some_and(|text| !text.is_empty()) {
                return Err(malformed("token_ids beside its text"));
            }
            let ids: TokenIds = choice.token_ids.unwrap_or_default().into_iter().collect();
            if !ids.is_empty() {
                self.pieces.push(Piece { ids, text: choice.text });
            }
            let stop = choice.stop_reason.map_or_else(|| "null".to_owned(), |stop| stop.to_string());
            let finish = choice.finish_reason.map(|reason| Finish { reason, stop });
            match finish {
                Some(finish) if finish.is_abort() => self.aborted = Some(finish),
                finish => self.finish = finish,
            }
        }
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Ids that are not derendered yet.
    pub(super) fn pending_ids(&self) -> usize {
        self.pieces.iter().map(|piece| piece.ids.len()).sum()
    }

    /// Whether nothing comes that could still be waited for.
    pub(super) fn is_over(&self) -> bool {
        self.done || self.ended || self.error.is_some()
    }

    /// The tokens that are to be derendered now, if any are: `every` events, without those at their end that may be half of
    /// something; fewer where thinking ends, so that no batch holds both kinds, and at the end.
    pub(super) fn batch(&mut self, every: usize, marks: Option<&Marks>) -> Option<Batch> {
        let text = Text::of(&self.pieces);
        let close = marks.and_then(|marks| text.find(marks.close));
        let last = self.finish.is_some() || self.aborted.is_some() || self.is_over();
        let count = match &close {
            Some(close) => close.end,
            None if last => self.pieces.len(),
            None if self.pieces.len() < every => return None,
            None => match self.pieces.len() - text.half(marks) {
                0 if self.pieces.len() < every + MAX_WAITING => return None,
                0 => self.pieces.len(),
                whole => whole,
            },
        };
        let open = marks.and_then(|marks| text.find(marks.open)).filter(|open| open.end <= count);
        let mut batch = Batch { closes: close.is_some(), told: text.told, ..Batch::default() };
        for (at, piece) in self.pieces.drain(..count).enumerate() {
            batch.ids.extend(&piece.ids);
            if [&open, &close].into_iter().flatten().any(|mark| mark.contains(&at)) {
                batch.marks += piece.ids.len();
            }
        }
        if self.pieces.is_empty() {
            batch.finish = self.finish.take();
        }
        (!batch.ids.is_empty() || batch.finish.is_some()).then_some(batch)
    }

    /// Writes what stands behind the last token: an error as it came, an `abort`, the usage, `[DONE]`.
    pub(super) fn tail(&mut self, writer: &mut Writer, out: &mut Vec<u8>) {
        if let Some(aborted) = self.aborted.take() {
            writer.pieces(out, &[], Some(&aborted), None);
        }
        if let Some(error) = self.error.take() {
            sse::encode(out, None, None, &error);
        }
        if let Some(usage) = self.usage.take() {
            writer.usage(out, &usage);
        }
        if std::mem::take(&mut self.done) {
            sse::encode(out, None, None, b"[DONE]");
        }
    }
}

/// The text of waiting tokens, and where each one's begins.
struct Text {
    text: String,
    starts: Vec<usize>,
    told: bool,
}

impl Text {
    fn of(pieces: &[Piece]) -> Self {
        let (mut text, mut starts) = (String::new(), Vec::with_capacity(pieces.len()));
        for piece in pieces {
            starts.push(text.len());
            text.push_str(piece.text.as_deref().unwrap_or_default());
        }
        Self { text, starts, told: pieces.iter().all(|piece| piece.text.is_some()) }
    }

    /// The tokens that write the first `mark`.
    fn find(&self, mark: &str) -> Option<std::ops::Range<usize>> {
        let from = self.text.find(mark)?;
        Some(self.at(from)..self.at(from + mark.len() - 1) + 1)
    }

    /// The token that writes the byte at `offset`: the last one that begins at or before it.
    fn at(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// How many tokens at the end may be half of something: those without text, which have brought a part of a character, and those
    /// whose text may become one of the family's marks.
    fn half(&self, marks: Option<&Marks>) -> usize {
        if !self.told {
            return 0;
        }
        let reserved = marks.map_or(&[][..], |marks| marks.reserved);
        let halves = reserved.iter().filter_map(|mark| {
            let lengths = mark.char_indices().map(|(length, _)| length).skip(1);
            lengths.filter(|length| self.text.ends_with(&mark[..*length])).last()
        });
        let from = self.text.len() - halves.max().unwrap_or(0);
        let whole = match from == self.text.len() {
            true => self.starts.partition_point(|start| *start < from),
            false => self.at(from),
        };
        self.starts.len() - whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(tokens: &[(&[u32], Option<&str>)]) -> Stream {
        let mut stream = Stream::new(1 << 16);
        for (ids, text) in tokens {
            let mut choice = serde_json::json!({"index": 0, "token_ids": ids, "finish_reason": null});
            if let Some(text) = text {
                choice["text"] = serde_json::json!(text);
            }
            stream.feed(format!("data: {}\n\n", serde_json::json!({"choices": [choice]})).as_bytes()).unwrap();
        }
        stream
    }

    /// The sizes of the batches that come of one token with each of these texts, before the end.
    fn sizes(every: usize, texts: &[&str]) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut all = stream(&[]);
        for text in texts {
            all.pieces.extend(stream(&[(&[1], Some(text))]).pieces);
            while let Some(batch) = all.batch(every, Some(&Marks::THINK)) {
                sizes.push(batch.ids.len());
            }
        }
        sizes
    }

    #[test]
    fn a_batch_is_so_many_events() {
        assert_eq!(sizes(3, &["a"; 8]), [3, 3]);
        assert_eq!(sizes(1, &["a"; 3]), [1, 1, 1]);
    }

    #[test]
    fn what_may_be_half_a_mark_waits_for_the_next_batch() {
        assert_eq!(sizes(2, &["a", "b</", "thi"]), [1], "until it is whole or turns out to be none");
        assert_eq!(sizes(2, &["a", "b</", "thi", "s"]), [1, 3]);
        assert_eq!(sizes(2, &["a", "b</", "thi", "nk>", "c", "d"]), [1, 3, 2]);
    }

    #[test]
    fn half_a_character_waits_for_the_next_batch() {
        assert_eq!(sizes(2, &["a", "", "", "\u{1F514}"]), [1, 3]);
    }

    #[test]
    fn waiting_has_an_end() {
        assert_eq!(sizes(2, &[""; 20]), [18]);
    }

    #[test]
    fn a_batch_ends_where_thinking_ends() {
        let mut all = stream(&[(&[1], Some("a")), (&[2, 3], Some("</think>")), (&[4], Some("b"))]);
        let batch = all.batch(8, Some(&Marks::THINK)).unwrap();
        assert_eq!((batch.ids.len(), batch.marks, batch.closes), (3, 2, true));
        assert_eq!(all.batch(8, Some(&Marks::THINK)), None, "the rest is not so many events yet");
    }

    #[test]
    fn an_engine_that_does_not_say_the_text_gets_plain_batches() {
        let mut all = stream(&[(&[1], None), (&[2], None)]);
        let batch = all.batch(2, Some(&Marks::THINK)).unwrap();
        assert_eq!((batch.ids.len(), batch.told), (2, false));
    }

    #[test]
    fn the_end_takes_everything_and_carries_the_finish_reason() {
        let mut all = stream(&[(&[1], Some("a</thi"))]);
        all.feed(b"data: {\"choices\":[{\"token_ids\":[2],\"text\":\"\",\"finish_reason\":\"length\",\"stop_reason\":7}]}\n\n").unwrap();
        let batch = all.batch(8, Some(&Marks::THINK)).unwrap();
        assert_eq!(batch.ids.len(), 2);
        assert_eq!(batch.finish, Some(Finish { reason: "length".to_owned(), stop: "7".to_owned() }));
    }

    #[test]
    fn the_parser_makes_tool_calls_of_a_stop_and_of_nothing_else() {
        let with =
            |reason: &str| Finish { reason: reason.to_owned(), stop: String::new() }.with(Some("tool_calls")).reason;
        assert_eq!(with("stop"), "tool_calls");
        assert_eq!(with("length"), "length");
    }
}
