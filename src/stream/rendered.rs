//! A leg that is rendered: several requests to one engine that read like one event stream.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pingora::http::RequestHeader;
use thiserror::Error;

use crate::proto::resume::Question;
use crate::proto::resume::render::{Broken, Need, Rendering};
use crate::upstream::{
    self, Answer, Asking, Cluster, Connector, Cut, Endpoint, Leg, OpenError, Unanswered, Whom, is_event_stream,
};

/// The longest answer to one step, in bytes. A render step lists every token of the prompt, a derender step every one of the answer.
const MAX_ANSWER: usize = 16 << 20;

/// How much of an answer that should have been an event stream is kept for the log, in bytes.
const EXCERPT: usize = 512;

/// What a leg's steps are asked with.
#[derive(Clone)]
pub struct Steps {
    /// Pingora's connection pool.
    pub connector: Arc<Connector>,
    /// The upstream that continues.
    pub cluster: Arc<Cluster>,
    /// The client's headers as its legs have them.
    pub head: Arc<RequestHeader>,
    /// Bounds the opening of one connection.
    pub connect: Duration,
    /// Bounds each step, and the wait for the header of the generating one.
    pub patience: Duration,
}

impl Steps {
    fn asking<'a>(&'a self, whom: Whom<'a>) -> Asking<'a> {
        Asking {
            connector: &self.connector,
            cluster: &self.cluster,
            head: &self.head,
            whom,
            connect: self.connect,
            patience: self.patience,
            limit: MAX_ANSWER,
        }
    }
}

/// Why a leg was not opened. Nothing of it has reached anybody.
#[derive(Debug, Error)]
pub enum NotRendered {
    /// A step has no answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    /// The generating step has none.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// An engine answered, and so that there is no leg.
    #[error("{}{why}", .endpoint.as_ref().map(|endpoint| format!("{endpoint}: ")).unwrap_or_default())]
    Broken {
        /// What the machine says of it.
        why: Broken,
        /// Who answered; `None`: nobody was asked.
        endpoint: Option<Arc<Endpoint>>,
    },
}

