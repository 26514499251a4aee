//! The arguments of `baton certify`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::{Order, prompts};
use crate::config::settings::{Balance, Settings, Upstream};
use crate::config::{ENGINES, units};
use crate::proto::resume::PlanKind;

/// Cuts answers of a live engine at many points, continues them by every plan, and writes down what works.
///
/// Everything is asked at temperature 0, one request after the other. The engine should have nothing else to do.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("target").required(true).args(["upstream", "url"])))]
pub struct Arguments {
    /// An upstream of the configuration.
    #[arg(long, value_name = "NAME", requires = "config")]
    upstream: Option<String>,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// An engine's address instead: http://host:port.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The engine behind --url.
    #[arg(long, value_name = "NAME", default_value = "vllm", value_parser = clap::builder::PossibleValuesParser::new(ENGINES))]
    engine: String,
    /// The model's family; `auto` finds it out [default: the upstream's, `auto` with --url].
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// The model [default: the first that the engine names].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Ask this instead of Baton's own prompts; may be repeated.
    #[arg(long = "prompt", value_name = "TEXT")]
    prompts: Vec<String>,
    /// Ask this prompt, too, a JSON list of token ids, with a tool: for models that call one only then. vLLM from 0.28 on.
    #[arg(long, value_name = "[IDS]")]
    prompt_ids: Option<String>,
    /// Try this plan only; may be repeated.
    #[arg(long = "plan", value_name = "PLAN", value_parser = clap::builder::PossibleValuesParser::new(PlanKind::ALL.map(PlanKind::name)))]
    plans: Vec<String>,
    /// Cuts for each state of an answer.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    cuts: u16,
    /// The length of an answer in tokens. Make it longer for a model that thinks longer.
    #[arg(long, value_name = "N", default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Try also what is known not to work for the family and the engine.
    #[arg(long)]
    force: bool,
    /// The environment variable that holds the engine's API key.
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,
    /// The longest silence of the engine, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    idle: u16,
    /// Write certificate.json and certificate.md into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the Markdown to this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    /// What is asked for. `env` gives the environment's values.
    ///
    /// # Errors
    /// What is wrong with the arguments, in words.
    pub fn order(&self, settings: Option<&Settings>, env: &dyn Fn(&str) -> Option<String>) -> Result<Order, String> {
        let mut upstream = self.target(settings)?;
        let find_family = match (self.family.as_deref(), &self.url) {
            (Some("auto"), _) | (None, Some(_)) => true,
            (Some(family), _) => {
                family.clone_into(&mut upstream.family);
                false
            }
            (None, None) => false,
        };
        if let Some(ids) = self.prompt_ids.as_ref().filter(|ids| !prompts::is_ids(ids)) {
            return Err(format!("--prompt-ids: {ids:?} is not a list of token ids; write [1,2,3]"));
        }
        let authorization = match &self.key_env {
            None => None,
            Some(name) => Some(env(name).ok_or_else(|| format!("--key-env: {name} is not set in the environment"))?),
        };
        let named = self.plans.iter().filter_map(|name| PlanKind::named(name));
        Ok(Order {
            upstream,
            find_family,
            model: self.model.clone(),
            authorization: authorization.map(|key| format!("Bearer {key}")),
            prompts: self.prompts.clone(),
            prompt_ids: self.prompt_ids.clone(),
            plans: if self.plans.is_empty() { PlanKind::ALL.into_iter().collect() } else { named.collect() },
            cuts: self.cuts.into(),
            max_tokens: self.max_tokens.into(),
            force: self.force,
            idle: Duration::from_secs(self.idle.into()),
        })
    }

    fn target(&self, settings: Option<&Settings>) -> Result<Upstream, String> {
        if let Some(url) = &self.url {
            let endpoint = units::endpoint(url).map_err(|why| format!("--url: {url:?} {why}"))?;
            return Ok(Upstream {
                name: "engine".to_owned(),
                engine: self.engine.clone(),
                family: "default".to_owned(),
                endpoints: vec![endpoint],
                balance: Balance::default(),
                certificate: None,
            });
        }
        let upstreams = settings.map(|settings| &settings.upstreams[..]).unwrap_or_default();
        let wanted = self.upstream.as_deref().unwrap_or_default();
        let found = upstreams.iter().find(|upstream| upstream.name == wanted).cloned();
        let names = || upstreams.iter().map(|upstream| upstream.name.as_str()).collect::<Vec<_>>().join(", ");
        let upstream = found.ok_or_else(|| format!("--upstream: {wanted:?} is none of the upstreams ({})", names()))?;
        // What was certified before has no say.
        Ok(Upstream { certificate: None, ..upstream })
    }

    /// The files to write: Markdown and JSON.
    pub fn files(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let inside = |name: &str| self.out.as_ref().map(|folder| folder.join(name));
        let both = |given: &Option<PathBuf>, name| given.iter().cloned().chain(inside(name)).collect();
        (both(&self.markdown, "certificate.md"), both(&self.json, "certificate.json"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn order(line: &str) -> Result<Order, String> {
        let read = Line::try_parse_from(["certify"].into_iter().chain(line.split_whitespace()));
        let arguments = read.map_err(|error| error.kind().to_string())?.arguments;
        let text = "upstreams: [{name: a, engine: sglang, family: glm, endpoints: [\"http://h:1\"]}]\n\
                    routes: [{match: {model: \"*\"}, upstream: a}]\n";
        let settings = config::load(text, &|_| None).unwrap();
        arguments.order(Some(&settings), &|name| (name == "KEY").then(|| "k".to_owned()))
    }

    #[test]
    fn an_upstream_brings_its_family_and_an_address_has_none() {
        let named = order("--upstream a -c f").unwrap();
        assert_eq!((&*named.upstream.engine, &*named.upstream.family, named.find_family), ("sglang", "glm", false));
        assert!(order("--upstream a -c f --family auto").unwrap().find_family);
        let address = order("--url http://h:2").unwrap();
        assert_eq!((&*address.upstream.engine, address.find_family, address.plans.iter().count()), ("vllm", true, 5));
        let told = order("--url http://h:2/ --engine sglang --family qwen3 --plan replay --key-env KEY").unwrap();
        assert_eq!((&*told.upstream.family, told.find_family), ("qwen3", false));
        assert_eq!(told.plans.iter().collect::<Vec<_>>(), [PlanKind::Replay]);
        assert_eq!(told.authorization.as_deref(), Some("Bearer k"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_option() {
        for (line, said) in [
            ("--url h:2", "--url: \"h:2\" "),
            ("--upstream b -c f", "--upstream: \"b\" is none of the upstreams (a)"),
            ("--url http://h:2 --key-env NONE", "--key-env: NONE is not set in the environment"),
            ("--url http://h:2 --prompt-ids [1,-2]", "--prompt-ids: \"[1,-2]\" is not a list of token ids"),
            ("--url http://h:2 --prompt-ids []", "--prompt-ids: \"[]\" is not a list of token ids"),
            ("", "one or more required arguments were not provided"),
            ("--upstream a", "one or more required arguments were not provided"),
            ("--url http://h:2 --upstream a -c f", "an argument cannot be used with one or more of the other"),
            ("--url http://h:2 --plan auto", "one of the values isn't valid for an argument"),
        ] {
            let why = order(line).unwrap_err();
            assert!(why.starts_with(said), "{line}: {why}");
        }
    }
}
