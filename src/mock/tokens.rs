//! A small tokenizer: text to ids and back, the same in every build.
//!
//! It is as awkward as a real one (a byte-level BPE such as Qwen's). A word comes with the blank before it. Characters outside
//! ASCII may fall apart into two or three tokens, of which one may hold the end of a character and the beginning of the
//! next. Some tokens end in `<`. A text cut inside a token gives other tokens than the whole one. What no token covers is written
//! byte by byte, so every text has ids and they decode to exactly that text.
//!
//! Ids: 0 to 255 are the bytes, then come the tokens of several bytes; control tokens have the ids they have in Qwen3.

use std::sync::LazyLock;

use super::text::vocabulary;

/// Ids from here on are out of vocabulary (Qwen3 has as many).
pub(super) const VOCABULARY: u64 = 151_936;
/// Begins a message.
pub(super) const START: u32 = 151_644;
/// Ends a message: the end token of an answer.
pub(super) const END: u32 = 151_645;

/// Control tokens. Tags of thinking and tool calls are no "special" tokens: they stay where special ones are skipped (measured).
const CONTROL: &[(u32, &str)] = &[
    (151_643, "<|endoftext|>"),
    (START, "<|im_start|>"),
    (END, "<|im_end|>"),
    (151_652, "<|vision_start|>"),
    (151_653, "<|vision_end|>"),
    (151_655, "<|image_pad|>"),
    (151_657, "<tool_call>"),
    (151_658, "</tool_call>"),
    (151_667, "<think>"),
    (151_668, "</think>"),
    (151_700, "[THINK]"),
    (151_701, "[/THINK]"),
    (151_702, "<mm:think>"),
    (151_703, "</mm:think>"),
    (151_704, "<|open|>"),
    (151_705, "<|close|>"),
    (151_706, "<|sep|>"),
];

/// Parts of characters: the first bytes of one, with or without a blank before, and the end of one with the beginning of the next.
const PARTS: &[&[u8]] = &[
    b"\xe7\x81",         // 灯, 7/8 of the block around it
    b"\xaf\xe5\xa1",     // the end of 灯 and the beginning of 塔
    b"\xe6\xb6",         // 消
    b"\xf0\x9f\x91",     // 👩 and 👍 without their last byte
    b" \xf0\x9f",        // a blank and half of most emoji
    b"\xf0\x9f",         // half of them
    b"\xa7\xb5",         // the other half of 🧵
    b"\xf0\x9d",         // half of 𝒳
    b"\xe2\x80\x8d\xf0", // a joiner and the beginning of the next emoji
];

/// First id of a token of several bytes, and how far apart they are, so that ids have between one and three bytes as LEB128.
const FIRST: u32 = 300;
const APART: u32 = 37;

/// The tokens of several bytes in their order, and which of them begin with each byte, the longest first.
struct Vocabulary {
    tokens: Vec<&'static [u8]>,
    by_first: Vec<Vec<(&'static [u8], u32)>>,
}

static TEXT: LazyLock<Vocabulary> = LazyLock::new(|| {
    let mut tokens: Vec<&'static [u8]> = Vec::new();
    let mut by_first = vec![Vec::new(); 256];
    for bytes in vocabulary().map(str::as_bytes).chain(PARTS.iter().copied()) {
        if bytes.len() > 1 && !tokens.contains(&bytes) {
            by_first[usize::from(bytes[0])]
                .push((bytes, FIRST + APART * u32::try_from(tokens.len()).unwrap_or_default()));
            tokens.push(bytes);
        }
    }
    by_first.iter_mut().for_each(|list| list.sort_by_key(|(bytes, _)| std::cmp::Reverse(bytes.len())));
    Vocabulary { tokens, by_first }
});

/// The ids of a text, in which control tokens are read as such. At each place the longest token is taken.
pub(super) fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let control = |(id, name): &(u32, &'static str)| Some((rest.find(name)?, *id, name.len()));
        match CONTROL.iter().filter_map(control).min() {
            Some((at, id, length)) => {
                encode_bytes(&rest.as_bytes()[..at], &mut ids);
                ids.push(id);
                rest = &rest[at + length..];
            }
            None => {
                encode_bytes(rest.as_bytes(), &mut ids);
                break;
            }
        }
    }
    ids
}

/// The ids of bytes, in which nothing is a control token.
pub(super) fn encode_bytes(mut bytes: &[u8], ids: &mut Vec<u32>) {
    let own = &*TEXT;
    while let Some(first) = bytes.first() {
        let token = own.by_first[usize::from(*first)].iter().find(|(token, _)| bytes.starts_with(token));
        let (length, id) = token.map_or((1, u32::from(*first)), |(token, id)| (token.len(), *id));
        ids.push(id);
        bytes = &bytes[length..];
    }
}

