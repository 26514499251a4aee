//! The search for the last id at which the delivered text ends.

use crate::proto::chat::{Ids, TokenIds};
use crate::proto::resume::family::Marks;
use crate::proto::resume::tokenizer::{self, DETOKENIZE, TOKENIZE};
use crate::proto::resume::{Question, Refused};
use crate::proto::splice::Repeats;

/// Questions asked at most. The first one nearly always decides; a tool call that was not shown takes about ten.
const MAX_QUESTIONS: usize = 24;

/// Where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many of the answer's ids are kept.
    pub ids: usize,
    /// What the client has of the text behind them, which will be generated once more.
    pub repeats: Repeats,
    /// The id of the token that ends thinking, if it had to be known.
    pub mark: Option<u32>,
}

/// What comes next in a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the engine, and tell the answer.
    Ask(Question),
    /// Found.
    Found(Cut),
    /// The ids and the text do not belong together.
    Lost(Refused),
}

/// Looks for the longest beginning of the answer's ids whose text the client has in full.
///
/// It starts with the last event that brought text. If its ids are more than the text (a part was withheld), it goes back in growing
/// steps until they are not, and halves the distance from there. The ids left out are generated again.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    model: Option<String>,
    answer: TokenIds,
    reasoning: String,
    content: String,
    marks: Option<Marks>,
    /// So many bytes of the delivered text's end are to be generated again, whatever the ids say.
    left_out: usize,
    /// What the mark that ends thinking is as a token.
    mark: Mark,
    /// Asked for at the moment.
    at: usize,
    /// The best found: so many ids, and how much of the two texts they are.
    short: Option<(usize, Covered)>,
    /// The smallest number of ids known to be too many.
    long: usize,
    questions: usize,
    lost: bool,
}

/// The token that ends thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// It is of no use, or cannot be known.
    Unknown,
    /// It is to be asked for.
    Wanted(&'static str),
    Known(u32),
}

/// How much of the delivered texts some ids are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Covered {
    pub(super) reasoning: usize,
    pub(super) content: usize,
}

/// How the text of some ids relates to the delivered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is a beginning of it, or all of it.
    Covers(Covered),
    /// It goes on behind its end, or stops inside a character.
    Exceeds,
    /// It is another text.
    Differs,
}

impl Search {
    pub(super) fn new(model: Option<&str>, ids: Ids<'_>, reasoning: &str, content: &str, marks: Option<Marks>) -> Self {
        Self {
            model: model.map(str::to_owned),
            answer: ids.answer.clone(),
            reasoning: reasoning.to_owned(),
            content: content.to_owned(),
            marks,
            left_out: 0,
            mark: Mark::Unknown,
            at: ids.at_text,
            short: None,
            long: ids.at_text + 1,
            questions: 0,
            lost: false,
        }
    }

    /// Goes on from before the last bytes of what was delivered, as many as these, which end at a character: of the answer, or of thinking
    /// where there is no answer yet.
    pub(super) fn leaving_out(self, bytes: usize) -> Self {
        Self { left_out: bytes, ..self }
    }

    /// Finds out, too, which token ends thinking: some ids of the thinking cannot be told from what follows it.
    pub(super) fn asking_for_mark(mut self) -> Self {
        self.mark = self.marks.map_or(Mark::Unknown, |marks| Mark::Wanted(marks.close));
        self
    }

    /// What to do now.
    pub fn step(&self) -> Step {
        if let Mark::Wanted(mark) = self.mark {
            let body = tokenizer::tokenize(self.model.as_deref(), mark).into_bytes();
            return Step::Ask(Question { path: TOKENIZE, body });
        }
        if self.lost {
            return Step::Lost(Refused::IdsDiffer);
        }
        match self.short {
            Some((ids, covered)) if ids + 1 >= self.long || self.questions >= MAX_QUESTIONS => {
                Step::Found(self.cut(ids, covered))
            }
            _ if self.at == 0 => Step::Found(self.cut(0, Covered { reasoning: 0, content: 0 })),
            _ if self.questions >= MAX_QUESTIONS => Step::Lost(Refused::IdsDiffer),
            _ => {
                let mut asked = self.answer.clone();
                asked.truncate(self.at);
                let body = tokenizer::detokenize(self.model.as_deref(), &asked).into_bytes();
                Step::Ask(Question { path: DETOKENIZE, body })
            }
        }
    }

