//! How many tokens a text has, when nobody counted them.

/// Characters per token of an [`estimate`]. Both must be above zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Chinese, Japanese and Korean characters per token.
    pub cjk: f64,
    /// All other characters per token.
    pub other: f64,
}

impl Default for Ratios {
    fn default() -> Self {
        Self { cjk: 1.6, other: 4.0 }
    }
}

/// The tokens `text` has, about: CJK characters and other characters, each by its ratio, the sum rounded up.
pub fn estimate(text: &str, ratios: &Ratios) -> u64 {
    let (mut cjk, mut other) = (0_u64, 0_u64);
    for character in text.chars() {
        if is_cjk(character) {
            cjk += 1;
        } else {
            other += 1;
        }
    }
    (cjk as f64 / ratios.cjk + other as f64 / ratios.other).ceil() as u64
}

/// Han, kana and Hangul, their radicals and compatibility forms, and the full-width punctuation written between them.
fn is_cjk(character: char) -> bool {
    matches!(u32::from(character),
        0x1100..=0x11FF       // Hangul Jamo
        | 0x2E80..=0x303F     // radicals, CJK symbols and punctuation
        | 0x3040..=0x31FF     // kana, Bopomofo, Hangul compatibility Jamo, strokes
        | 0x3200..=0x9FFF     // enclosed and compatibility forms, extension A, unified ideographs
        | 0xA960..=0xA97F     // Hangul Jamo extended A
        | 0xAC00..=0xD7FF     // Hangul syllables, Jamo extended B
        | 0xF900..=0xFAFF     // compatibility ideographs
        | 0xFE30..=0xFE4F     // compatibility forms
        | 0xFF00..=0xFFEF     // half-width and full-width forms
        | 0x20000..=0x323AF   // extensions B and later
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_estimated_from_cjk_and_other_characters_and_rounded_up_once() {
        for (text, expected) in [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("你", 1),
            ("你好世界你好世界", 5),
            ("ひらがなカタカナ", 5),
            ("안녕하세요반갑", 5),
            ("，。「」（）！？", 5),
            ("你好ab", 2),
            ("😀😀😀😀", 1),
            ("éèêë", 1),
            ("𠀀𠀁", 2),
        ] {
            assert_eq!(estimate(text, &Ratios::default()), expected, "{text}");
        }
    }

    #[test]
    fn the_ratios_are_the_callers() {
        assert_eq!(estimate("你好ab", &Ratios { cjk: 1.0, other: 2.0 }), 3);
    }
}
