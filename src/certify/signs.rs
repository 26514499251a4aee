//! What an engine shows of its model's template without being tried: how it renders a prompt, and how it spells an answer.

use serde_json::{Value, json};

use super::Order;
use super::bench::Bench;
use super::rest::Uncut;
use crate::proto::resume::Family;

/// Behind this the generation prompt begins. Long enough to stand nowhere in a template.
const ASKED: &str = "Where does the river end?";

/// What is known of a template; nothing of an engine that does not render.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    /// What stands behind the client's text.
    pub(super) tail: Option<String>,
    /// The keys that change the prompt, and how the prompt is with thinking on and off; `None`: not known.
    switches: Option<Vec<(String, Ways)>>,
    /// Answers with all their marks.
    pub(super) raw: Vec<String>,
    /// An answer had thinking that the engine has told from the rest.
    pub(super) thinks: bool,
}

/// A prompt with thinking on and off: what stands before and behind the client's text.
#[derive(Clone, Debug, Default)]
struct Ways {
    on: Option<(String, String)>,
    off: Option<(String, String)>,
}

impl Ways {
    /// Whether off changes more than what the generation prompt ends in; `None`: not known.
    fn changes_more(&self, open: &str) -> Option<bool> {
        let ((head_on, tail_on), (head_off, tail_off)) = (self.on.as_ref()?, self.off.as_ref()?);
        let tail_on = tail_on.trim_end();
        let same = tail_on.strip_suffix(open.trim()).unwrap_or(tail_on);
        Some(head_on != head_off || !tail_off.starts_with(same))
    }
}

/// Renders a prompt in several ways. Also gives what switches thinking off: the key of the configured family where that works, else the
/// first that does; where nothing is known, the configured family's.
pub(super) async fn look(bench: &Bench, order: &Order) -> (Option<(String, String)>, Signs) {
    let configured = Some(Family::named(&order.upstream.family).0).filter(|_| !order.find_family);
    let own = configured.as_ref().and_then(Family::thinking_switch);
    let owned = |(key, off): (&str, &str)| (key.to_owned(), off.to_owned());
    let Some(plain) = render(bench, None).await else { return (own.map(owned), Signs::default()) };
    let (mut switches, mut working) = (Vec::new(), Vec::new());
    for (key, off) in known_switches() {
        let without = render(bench, Some((key, off))).await;
        let with = if off == "false" { render(bench, Some((key, "true"))).await } else { Some(plain.clone()) };
        let (Some(with), Some(without)) = (with, without) else { continue };
        if with != without {
            working.push((key, off));
            let ways = Ways { on: around(bench, &with).await, off: around(bench, &without).await };
            switches.push((key.to_owned(), ways));
        }
    }
    let key = own.filter(|own| working.contains(own)).or(working.first().copied()).map(owned);
    let tail = around(bench, &plain).await.map(|(_, tail)| tail);
    (key, Signs { tail, switches: Some(switches), ..Signs::default() })
}

/// Every switch that a family has, once.
fn known_switches() -> Vec<(&'static str, &'static str)> {
    let mut switches: Vec<_> = Family::all().filter_map(|name| Family::named(name).0.thinking_switch()).collect();
    switches.sort_unstable();
    switches.dedup();
    switches
}

/// The ids of a chat's prompt. vLLM has the endpoint always (0.32, entrypoints/serve/tokenize).
async fn render(bench: &Bench, switch: Option<(&str, &str)>) -> Option<Vec<Value>> {
    let mut body = json!({
        "model": bench.model(),
        "messages": [{"role": "user", "content": ASKED}],
        "add_generation_prompt": true,
    });
    if let Some((key, value)) = switch {
        body["chat_template_kwargs"] = json!({ key: serde_json::from_str::<Value>(value).ok()? });
    }
    bench.question("/tokenize", &body).await?.get("tokens")?.as_array().cloned()
}

/// What stands before and behind the client's text in a prompt.
async fn around(bench: &Bench, ids: &[Value]) -> Option<(String, String)> {
    let text = spell(bench, &json!(ids)).await?;
    text.rsplit_once(ASKED).map(|(head, tail)| (head.to_owned(), tail.to_owned()))
}

async fn spell(bench: &Bench, ids: &Value) -> Option<String> {
    let answer = bench.question("/detokenize", &json!({"model": bench.model(), "tokens": ids})).await?;
    answer.get("prompt")?.as_str().map(str::to_owned)
}

