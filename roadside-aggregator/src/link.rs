//! What both links share.

/// Host and port of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name or IP address, without brackets.
    pub host: String,
    /// TCP port, not 0.
    pub port: u16,
}

impl Address {
    /// Reads `host:port` or `[IPv6]:port`.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let fits = !bare.is_empty() && bare.chars().all(|c| c.is_ascii_graphic() && c != '/');
        fits.then(|| Self {
            host: bare.to_owned(),
            port,
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl From<std::net::SocketAddr> for Address {
    fn from(address: std::net::SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let got = Address::parse(text);
            assert_eq!(
                got.as_ref().map(|a| (a.host.as_str(), a.port)),
                expected,
                "{text}"
            );
        };
        check("127.0.0.1:1883", Some(("127.0.0.1", 1883)));
        check("broker:8883", Some(("broker", 8883)));
        check("[::1]:1", Some(("::1", 1)));
        for bad in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:70000",
            "::1",
            "a b:1",
            "mqtt://a:1",
        ] {
            check(bad, None);
        }
    }
}