    /// The engine's answer to the question, a JSON body.
    pub fn told(&mut self, body: &[u8]) {
        if let Mark::Wanted(_) = self.mark {
            let tokens = str::from_utf8(body).ok().and_then(tokenizer::tokenized);
            // A mark of several tokens is none that could be looked for.
            let alone = tokens.filter(|tokens| tokens.len() == 1).and_then(|tokens| tokens.iter().next());
            self.mark = alone.map_or(Mark::Unknown, Mark::Known);
            return;
        }
        self.questions += 1;
        let Some(text) = str::from_utf8(body).ok().and_then(tokenizer::detokenized) else {
            self.lost = true;
            return;
        };
        let (reasoning, content) = self.kept();
        match fit(&text, reasoning, content, self.marks.as_ref()) {
            Fit::Covers(covered) => self.short = Some((self.at, covered)),
            Fit::Exceeds => self.long = self.at,
            Fit::Differs => self.lost = true,
        }
        self.at = match self.short {
            Some((ids, _)) => ids.midpoint(self.long),
            // 1, 2, 4, … ids back from the last one that was too far. No ids at all are no text, which need not be asked.
            None => match self.long.saturating_sub(1 << (self.questions - 1).min(20)) {
                0 => {
                    self.short = Some((0, Covered { reasoning: 0, content: 0 }));
                    self.long / 2
                }
                at => at,
            },
        };
    }

    /// The engine does not answer the question. False: the search is over.
    pub fn untold(&mut self) -> bool {
        // What it is for can do without.
        let optional = matches!(self.mark, Mark::Wanted(_));
        self.mark = Mark::Unknown;
        optional
    }

    /// What the ids may be at most.
    fn kept(&self) -> (&str, &str) {
        let less = |text: &'_ str| text.len().saturating_sub(self.left_out);
        match self.content.as_str() {
            "" => (&self.reasoning[..less(&self.reasoning)], ""),
            content => (&self.reasoning, &content[..less(content)]),
        }
    }

    fn cut(&self, ids: usize, covered: Covered) -> Cut {
        let rest = |text: &str, from: usize| text.get(from..).unwrap_or_default().to_owned();
        let repeats = Repeats {
            reasoning: rest(&self.reasoning, covered.reasoning),
            content: rest(&self.content, covered.content),
        };
        let mark = if let Mark::Known(mark) = self.mark { Some(mark) } else { None };
        Cut { ids, repeats, mark }
    }
}

/// Holds the text of some ids, control marks and all, against the delivered texts.
pub(super) fn fit(text: &str, reasoning: &str, content: &str, marks: Option<&Marks>) -> Fit {
    if text.ends_with(char::REPLACEMENT_CHARACTER) {
        return Fit::Exceeds;
    }
    let open = |text| marks.map_or(text, |marks| behind(text, marks.open).unwrap_or(text));
    let close = |text| marks.and_then(|marks| behind(text, marks.close));
    let covers = |reasoning, content| Fit::Covers(Covered { reasoning, content });
    let text = open(text);
    if reasoning.is_empty() {
        // Without thinking there may be an empty block.
        let text = close(text).unwrap_or(text);
        return match take(text, content) {
            Taken::Inside(length) => covers(0, length),
            Taken::All("") => covers(0, content.len()),
            Taken::All(_) => Fit::Exceeds,
            Taken::Nothing => Fit::Differs,
        };
    }
    let behind_thinking = match take(text, reasoning) {
        Taken::Inside(length) => return covers(length, 0),
        Taken::All("") => return covers(reasoning.len(), 0),
        Taken::All(_) if content.is_empty() => return Fit::Exceeds,
        Taken::All(rest) => rest,
        Taken::Nothing => return Fit::Differs,
    };
    let Some(answer) = close(behind_thinking) else {
        // White space that the parser keeps back until it knows whether more thinking follows.
        let blank = behind_thinking.trim_start().is_empty();
        return if blank { covers(reasoning.len(), 0) } else { Fit::Differs };
    };
    match take(answer, content) {
        Taken::Inside(length) => covers(reasoning.len(), length),
        Taken::All("") => covers(reasoning.len(), content.len()),
        Taken::All(_) => Fit::Exceeds,
        Taken::Nothing => Fit::Differs,
    }
}

/// What comes behind a mark and the white space before it.
fn behind<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    text.trim_start().strip_prefix(mark)
}

enum Taken<'t> {
    /// The text ends inside the delivered one, or with it, after so many of its bytes.
    Inside(usize),
    /// All of the delivered text, and what follows it.
    All(&'t str),
    Nothing,
}

/// Takes the delivered text from the start of `text`. Parsers may have taken white space from the delivered text's start.
fn take<'t>(text: &'t str, delivered: &str) -> Taken<'t> {
    for (text, delivered_from) in [(text, 0), (text.trim_start(), delivered.len() - delivered.trim_start().len())] {
        let wanted = &delivered[delivered_from..];
        if let Some(rest) = text.strip_prefix(wanted) {
            return Taken::All(rest);
        }
        if wanted.starts_with(text) {
            return Taken::Inside(if text.is_empty() { 0 } else { delivered_from + text.len() });
        }
    }
    Taken::Nothing
}