/// The answers as the model wrote them, where the engine listed their ids and spells them.
pub(super) async fn raw_answers(bench: &Bench, uncut: &[Uncut]) -> Vec<String> {
    let mut raw = Vec::new();
    for ids in uncut.iter().filter_map(Uncut::ids) {
        raw.extend(spell(bench, &json!(ids.iter().collect::<Vec<_>>())).await);
    }
    raw
}

impl Signs {
    /// The family's key, if it is one that works.
    pub(super) fn key_of(&self, family: &Family) -> Option<String> {
        let (key, _) = family.thinking_switch()?;
        self.switches.as_ref()?.iter().find(|(working, _)| working == key).map(|(key, _)| key.clone())
    }

    /// Whether nothing that was seen speaks against a family; how much speaks for it: the marks' lengths.
    pub(super) fn speak_for(&self, family: &Family) -> Option<usize> {
        if self.switches.is_some() && family.thinking_switch().is_some() && self.key_of(family).is_none() {
            return None;
        }
        // A family without the key does not know what this template's switch does.
        let unknown = self.switches.as_ref().is_some_and(|switches| !switches.is_empty());
        if unknown && family.thinking_switch().is_none() {
            return None;
        }
        let Some((open, close)) = family.marks() else {
            return (!self.thinks).then_some(1);
        };
        let ends = |tail: Option<&String>, thinking| {
            tail.is_none_or(|tail| tail.trim_end().ends_with(open.trim()) == family.prompt_opens(thinking))
        };
        let (key, _) = family.thinking_switch().unwrap_or_default();
        let ways = self.switches.iter().flatten().find(|(working, _)| working == key).map(|(_, ways)| ways);
        let tail = |way: Option<&Option<(String, String)>>| way.and_then(Option::as_ref).map(|(_, tail)| tail.clone());
        let (on, off) = (tail(ways.map(|ways| &ways.on)), tail(ways.map(|ways| &ways.off)));
        let changes_more = ways.and_then(|ways| ways.changes_more(&open));
        let later = family.is_switched_off_later();
        let fits = ends(self.tail.as_ref(), None) && ends(on.as_ref(), Some(true)) && ends(off.as_ref(), Some(false));
        if !fits || (changes_more == Some(true) && later) {
            return None;
        }
        let switched = usize::from(changes_more == Some(false) && later);
        match &self.raw[..] {
            [] => Some(switched),
            raw if raw.iter().any(|raw| raw.contains(&close)) => Some(open.len() + close.len() + switched),
            raw => Some(switched).filter(|_| !raw.iter().any(|raw| raw.contains(close.trim()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: &str = "<|im_end|>\n<|im_start|>assistant\n";

    /// A template whose generation prompt ends so, with thinking on and off, and what it begins with when it is off.
    fn signs(on: &str, off: &str, head_off: &str, raw: &str) -> Signs {
        let way = |head: &str, end: &str| Some((head.to_owned(), format!("{TURN}{end}")));
        let ways = Ways { on: way("", on), off: way(head_off, off) };
        Signs {
            tail: Some(format!("{TURN}{on}")),
            switches: Some(vec![("enable_thinking".to_owned(), ways)]),
            raw: vec![raw.to_owned()],
            thinks: true,
        }
    }

    /// The families for which most speaks.
    fn best(signs: &Signs) -> Vec<&'static str> {
        let weighed: Vec<(usize, &str)> = Family::all()
            .filter_map(|name| signs.speak_for(&Family::named(name).0).map(|weight| (weight, name)))
            .collect();
        let most = weighed.iter().map(|(weight, _)| *weight).max();
        weighed.into_iter().filter(|(weight, _)| Some(*weight) == most).map(|(_, name)| name).collect()
    }

    #[test]
    fn templates_are_told_apart_by_what_they_render() {
        let closed = "<think>\n\n</think>\n\n";
        let raw = "<think>\nSo.\n</think>\n\nYes.";
        assert_eq!(best(&signs("", closed, "", raw)), ["qwen3"]);
        assert_eq!(best(&signs("<think>\n", closed, "", "So.\n</think>\n\nYes.")), ["qwen3_6"]);
        // Off takes a system text away, so that it must not be switched later.
        assert_eq!(best(&signs("<think>\n", closed, "<|im_start|>system\n", "So.\n</think>\n\nYes.")), ["qwen3_8"]);
    }

    #[test]
    fn nothing_speaks_against_a_family_where_nothing_is_known() {
        let unknown = Signs::default();
        assert!(Family::all().all(|name| unknown.speak_for(&Family::named(name).0).is_some()));
        let thinking = Signs { thinks: true, ..Signs::default() };
        assert_eq!(thinking.speak_for(&Family::named("no-thinking").0), None);
    }
}