impl NotRendered {
    /// The endpoint that had got a request.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Self::Unanswered(unanswered) => unanswered.endpoint(),
            Self::NotOpened(error) => error.endpoint(),
            Self::Broken { endpoint, .. } => endpoint.as_ref(),
        }
    }

    /// How many endpoints accepted no connection.
    pub fn unconnected(&self) -> usize {
        match self {
            Self::Unanswered(unanswered) => unanswered.unconnected(),
            Self::NotOpened(OpenError::Unreachable { failures, .. }) => failures.len(),
            Self::NotOpened(_) | Self::Broken { .. } => 0,
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<Answer, Unanswered>> + Send>>;

/// A rendered leg whose engine generates. It is read as [`Leg`] is; dropping it closes every connection, which makes the engine
/// stop.
///
/// All its steps go to one endpoint, whose tokenizer and parser made the first of them. While a step is asked, what the engine
/// generates waits in its connection.
pub struct RenderedLeg {
    rendering: Rendering,
    steps: Steps,
    leg: Leg,
    /// A step that is being asked. Kept here, so that a read may be dropped at any moment.
    asked: Option<Asked>,
    /// How the generating stream ended, once it has.
    ended: Option<Result<(), Cut>>,
    /// The machine, or a step, failed; nothing comes any more.
    broken: Option<Cut>,
    unconnected: usize,
    /// What [`RenderedLeg::read`] lends out.
    piece: Vec<u8>,
}

impl RenderedLeg {
    /// Asks what has to be known, and waits for the header of the generating stream. `avoid`: endpoints to use only when there is
    /// no other.
    ///
    /// # Errors
    /// There is no leg, and why.
    pub async fn open(mut rendering: Rendering, steps: Steps, avoid: &[SocketAddr]) -> Result<Self, NotRendered> {
        let mut endpoint: Option<Arc<Endpoint>> = None;
        let mut unconnected = 0;
        loop {
            let whom = endpoint.as_ref().map_or(Whom::Avoiding(avoid), |endpoint| Whom::Only(endpoint.address()));
            let why = match rendering.poll() {
                Ok(Need::Ask(question)) => {
                    let answer = upstream::ask(steps.asking(whom), question).await?;
                    rendering.answered(answer.status, &answer.body);
                    unconnected += answer.unconnected;
                    endpoint = Some(answer.endpoint);
                    continue;
                }
                Ok(Need::Generate(question)) => {
                    let mut leg = upstream::open(steps.asking(whom), question).await?;
                    unconnected += leg.failures().len();
                    if is_event_stream(leg.response()) {
                        rendering.opened();
                        let (asked, ended, broken) = (None, None, None);
                        return Ok(Self {
                            rendering,
                            steps,
                            leg,
                            asked,
                            ended,
                            broken,
                            unconnected,
                            piece: Vec::new(),
                        });
                    }
                    let beginning = beginning(&mut leg, steps.patience).await;
                    rendering.answered(leg.response().status.as_u16(), &beginning);
                    endpoint = Some(Arc::clone(leg.endpoint()));
                    continue;
                }
                Ok(Need::Bytes(_) | Need::More | Need::End) => Broken::Unasked,
                Err(broken) => broken,
            };
            return Err(NotRendered::Broken { why, endpoint });
        }
    }

    /// The engine that answers.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        self.leg.endpoint()
    }

    /// How many endpoints accepted no connection before this one did.
    pub fn unconnected(&self) -> usize {
        self.unconnected
    }

    /// The next events of the leg, never empty; `None` at its end. May be dropped before it is ready, and called again.
    ///
    /// # Errors
    /// The generating stream was cut, after all that came of it has been lent out; or a step failed.
    pub async fn read(&mut self) -> Result<Option<&[u8]>, Cut> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        match self.next().await {
            Ok(true) => Ok(Some(&self.piece)),
            Ok(false) => Ok(None),
            Err(cut) => {
                self.broken = Some(cut.clone());
                Err(cut)
            }
        }
    }

    /// Gives the generating stream's connection back to the pool, if it was read to its end; closes it otherwise.
    pub async fn finish(self) {
        self.leg.finish().await;
    }

    /// Puts the next events into `piece`; `false` at the end.
    async fn next(&mut self) -> Result<bool, Cut> {
        loop {
            if let Some(asked) = &mut self.asked {
                let answer = asked.await;
                self.asked = None;
                let answer = answer.map_err(|error| Cut::Other(error.to_string()))?;
                self.rendering.answered(answer.status, &answer.body);
            }
            match self.rendering.poll().map_err(|broken| Cut::Other(broken.to_string()))? {
                Need::Bytes(bytes) => {
                    self.piece = bytes;
                    return Ok(true);
                }
                Need::Ask(question) => self.asked = Some(self.ask(question)),
                Need::More => match self.leg.read().await {
                    Ok(Some(bytes)) => self.rendering.generated(bytes),
                    end => {
                        self.ended = Some(end.map(|_| ()));
                        self.rendering.generate_ended();
                    }
                },
                Need::End => match &self.ended {
                    Some(ended) => return ended.clone().map(|()| false),
                    // Behind `[DONE]` nothing comes but the end of the body.
                    None => self.ended = self.leg.read().await.map(|more| more.is_none().then_some(())).transpose(),
                },
                Need::Generate(_) => return Err(Cut::Other(Broken::Unasked.to_string())),
            }
        }
    }

    fn ask(&self, question: Question) -> Asked {
        let steps = self.steps.clone();
        let address = self.leg.endpoint().address();
        Box::pin(async move { upstream::ask(steps.asking(Whom::Only(address)), question).await })
    }
}

impl fmt::Debug for RenderedLeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderedLeg")
            .field("leg", &self.leg)
            .field("rendering", &self.rendering)
            .finish_non_exhaustive()
    }
}

/// The beginning of an answer that is not an event stream, as far as it comes in time.
async fn beginning(leg: &mut Leg, patience: Duration) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while body.len() < EXCERPT
            && let Ok(Some(bytes)) = leg.read().await
        {
            body.extend_from_slice(bytes);
        }
    };
    // What came in time is enough for a log.
    let _ = tokio::time::timeout(patience, read).await;
    body.truncate(EXCERPT);
    body
}

#[cfg(test)]
mod tests;
