//! An uncut answer, and the same answer cut and continued.

use super::Order;
use tokio::time::Instant;

use super::bench::Bench;
use super::judge::{Answer, fold, judge, refusal, words};
use super::prompts::Prompt;
use crate::journal::{Entry, Keep, Pulled, Reader};
use crate::proto::certificate::Verdict;
use crate::proto::chat::{ChatRequest, Partial, TokenIds};
use crate::proto::record::Seal;
use crate::proto::relay::{LegEnd, Policy, Relay};
use crate::proto::resume::{self, Family, PlanKind};
use crate::stream;

/// Tries of a leg: a second one confirms or refutes what the first said.
const ATTEMPTS: u32 = 2;

/// An answer that nothing happened to.
#[derive(Clone, Debug)]
pub(super) struct Uncut {
    /// As the client sent it.
    pub(super) request: ChatRequest,
    /// Leg 1 asked for token ids.
    hides_ids: bool,
    /// Thinking was switched off.
    pub(super) thinking_off: bool,
    /// The prompt was given as ids.
    pub(super) by_ids: bool,
    /// The data of its events, as the engine sent them.
    pub(super) events: Vec<Vec<u8>>,
    answer: Answer,
}

impl Uncut {
    /// Asks for it.
    ///
    /// # Errors
    /// There is no whole answer; in words.
    pub(super) async fn ask(bench: &Bench, order: &Order, prompt: &Prompt) -> Result<Self, String> {
        let body = prompt.body(bench.model(), order.max_tokens).to_string();
        let request = ChatRequest::parse(body.as_bytes()).map_err(|error| error.to_string())?;
        let listing = resume::first(&request, bench.engine(), &resume::Settings::default());
        let hides_ids = listing.is_some();
        let mut events = bench.events(listing.unwrap_or_else(|| request.to_bytes())).await?;
        events.retain(|data| data != b"[DONE]");
        let answer = Answer::of(&events);
        if answer.finish().is_none() {
            let last = events.last().map(|data| words(&String::from_utf8_lossy(data)));
            return Err(format!("no finish reason; the last event is {}", last.unwrap_or_default()));
        }
        let (thinking_off, by_ids) = (prompt.off.is_some(), prompt.ids.is_some());
        Ok(Self { request, hides_ids, thinking_off, by_ids, events, answer })
    }

    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// What there is of it after so many events.
    pub(super) fn partial(&self, events: usize) -> Partial {
        let mut partial = Partial::new(1);
        self.events[..events].iter().for_each(|data| fold(&mut partial, data));
        partial
    }

    /// The ids of the answer, where the engine listed them all.
    pub(super) fn ids(&self) -> Option<TokenIds> {
        self.partial(self.events.len()).ids().map(|ids| ids.answer.clone())
    }

    /// Cuts it after so many events, lets one kind of plan go on, and judges what comes of it.
    pub(super) async fn cut(
        &self,
        bench: &Bench,
        plan: PlanKind,
        family: &Family,
        force: bool,
        events: usize,
    ) -> (Verdict, Option<String>) {
        let policy = policy(bench, plan, force);
        let mut relay =
            Relay::new(Some(self.request.clone()), policy, family.clone(), bench.engine().clone(), bench.rid());
        if self.hides_ids {
            relay.hide_ids();
        }
        let mut writer = match bench.store.create_keeping(Keep::All) {
            Ok(writer) => writer,
            Err(full) => return (Verdict::Refused, Some(full.to_string())),
        };
        let began = Instant::now();
        relay.handle_opened(began.elapsed());
        for data in &self.events[..events] {
            relay.handle_bytes(began.elapsed(), &[b"data: ", &data[..], b"\n\n"].concat(), &mut writer);
        }
        relay.handle_end(began.elapsed(), LegEnd::Reset, &mut writer);
        let mut reader = writer.reader(0);
        let (relay, notes) = stream::go_on(relay, writer, bench.onward(), bench.report(), began).await;
        if relay.seal() != Some(&Seal::Finished) {
            return (Verdict::Refused, Some(refusal(&notes, relay.seal())));
        }
        let got = Answer::of(&read(&mut reader));
        judge(&self.answer, &self.partial(events), &got, family.marks().as_ref())
    }
}

fn policy(bench: &Bench, plan: PlanKind, force: bool) -> Policy {
    let settings = resume::Settings {
        plans: [plan].into_iter().collect(),
        abilities: bench.abilities(),
        // Wherever it can go on, and not only where nothing else does.
        render: plan == PlanKind::RenderGenerate,
        ..resume::Settings::default()
    };
    Policy { attempts: ATTEMPTS, idle: bench.idle(), force, resume: settings, ..Policy::default() }
}

/// The data of all events of a log.
fn read(reader: &mut Reader) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    let mut on = |_, entry: Entry<'_>| {
        if let Entry::Record { record, frames } = entry {
            let mut data = Vec::new();
            if record.write_data(frames, &mut data).is_ok() {
                events.push(data);
            }
        }
    };
    while let Ok(Pulled::More) = reader.pull(usize::MAX, &mut on) {}
    events
}
