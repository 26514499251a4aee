//! From the endpoints a person wrote to the addresses there are to connect to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use log::warn;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::lb::{Backend, Extensions};
use pingora::protocols::l4::socket::SocketAddr as PingoraAddr;

use super::cluster::Endpoint;
use crate::config::settings;

/// Resolves the configured endpoints. An endpoint that names a host may become several addresses, and other ones later.
pub(super) struct Addresses {
    endpoints: Vec<settings::Endpoint>,
    /// The endpoints of the last discovery. An address that is found again keeps its entry, and with it its count of streams.
    known: Arc<Mutex<BTreeMap<SocketAddr, Arc<Endpoint>>>>,
}

impl Addresses {
    pub(super) fn new(endpoints: Vec<settings::Endpoint>) -> Self {
        Self { endpoints, known: Arc::default() }
    }

    /// A host that does not resolve keeps the addresses it had: a name server that is down must not take the engines with it.
    async fn resolve(&self, endpoint: &settings::Endpoint) -> Vec<SocketAddr> {
        if let Ok(ip) = endpoint.host.parse::<IpAddr>() {
            return vec![SocketAddr::new(ip, endpoint.port)];
        }
        let found = match tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await {
            Ok(found) => found.collect::<Vec<_>>(),
            Err(error) => {
                warn!("endpoint {endpoint} does not resolve, its last known addresses are kept: {error}");
                Vec::new()
            }
        };
        if found.is_empty() { self.last_known(endpoint) } else { one_address_family(found) }
    }

    fn last_known(&self, endpoint: &settings::Endpoint) -> Vec<SocketAddr> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().filter(|k| k.configured() == endpoint).map(|k| k.address()).collect()
    }
}

/// A host with both IPv4 and IPv6 addresses is one machine, reached two ways, and must not count as two: the addresses of the
/// kind that the resolver puts first are used.
fn one_address_family(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v4 = found.first().is_some_and(SocketAddr::is_ipv4);
    found.into_iter().filter(|address| address.is_ipv4() == first_is_v4).collect()
}

#[async_trait]
impl ServiceDiscovery for Addresses {
    async fn discover(&self) -> pingora::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let mut found = BTreeMap::new();
        for endpoint in &self.endpoints {
            for address in self.resolve(endpoint).await {
                found.entry(address).or_insert(endpoint);
            }
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeMap::new();
        let mut backends = BTreeSet::new();
        for (address, endpoint) in found {
            let entry = known.remove(&address).unwrap_or_else(|| Arc::new(Endpoint::new(endpoint.clone(), address)));
            let mut ext = Extensions::new();
            ext.insert(Arc::clone(&entry));
            backends.insert(Backend { addr: PingoraAddr::Inet(address), weight: 1, ext });
            now.insert(address, entry);
        }
        *known = now;
        Ok((backends, HashMap::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Scheme;

    fn configured(host: &str, port: u16) -> settings::Endpoint {
        settings::Endpoint { scheme: Scheme::Http, host: host.to_owned(), port }
    }

    #[tokio::test]
    async fn an_ip_address_needs_no_name_server() {
        let (backends, _) = Addresses::new(vec![configured("::1", 8000)]).discover().await.unwrap();
        let address = backends.first().unwrap().addr.as_inet().copied();
        assert_eq!(address, Some("[::1]:8000".parse().unwrap()));
    }

    #[tokio::test]
    async fn a_host_that_does_not_resolve_leaves_the_others_in_place() {
        let addresses = Addresses::new(vec![configured("nobody.invalid", 1), configured("127.0.0.1", 2)]);
        let (backends, _) = addresses.discover().await.unwrap();
        assert_eq!(backends.len(), 1);
    }

    #[tokio::test]
    async fn an_address_found_again_keeps_its_count_of_streams() {
        let addresses = Addresses::new(vec![configured("127.0.0.1", 2)]);
        let endpoint = |backends: &BTreeSet<Backend>| {
            backends.first().and_then(|b| b.ext.get::<Arc<Endpoint>>()).map(Arc::clone).unwrap()
        };
        let first = endpoint(&addresses.discover().await.unwrap().0);
        let second = endpoint(&addresses.discover().await.unwrap().0);
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn a_host_with_both_kinds_of_address_counts_once() {
        let both = vec!["[::1]:80".parse().unwrap(), "127.0.0.1:80".parse().unwrap(), "[::2]:80".parse().unwrap()];
        assert_eq!(one_address_family(both), vec!["[::1]:80".parse().unwrap(), "[::2]:80".parse().unwrap()]);
    }
}
