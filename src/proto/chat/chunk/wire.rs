//! A chunk's JSON as engines write it. Reading is lenient: of a key that appears twice the last value counts, as for every
//! client's parser; a value of another type than the protocol's is read if it can be understood, and is not there otherwise.
//! An error is only what hides a piece of the answer.
//!
//! A choice has its text in a `delta`, or it is a completion's and has it in `text`. Where there is a delta, or the event calls itself
//! a chat's, a `text` means nothing: some servers repeat the delta's text there.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{Chunk, ChunkChoice, EngineError, FinishReason, Parsed, ReasoningField, Shape, ToolCallDelta};
use crate::proto::chat::ids::IdList;
use crate::proto::chat::json::{self, BadEscape};
use crate::proto::chat::usage::Usage;

/// Reads an event's data that is not `[DONE]`.
pub(super) fn read(text: &str) -> serde_json::Result<Parsed<'_>> {
    let mut event = Object::<WireEvent<'_>>::default();
    let mut json = serde_json::Deserializer::from_str(text);
    json.deserialize_map(Whole(&mut event))?;
    json.end()?;
    let event = event.fields;
    if let Some(error) = event.reported() {
        return Ok(Parsed::Error(EngineError::read(error)));
    }
    if event.is_flat_error() {
        // The form that SGLang uses before a stream (SGLang 0.5.23, serving_base.py) and others inside one.
        return Ok(Parsed::Error(EngineError::read(serde_json::from_str(text)?)));
    }
    event.into_chunk().map(Parsed::Chunk)
}

/// An object that is read field by field.
trait Fields<'de>: Default {
    /// Takes the value of `key`, which is the next of `map`.
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// A place for a value of any kind. It is filled where it is: the objects are large, and moving them costs as much as reading.
trait Slot<'de>: Default {
    fn map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error>;
    fn list<A: SeqAccess<'de>>(&mut self, list: A) -> Result<(), A::Error>;
    /// Neither of them was there, but a value that says something.
    fn odd(&mut self);
}

/// Where an object belongs.
#[derive(Default)]
struct Object<T> {
    /// Without any field set if there was no object.
    fields: T,
    /// The object is there, be it empty.
    given: bool,
    /// The object is there, and not empty.
    filled: bool,
    /// Something that is no object was there instead. What says nothing (`null`, `false`, `""`, `[]`) is not meant.
    odd: bool,
}

/// Where a list of objects belongs.
#[derive(Default)]
struct List<T> {
    /// The objects that are not empty; also a single one that stood where the list belongs.
    items: Vec<T>,
    /// The list is there, be it empty.
    given: bool,
    /// Something else was there, or among the objects.
    odd: bool,
}

impl<'de, T: Fields<'de>> Slot<'de> for Object<T> {
    fn map<A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        self.given = true;
        while let Some(Key(key)) = map.next_key()? {
            self.fields.take(&key, &mut map)?;
            self.filled = true;
        }
        Ok(())
    }

    fn list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(IgnoredAny) = list.next_element()? {
            self.odd = true;
        }
        Ok(())
    }

    fn odd(&mut self) {
        self.odd = true;
    }
}

impl<'de, T: Fields<'de>> Slot<'de> for List<T> {
    fn map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error> {
        let mut one = Object::<T>::default();
        one.map(map)?;
        self.given = one.filled;
        self.items.extend(one.filled.then_some(one.fields));
        Ok(())
    }

    fn list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        self.given = true;
        let mut element = Object::<T>::default();
        while let Some(()) = list.next_element_seed(Fill(&mut element))? {
            self.odd |= element.odd;
            if element.filled {
                self.items.push(std::mem::take(&mut element.fields));
            }
        }
        Ok(())
    }

    fn odd(&mut self) {
        self.odd = true;
    }
}

/// Fills a slot with the value that comes. What an earlier value of the same key left there is forgotten.
struct Fill<'s, S>(&'s mut S);

