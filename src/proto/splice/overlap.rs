//! What a leg says once more of the text before it.
//!
//! An engine that is asked to go on may begin with the end of what it has to go on from, or with all of it. That is dropped, and
//! only that: as much of the leg's beginning as equals the end of the text before, if it is at least so many characters. It is
//! found while the text streams, whatever pieces it comes in. Text is held back only as long as a longer match is possible, and
//! never more than the end that is looked at is long.

/// Bytes of the text's end that are looked at, and with it the most that is held back, unless a repetition has to be longer. More than a model repeats to find its place
/// again; one that begins the whole of a longer answer again is told by how it begins.
const END: usize = 2048;

/// Most bytes of white space skipped before a repetition.
const LEAD: usize = 64;

/// The end of a text, held against the beginning of what follows it.
///
/// White space before the repetition is no part of it, and goes with it: a template often puts some between thinking and answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    end: String,
    /// How the leg's text begins, as far as it is not decided.
    held: String,
    /// With its white space.
    plain: Match,
    /// Behind its white space, if it begins with some.
    behind: Match,
    /// Bytes of that white space.
    lead: usize,
    /// Something else than white space has come.
    begun: bool,
}

/// Where in the end a text may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Match {
    /// Where it still may begin: from there on, the end is the text so far and more.
    open: Vec<usize>,
    /// Bytes of the text so far.
    seen: usize,
    /// Bytes of the longest beginning of the text that the end ends with.
    longest: usize,
}

impl Overlap {
    /// What follows may repeat the end of `text`, in at least `least` characters.
    pub fn of_end(text: &str, least: usize) -> Self {
        // Room for what is asked for, at four bytes a character.
        let most = END.max(least.saturating_mul(4));
        let from = (text.len().saturating_sub(most)..=text.len()).find(|&at| text.is_char_boundary(at));
        let end = from.map_or("", |from| &text[from..]);
        let starts = end.char_indices().map(|(at, _)| at).rev().skip(least.max(1) - 1).collect();
        Self::new(end, starts)
    }

    /// What follows may repeat the whole of `text`, or nothing.
    pub fn of_all(text: &str) -> Self {
        Self::new(text, if text.is_empty() { Vec::new() } else { vec![0] })
    }

    fn new(end: &str, open: Vec<usize>) -> Self {
        let plain = Match { open, seen: 0, longest: 0 };
        Self { end: end.to_owned(), held: String::new(), behind: plain.clone(), plain, lead: 0, begun: false }
    }

    /// The next piece of what follows. `Some` when it is decided: what is left of everything so far; nothing more is to be asked
    /// then.
    pub fn push(&mut self, piece: &str) -> Option<String> {
        for character in piece.chars() {
            self.begun |= !character.is_whitespace();
            self.plain.push(&self.end, character);
            if !self.begun {
                self.lead += character.len_utf8();
            } else if self.lead > 0 {
                self.behind.push(&self.end, character);
            }
        }
        self.held.push_str(piece);
        let waits_behind = !self.behind.open.is_empty() && if self.begun { self.lead > 0 } else { self.lead <= LEAD };
        (self.plain.open.is_empty() && !waits_behind).then(|| self.finish())
    }

    /// Nothing more follows, or nothing that could be repeated: what is left of everything so far.
    pub fn finish(&mut self) -> String {
        let behind = if self.behind.longest > 0 { self.lead + self.behind.longest } else { 0 };
        let repeated = self.plain.longest.max(behind);
        std::mem::take(&mut self.held).split_off(repeated)
    }

    /// Whether text is held back.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}

impl Match {
    fn push(&mut self, end: &str, character: char) {
        let (seen, length) = (self.seen, character.len_utf8());
        let mut complete = false;
        self.open.retain(|&start| {
            let goes_on = end[start + seen..].starts_with(character);
            let whole = goes_on && start + seen + length == end.len();
            complete |= whole;
            goes_on && !whole
        });
        self.seen += length;
        if complete {
            self.longest = self.seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same from the whole text at once, by trying every length.
    fn oracle(before: &str, least: usize, after: &str) -> String {
        let lengths = |text: &str| {
            let ends = text.char_indices().map(|(at, character)| at + character.len_utf8()).enumerate();
            let equal = ends.filter(|(count, end)| count + 1 >= least.max(1) && before.ends_with(&text[..*end]));
            equal.map(|(_, end)| end).max()
        };
        let lead = after.len() - after.trim_start().len();
        let plain = lengths(after).unwrap_or(0);
        let behind = lengths(after.trim_start()).map_or(0, |end| lead + end);
        after[plain.max(behind)..].to_owned()
    }

    /// What comes out, and the most that was held back at a time.
    fn run(mut overlap: Overlap, pieces: &[&str]) -> (String, usize) {
        let (mut out, mut decided, mut most) = (String::new(), false, 0);
        for piece in pieces {
            if decided {
                out.push_str(piece);
            } else if let Some(left) = overlap.push(piece) {
                out.push_str(&left);
                decided = true;
            }
            most = most.max(overlap.held.len());
        }
        if !decided {
            out.push_str(&overlap.finish());
        }
        assert!(!overlap.holds());
        (out, most)
    }

    /// `text` in pieces of these lengths in characters, over and over.
    fn split<'t>(text: &'t str, lengths: &[usize]) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        let (mut rest, mut lengths) = (text, lengths.iter().cycle());
        while !rest.is_empty() {
            let length = lengths.next().copied().unwrap_or(1);
            let at = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
            let (piece, left) = rest.split_at(at);
            pieces.push(piece);
            rest = left;
        }
        pieces
    }

