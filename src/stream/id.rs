//! Stream ids: sortable by time, unique within a deployment, and not to be guessed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;

/// 2025-01-01T00:00:00Z in milliseconds since 1970; 41 bits from here last until 2094.
const EPOCH_MS: u64 = 1_735_689_600_000;

const NODE_BITS: u32 = 10;
const COUNTER_BITS: u32 = 13;

/// Time, node and counter, then what is secret.
const BYTES: usize = 24;

/// A stream's id: 41 bits of time (ms), 10 bits of node, 13 bits of counter, 128 random bits; 32 URL-safe characters.
///
/// Whoever knows an id may ask for the answer, so an id is a secret: [`fmt::Display`] is for headers and URLs, logs get
/// [`StreamId::short`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamId(String);

impl StreamId {
    /// An id as a client names it. `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        (bytes.len() == BYTES).then(|| StreamId(text.to_owned()))
    }

    /// Whether it is this one, in a time that does not tell how much of it is.
    pub fn is(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }

    /// The id as it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that is not secret: time, node and counter, 11 characters. For logs.
    pub fn short(&self) -> &str {
        self.0.get(..11).unwrap_or_default()
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({}…)", self.short())
    }
}

/// Makes ids for one process.
#[derive(Debug)]
pub struct StreamIds {
    node: u64,
    counter: AtomicU64,
}

impl Default for StreamIds {
    fn default() -> Self {
        StreamIds { node: u64::from(rand::random::<u16>()) & ((1 << NODE_BITS) - 1), counter: AtomicU64::new(0) }
    }
}

impl StreamIds {
    /// A new id. The random part comes from the operating system's generator through a cryptographic one.
    pub fn mint(&self) -> StreamId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let time = now.saturating_sub(EPOCH_MS) & ((1 << 41) - 1);
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) & ((1 << COUNTER_BITS) - 1);
        let sortable = time << (NODE_BITS + COUNTER_BITS) | self.node << COUNTER_BITS | counter;
        let mut bytes = [0_u8; BYTES];
        bytes[..8].copy_from_slice(&sortable.to_be_bytes());
        bytes[8..].copy_from_slice(&rand::random::<[u8; 16]>());
        StreamId(URL_SAFE_NO_PAD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_one_url_safe_token_of_32_characters() {
        let id = StreamIds::default().mint();
        assert_eq!(id.as_str().len(), 32);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
    }

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is_one() {
        let ids = StreamIds::default();
        let id = ids.mint();
        assert!(StreamId::parse(id.as_str()).is_some_and(|read| read.is(&id)));
        assert!(!ids.mint().is(&id));
        for wrong in ["", "x", &id.as_str()[1..], &format!("{id}A"), &id.as_str().replace(|_| true, "*")] {
            assert_eq!(StreamId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_secret_part_is_never_the_same_twice() {
        let ids = StreamIds::default();
        let secrets: HashSet<String> = (0..1_000).map(|_| ids.mint().as_str()[11..].to_owned()).collect();
        assert_eq!(secrets.len(), 1_000);
    }

    #[test]
    fn debug_output_does_not_tell_the_secret_part() {
        let id = StreamIds::default().mint();
        assert!(!format!("{id:?}").contains(&id.as_str()[11..]));
    }
}