impl<'de, S: Slot<'de>> DeserializeSeed<'de> for Fill<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        *self.0 = S::default();
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: Slot<'de>> Visitor<'de> for Fill<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.0.map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        self.0.list(list)
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if !text.is_empty() {
            self.0.odd();
        }
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        if value {
            self.0.odd();
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.0.odd();
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.0.odd();
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.0.odd();
        Ok(())
    }
}

/// The event itself: an object and nothing else, be it empty.
struct Whole<'s, S>(&'s mut S);

impl<'de, S: Slot<'de>> Visitor<'de> for Whole<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.0.map(map)
    }
}

/// A key, borrowed from the input unless it has escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }
            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// A piece of the answer's text.
#[derive(Default)]
enum Output<'a> {
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    /// It is not text but a list of parts, say: noted and skipped.
    Opaque,
}

impl<'a> Output<'a> {
    fn of(raw: &'a RawValue) -> Result<Self, BadEscape> {
        match json::string_content(raw) {
            Some(content) => json::decode(content).map(Self::Text),
            None if json::says_nothing(raw) => Ok(Self::Nothing),
            None => Ok(Self::Opaque),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Output<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(<&RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A piece of a tool call's arguments: JSON text in a string, or the JSON itself.
#[derive(Default)]
struct Arguments<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        match json::string_content(raw) {
            Some(content) => json::decode(content).map(|text| Self(Some(text))).map_err(D::Error::custom),
            None if json::is_null(raw) => Ok(Self(None)),
            None => Ok(Self(Some(Cow::Borrowed(raw.get())))),
        }
    }
}

/// A string.
fn text(value: Option<&RawValue>) -> Option<Cow<'_, str>> {
    value.and_then(json::text)
}

/// A name that some engines count instead: a string, or a number's text.
fn text_or_number(value: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let value = value?;
    let number = || value.get().starts_with(|first: char| first == '-' || first.is_ascii_digit());
    json::text(value).or_else(|| number().then(|| Cow::Borrowed(value.get())))
}

/// An index, or the place `at` in the list where none can be read.
fn index_or_place(index: Option<&RawValue>, at: usize) -> u32 {
    let given = index.and_then(json::whole_number).and_then(|index| u32::try_from(index).ok());
    given.unwrap_or_else(|| u32::try_from(at).unwrap_or(u32::MAX))
}

#[derive(Default)]
struct WireEvent<'a> {
    id: Option<&'a RawValue>,
    object: Option<&'a RawValue>,
    created: Option<&'a RawValue>,
    model: Option<&'a RawValue>,
    system_fingerprint: Option<&'a RawValue>,
    choices: List<WireChoice<'a>>,
    usage: Option<&'a RawValue>,
    prompt_token_ids: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

impl<'a> Fields<'a> for WireEvent<'a> {
    fn take<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let field = match key {
            "id" => &mut self.id,
            "object" => &mut self.object,
            "created" => &mut self.created,
            "model" => &mut self.model,
            "system_fingerprint" => &mut self.system_fingerprint,
            "usage" => &mut self.usage,
            "prompt_token_ids" => &mut self.prompt_token_ids,
            "error" => &mut self.error,
            "choices" => {
                map.next_value_seed(Fill(&mut self.choices))?;
                return match self.choices.odd {
                    true => Err(A::Error::custom("`choices` is not a list of choices")),
                    false => Ok(()),
                };
            }
            _ => return map.next_value::<IgnoredAny>().map(drop),
        };
        *field = Some(map.next_value()?);
        Ok(())
    }
}

