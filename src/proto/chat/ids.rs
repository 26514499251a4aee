//! Token ids, kept compactly: an answer may have a hundred thousand of them, and its prompt a million.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// A list of token ids, two or three bytes each for the vocabularies of today (LEB128).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenIds {
    bytes: Vec<u8>,
    len: usize,
}

impl TokenIds {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a JSON list, as `[1,2,3]`. `None` when it is anything but a list of whole numbers below 2^32.
    pub fn read(json_list: &str) -> Option<Self> {
        let mut ids = Self::new();
        ids.push_json(json_list).then_some(ids)
    }

    /// Appends the ids of a JSON list. False, and nothing is appended, when it is anything but a list of whole numbers below 2^32.
    pub fn push_json(&mut self, json_list: &str) -> bool {
        let inside = json_list.trim_ascii().strip_prefix('[').and_then(|inside| inside.strip_suffix(']'));
        inside.is_some_and(|inside| self.push_inside(inside))
    }

    /// The same with a list's inside, without its brackets.
    pub fn push_inside(&mut self, inside: &str) -> bool {
        let before = (self.bytes.len(), self.len);
        let number = |id: &str| Some(id.trim_ascii()).filter(|id| !id.starts_with('+'))?.parse().ok();
        let read =
            inside.trim_ascii().is_empty() || inside.split(',').all(|id| number(id).map(|id| self.push(id)).is_some());
        if !read {
            self.bytes.truncate(before.0);
            self.len = before.1;
        }
        read
    }

    /// Appends one id.
    pub fn push(&mut self, id: u32) {
        let mut rest = id;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        self.len += 1;
    }

    /// Appends all ids of another list.
    pub fn extend(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.len += other.len;
    }

    /// How many ids there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes used.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Keeps the first `len` ids.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        // An id ends with the byte whose top bit is not set.
        let last = len.checked_sub(1);
        let ends = self.bytes.iter().enumerate().filter(|(_, byte)| **byte < 0x80).map(|(at, _)| at + 1);
        let end = last.and_then(|last| ends.clone().nth(last)).unwrap_or(0);
        self.bytes.truncate(end);
        self.len = len;
    }

    /// The ids in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut bytes = self.bytes.iter();
        std::iter::from_fn(move || {
            let (mut id, mut shift) = (0, 0);
            loop {
                let byte = *bytes.next()?;
                id |= u32::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return Some(id);
                }
            }
        })
    }

    /// Appends `1,2,3`: a JSON list's inside.
    pub fn write_json(&self, out: &mut String) {
        for (at, id) in self.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = if at == 0 { write!(out, "{id}") } else { write!(out, ",{id}") };
        }
    }

    /// `[1,2,3]`.
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(2 + self.len * 7);
        json.push('[');
        self.write_json(&mut json);
        json.push(']');
        json
    }
}

/// A JSON list of token ids as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdList<'a> {
    json: Cow<'a, str>,
    count: u64,
}

impl<'a> IdList<'a> {
    /// Of a JSON value; `None` when it is no list.
    pub(super) fn of(list: &'a RawValue) -> Option<Self> {
        let json = Some(list.get()).filter(|json| json.starts_with('['))?;
        // Elements of no size: nothing is allocated.
        let count = serde_json::from_str::<Vec<IgnoredAny>>(json).ok()?.len() as u64;
        Some(Self { json: Cow::Borrowed(json), count })
    }

    /// How many elements it has.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The list's JSON.
    pub fn json(&self) -> &str {
        &self.json
    }

    pub(super) fn into_owned(self) -> IdList<'static> {
        IdList { json: Cow::Owned(self.json.into_owned()), count: self.count }
    }
}

/// How many there are: a prompt's ids are its text, which belongs into no log.
impl std::fmt::Debug for TokenIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenIds({})", self.len)
    }
}

impl FromIterator<u32> for TokenIds {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let mut list = Self::new();
        ids.into_iter().for_each(|id| list.push(id));
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_reads_back_and_truncates_as_a_vector_does(ids in proptest::collection::vec(any::<u32>(), 0..40), keep in 0usize..50) {
            let mut list: TokenIds = ids.iter().copied().collect();
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), ids.clone());
            prop_assert_eq!(TokenIds::read(&list.to_json()), Some(list.clone()));
            prop_assert_eq!(list.len(), ids.len());
            let mut cut = ids.clone();
            cut.truncate(keep);
            list.truncate(keep);
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), cut.clone());
            prop_assert_eq!(list, cut.into_iter().collect());
        }
    }

    #[test]
    fn what_is_no_list_of_ids_is_not_read() {
        for json in
            ["", "null", "[", "[1", "1]", "[-1]", "[1.0]", "[4294967296]", "[\"1\"]", "[1,]", "[1 2]", "[[1]]", "[+1]"]
        {
            assert_eq!(TokenIds::read(json), None, "{json}");
        }
        let mut ids: TokenIds = [7].into_iter().collect();
        assert!(!ids.push_json("[1,2,x]"));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [7]);
        assert!(ids.push_json(" [ 1 , 300000 ] "));
        assert_eq!(ids.to_json(), "[7,1,300000]");
        assert!(ids.push_json("[]"));
    }

    #[test]
    fn ids_of_todays_vocabularies_take_at_most_three_bytes() {
        let ids: TokenIds = [0, 127, 128, 151_645, 262_143].into_iter().collect();
        assert_eq!(ids.bytes(), 1 + 1 + 2 + 3 + 3);
    }
}