    #[test]
    fn the_end_that_is_said_again_is_dropped_and_nothing_else() {
        for (before, least, after, left) in [
            ("The Nile is long and wide", 8, "long and wide, and old.", ", and old."),
            ("The Nile is long and wide", 8, "The Nile is long and wide, and old.", ", and old."),
            // Too short to be sure, or not to the end, or not exactly.
            ("The Nile is long and wide", 8, "and wide, and old.", ", and old."),
            ("The Nile is long and wide", 9, "and wide, and old.", "and wide, and old."),
            ("The Nile is long and wide", 8, "The Nile is long, and old.", "The Nile is long, and old."),
            ("The Nile is long and wide", 8, "Long and wide, and old.", "Long and wide, and old."),
            ("The Nile is long and wide", 8, ", and old.", ", and old."),
            // The longest one.
            ("one two one two", 3, "one two one two one", " one"),
            ("one two one two", 3, "one two three", " three"),
            // White space: as it stands, and before.
            ("long and wide ", 8, "long and wide and old", "and old"),
            ("long and wide", 8, "\n\nlong and wide and old", " and old"),
            ("long and wide\n\n", 8, "long and wide and old", "long and wide and old"),
            ("wide\n\n\n\n\n\n\n\n", 8, "\n\n\n\n\n\n\n\nand old", "and old"),
            ("long and wide", 8, "\n\nand old", "\n\nand old"),
            ("尼罗河很长，也很宽，", 4, "也很宽，而且很古老", "而且很古老"),
            ("short", 8, "short", "short"),
            ("", 8, "anything", "anything"),
            ("long and wide", 8, "long and wide", ""),
        ] {
            assert_eq!(oracle(before, least, after), left, "the oracle: {before:?} {after:?}");
            for lengths in [&[1][..], &[2, 5], &[100]] {
                let pieces = split(after, lengths);
                assert_eq!(run(Overlap::of_end(before, least), &pieces).0, left, "{before:?} {after:?}");
            }
        }
    }

    #[test]
    fn the_whole_that_is_said_again_is_dropped_and_no_part_of_it() {
        for (after, left) in [
            ("long and wide and old", " and old"),
            (" long and wide and old", " and old"),
            ("and wide and old", "and wide and old"),
            ("long and", "long and"),
            ("", ""),
        ] {
            for lengths in [&[1][..], &[3], &[100]] {
                assert_eq!(run(Overlap::of_all("long and wide"), &split(after, lengths)).0, left, "{after:?}");
            }
        }
        assert_eq!(run(Overlap::of_all(""), &["a"]).0, "a");
    }

    #[test]
    fn a_rest_that_cannot_be_a_repetition_waits_for_nothing() {
        let mut overlap = Overlap::of_end("The Nile is long and wide", 8);
        assert_eq!(overlap.push(", and").as_deref(), Some(", and"));
        let mut overlap = Overlap::of_end("The Nile is long and wide", 8);
        assert_eq!(overlap.push("long"), None);
        assert!(overlap.holds());
        assert_eq!(overlap.push("er").as_deref(), Some("longer"));
    }

    #[test]
    fn no_more_is_held_back_than_is_looked_at() {
        let before = "ab".repeat(END);
        let after = "ab".repeat(3 * END);
        let (left, most) = run(Overlap::of_end(&before, 16), &split(&after, &[7]));
        assert!(most <= END && left.len() == after.len() - END, "{most}, {}", left.len());
        let blank = " ".repeat(10 * LEAD);
        let (left, most) = run(Overlap::of_end("a long text without blanks".trim(), 3), &split(&blank, &[1]));
        assert!(most <= LEAD + 1 && left == blank, "{most}");
    }

    proptest! {
        #[test]
        fn any_pieces_give_what_the_whole_gives(
            before in "[ab \\n河]{0,24}",
            from in 0..24_usize,
            after in "[ab \\n河]{0,24}",
            least in 0..6_usize,
            lengths in prop::collection::vec(1..5_usize, 1..6),
        ) {
            // Half the texts begin as an end of the one before.
            let start = before.char_indices().map(|(at, _)| at).nth(from).unwrap_or(before.len());
            let after = format!("{}{after}", &before[start..]);
            let want = oracle(&before, least, &after);
            let (got, most) = run(Overlap::of_end(&before, least), &split(&after, &lengths));
            prop_assert_eq!(&got, &want);
            prop_assert!(after.ends_with(&got) && most <= after.len());
        }

        #[test]
        fn the_whole_is_dropped_or_nothing(
            before in "[ab ]{0,8}",
            said in any::<bool>(),
            rest in "[ab ]{0,8}",
            lengths in prop::collection::vec(1..4_usize, 1..4),
        ) {
            let after = if said { format!("{before}{rest}") } else { rest };
            let want = after.strip_prefix(&*before).or_else(|| after.trim_start().strip_prefix(&*before));
            let want = if before.is_empty() { &*after } else { want.unwrap_or(&after) };
            let (got, _) = run(Overlap::of_all(&before), &split(&after, &lengths));
            prop_assert_eq!(got, want);
        }
    }
}
