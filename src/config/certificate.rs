//! The certificates that upstreams name: read, and held against what is configured.

use super::reader::{Item, Mistakes};
use super::schema::File;
use super::settings::{Mode, Route, Upstream};
use crate::proto::certificate::{Certificate, Used};
use crate::proto::resume::PlanSet;

/// The certificate in the file that is named at `item`. `None`: there is none, which has been noted.
pub(super) fn read(item: &Item<'_>, written: &str, file: File<'_>, mistakes: &mut Mistakes) -> Option<Certificate> {
    let text = match file(written) {
        Ok(text) => text,
        Err(why) => {
            let shown = item.shown();
            let text = format!("{shown} cannot be read ({why}); write the path of a file, from this one's folder");
            item.mistake(text, mistakes);
            return None;
        }
    };
    let certificate = Certificate::read(&text);
    if let Err(why) = &certificate {
        item.mistake(format!("{}: {why}", item.shown()), mistakes);
    }
    certificate.ok()
}

/// What the certificates do not cover or say against how their upstreams are used. `places`: where each certificate is named.
pub(super) fn doubts(upstreams: &[Upstream], places: &[String], routes: &[Route]) -> Vec<String> {
    let mut doubts = Vec::new();
    for (index, (upstream, place)) in upstreams.iter().zip(places).enumerate() {
        let Some(certificate) = &upstream.certificate else { continue };
        let continued = |route: &&Route| route.continuation.mode != Mode::Off && route.continuation.upstream == index;
        let routes: Vec<&Route> = routes.iter().filter(continued).collect();
        let plans: PlanSet = routes.iter().flat_map(|route| route.continuation.plans.iter()).collect();
        let force = routes.iter().any(|route| route.continuation.force);
        let used = Used { engine: &upstream.engine, family: &upstream.family, plans, force };
        doubts.extend(certificate.doubts(&used).into_iter().map(|doubt| format!("{place}: {doubt}")));
        if !routes.is_empty() && !routes.iter().any(|route| route.model.matches(&certificate.model)) {
            doubts.push(format!(
                "{place}: the certificate is of the model {}, which no route sends to this upstream",
                certificate.model
            ));
        }
    }
    doubts
}