impl<'a> WireEvent<'a> {
    /// The error, unless it says nothing: some engines have the key in every chunk.
    fn reported(&self) -> Option<&'a RawValue> {
        self.error.filter(|error| match error.get() {
            "null" | "false" => false,
            "0" => !self.choices.given,
            _ => !(self.choices.given && json::says_nothing(error)),
        })
    }

    /// Whether the whole event is an error's fields. Something with choices is a chunk, whatever it calls itself.
    fn is_flat_error(&self) -> bool {
        self.choices.items.is_empty() && text(self.object).is_some_and(|object| object == "error")
    }

    fn into_chunk(self) -> serde_json::Result<Chunk<'a>> {
        let object = text(self.object);
        let mut prompt_token_ids = self.prompt_token_ids.and_then(IdList::of);
        let mut choices = Vec::with_capacity(self.choices.items.len());
        for (at, choice) in self.choices.items.into_iter().enumerate() {
            if choice.is_completion(object.as_deref()) {
                prompt_token_ids = prompt_token_ids.or_else(|| choice.prompt_token_ids.and_then(IdList::of));
                choices.push(choice.into_completion(at)?);
            } else {
                choices.push(choice.into_choice(at));
            }
        }
        Ok(Chunk {
            id: text_or_number(self.id).unwrap_or_default(),
            created: self.created.and_then(json::whole_part),
            model: text_or_number(self.model).unwrap_or_default(),
            system_fingerprint: text(self.system_fingerprint),
            choices,
            usage: self.usage.and_then(Usage::read),
            prompt_token_ids,
        })
    }
}

/// What an event of a completion calls itself.
const TEXT_COMPLETION: &str = "text_completion";

#[derive(Default)]
struct WireChoice<'a> {
    index: Option<&'a RawValue>,
    delta: Object<WireDelta<'a>>,
    /// Of a completion, as [`prompt_token_ids`](Self::prompt_token_ids) is.
    text: Option<&'a RawValue>,
    prompt_token_ids: Option<&'a RawValue>,
    finish_reason: Option<&'a RawValue>,
    logprobs: Option<&'a RawValue>,
    token_ids: Option<&'a RawValue>,
    stop_reason: Option<IgnoredAny>,
    matched_stop: Option<IgnoredAny>,
}

impl<'a> Fields<'a> for WireChoice<'a> {
    fn take<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "index" => self.index = Some(map.next_value()?),
            "delta" => map.next_value_seed(Fill(&mut self.delta))?,
            "text" => self.text = Some(map.next_value()?),
            "prompt_token_ids" => self.prompt_token_ids = Some(map.next_value()?),
            "finish_reason" => self.finish_reason = Some(map.next_value()?),
            "logprobs" => self.logprobs = Some(map.next_value()?),
            "token_ids" => self.token_ids = Some(map.next_value()?),
            "stop_reason" => self.stop_reason = Some(map.next_value()?),
            "matched_stop" => self.matched_stop = Some(map.next_value()?),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'a> WireChoice<'a> {
    /// Whether it is a completion's, in an event of this `object`.
    fn is_completion(&self, object: Option<&str>) -> bool {
        let has_delta = self.delta.given || self.delta.odd;
        !has_delta
            && match object {
                Some(TEXT_COMPLETION) => true,
                Some(object) => self.text.is_some() && !object.starts_with("chat."),
                None => self.text.is_some(),
            }
    }

    fn into_completion(self, at: usize) -> serde_json::Result<ChunkChoice<'a>> {
        let text = self.text.map(Output::of).transpose().map_err(serde_json::Error::custom)?;
        let mut choice = self.into_choice(at);
        match text.unwrap_or_default() {
            Output::Text(text) => choice.content = Some(text),
            Output::Nothing => {}
            Output::Opaque => choice.opaque = true,
        }
        choice.shape = choice.shape.of_completion();
        Ok(choice)
    }

    fn into_choice(self, at: usize) -> ChunkChoice<'a> {
        let shape = match () {
            () if self.matched_stop.is_some() => Shape::Sglang,
            () if self.token_ids.is_some() || self.stop_reason.is_some() => Shape::Vllm,
            () => Shape::OpenAi,
        };
        let mut choice = self.delta.fields.into_choice();
        choice.index = index_or_place(self.index, at);
        // Some engines put an empty string where others put null.
        let reason = text(self.finish_reason).filter(|reason| !reason.is_empty());
        choice.finish_reason = reason.map(|reason| FinishReason::from_name(&reason));
        choice.has_logprobs = self.logprobs.is_some_and(|value| !json::is_null(value));
        choice.token_ids = self.token_ids.and_then(IdList::of);
        choice.opaque |= self.delta.odd;
        choice.shape = shape;
        choice
    }
}