/// Adds the bytes of a token. An id without a token has none.
pub(super) fn decode_into(id: u32, skip_special: bool, out: &mut Vec<u8>) {
    if let Ok(byte) = u8::try_from(id) {
        return out.push(byte);
    }
    let control = || CONTROL.iter().find(|(control, _)| *control == id);
    if let Some((_, name)) = (id >= CONTROL[0].0).then(control).flatten() {
        if !(skip_special && is_special(id)) {
            out.extend_from_slice(name.as_bytes());
        }
        return;
    }
    let at = id.checked_sub(FIRST).filter(|past| past % APART == 0).map(|past| (past / APART) as usize);
    out.extend_from_slice(at.and_then(|at| TEXT.tokens.get(at)).copied().unwrap_or_default());
}

/// The bytes of ids.
pub(super) fn decode(ids: &[u32], skip_special: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    ids.iter().for_each(|id| decode_into(*id, skip_special, &mut bytes));
    bytes
}

/// Whether `skip_special_tokens` leaves it out.
fn is_special(id: u32) -> bool {
    CONTROL.iter().any(|(control, name)| *control == id && name.starts_with("<|"))
}

/// Whether bytes end inside a character.
pub(super) fn ends_inside_character(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Err(error) = std::str::from_utf8(rest) {
        let Some(length) = error.error_len() else { return true };
        rest = &rest[error.valid_up_to() + length..];
    }
    false
}

/// A token as `/tokenize` shows it: byte-level BPE writes every byte as a printable character, so that a blank is `Ġ`.
pub(super) fn token_string(id: u32) -> String {
    let bytes = decode(&[id], false);
    if CONTROL.iter().any(|(control, _)| *control == id) {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let hidden = |byte: u8| (0..byte).filter(|other| !printable(*other)).count();
    let shown = |byte: &u8| match printable(*byte) {
        true => char::from(*byte),
        false => char::from_u32(256 + u32::try_from(hidden(*byte)).unwrap_or_default()).unwrap_or('?'),
    };
    bytes.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: &[&str] = &[
        "",
        "a",
        " the river (< b> </x",
        "灯塔 🧵👩‍👩‍👧🇩🇪 𝒳\u{0}\r\n",
        "<|im_start|>user\nHi<|im_end|>\n<think>\n消息</think>\n\n<tool_call>\n{}\n</tool_call>",
        "ÿþ é",
    ];

    #[test]
    fn every_text_comes_back_from_its_ids() {
        for text in TEXTS {
            assert_eq!(decode(&encode(text), false), text.as_bytes(), "{text}");
        }
    }

    #[test]
    fn control_tokens_have_the_ids_of_qwen3_and_only_some_are_special() {
        let text = "<|im_start|>x<|im_end|><think></think>";
        assert_eq!(encode(text), [151_644, u32::from(b'x'), 151_645, 151_667, 151_668]);
        assert_eq!(decode(&encode(text), true), b"x<think></think>");
    }

    #[test]
    fn a_beginning_at_a_tokens_end_has_the_same_ids_and_one_inside_a_token_has_not() {
        let ids = encode(TEXTS[3]);
        for at in 0..ids.len() {
            let bytes = decode(&ids[..at], false);
            let mut again = Vec::new();
            encode_bytes(&bytes, &mut again);
            assert_eq!(again, ids[..at]);
        }
        let (whole, cut) = (encode(" river"), encode(" riv"));
        assert_eq!(whole.len(), 1);
        assert!(cut.len() > 1);
    }

    #[test]
    fn characters_fall_apart_and_a_token_can_hold_the_end_of_one_and_the_beginning_of_the_next() {
        assert!(encode("🧵").len() == 2 && encode(" 🙂").len() == 3);
        let ids = encode("灯塔");
        assert_eq!(ids.len(), 3);
        assert!(ends_inside_character(&decode(&ids[..1], false)) && ends_inside_character(&decode(&ids[..2], false)));
        assert!(!ends_inside_character(&decode(&ids, false)));
    }

    #[test]
    fn tokens_are_shown_as_byte_level_bpe_shows_them() {
        let shown: Vec<_> = encode(" the\n<|im_end|>").into_iter().map(token_string).collect();
        assert_eq!(shown, ["Ġthe", "Ċ", "<|im_end|>"]);
    }
}