#[derive(Default)]
struct WireDelta<'a> {
    role: Option<&'a RawValue>,
    content: Output<'a>,
    /// Here and below: `None` if there is no such key, so that a name with `null` is seen.
    reasoning: Option<Output<'a>>,
    reasoning_content: Option<Output<'a>>,
    tool_calls: List<WireToolCall<'a>>,
    function_call: Object<WireFunction<'a>>,
    refusal: Option<&'a RawValue>,
    audio: Option<&'a RawValue>,
}

impl<'a> Fields<'a> for WireDelta<'a> {
    fn take<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "role" => self.role = Some(map.next_value()?),
            "content" => self.content = map.next_value()?,
            "reasoning" => self.reasoning = Some(map.next_value()?),
            "reasoning_content" => self.reasoning_content = Some(map.next_value()?),
            "tool_calls" => map.next_value_seed(Fill(&mut self.tool_calls))?,
            "function_call" => map.next_value_seed(Fill(&mut self.function_call))?,
            "refusal" => self.refusal = Some(map.next_value()?),
            "audio" => self.audio = Some(map.next_value()?),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'a> WireDelta<'a> {
    fn into_choice(self) -> ChunkChoice<'a> {
        let mut opaque = [self.refusal, self.audio].into_iter().flatten().any(|value| !json::says_nothing(value));
        let mut text_of = |output: Output<'a>| match output {
            Output::Text(text) => Some(text),
            Output::Nothing => None,
            Output::Opaque => {
                opaque = true;
                None
            }
        };
        let named = (self.reasoning.is_some(), self.reasoning_content.is_some());
        let content = text_of(self.content);
        let reasoning = text_of(self.reasoning.unwrap_or_default());
        let copy = text_of(self.reasoning_content.unwrap_or_default());
        let filled = (reasoning.is_some(), copy.is_some());
        let calls = self.tool_calls.items.into_iter().enumerate();
        let mut tool_calls: Vec<_> = calls.map(|(at, call)| call.into_delta(at)).collect();
        if self.function_call.filled {
            tool_calls.push(self.function_call.fields.into_delta(0, None));
        }
        ChunkChoice {
            role: text(self.role),
            content,
            // Where both are there they say the same; an empty one says nothing.
            reasoning: match (reasoning, copy) {
                (Some(text), Some(copy)) if text.is_empty() => Some(copy),
                (text, copy) => text.or(copy),
            },
            reasoning_field: field_of(filled).or(field_of(named)),
            tool_calls,
            opaque: opaque || self.tool_calls.odd || self.function_call.odd,
            ..ChunkChoice::default()
        }
    }
}

fn field_of((reasoning, reasoning_content): (bool, bool)) -> Option<ReasoningField> {
    match (reasoning, reasoning_content) {
        (true, true) => Some(ReasoningField::Both),
        (true, false) => Some(ReasoningField::Reasoning),
        (false, true) => Some(ReasoningField::ReasoningContent),
        (false, false) => None,
    }
}

#[derive(Default)]
struct WireToolCall<'a> {
    index: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    function: Object<WireFunction<'a>>,
}

impl<'a> Fields<'a> for WireToolCall<'a> {
    fn take<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "index" => self.index = Some(map.next_value()?),
            "id" => self.id = Some(map.next_value()?),
            "function" => map.next_value_seed(Fill(&mut self.function))?,
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'a> WireToolCall<'a> {
    /// A call without an index is counted by its place in the list.
    fn into_delta(self, at: usize) -> ToolCallDelta<'a> {
        self.function.fields.into_delta(index_or_place(self.index, at), text_or_number(self.id))
    }
}

#[derive(Default)]
struct WireFunction<'a> {
    name: Option<&'a RawValue>,
    arguments: Arguments<'a>,
}

impl<'a> Fields<'a> for WireFunction<'a> {
    fn take<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "name" => self.name = Some(map.next_value()?),
            "arguments" => self.arguments = map.next_value()?,
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'a> WireFunction<'a> {
    fn into_delta(self, index: u32, id: Option<Cow<'a, str>>) -> ToolCallDelta<'a> {
        ToolCallDelta { index, id, name: text(self.name), arguments: self.arguments.0 }
    }
}
