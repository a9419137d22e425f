//! Ports that tests keep for servers that they stop and start.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of 127.0.0.1 for one server after the other. Between two of them nobody else is given it.
///
/// The socket is bound and does not listen. A server listens beside it, as both allow that (`SO_REUSEADDR` of socket(7)). Whoever asks the
/// kernel for any port, or connects, is given another one.
#[derive(Debug)]
pub struct Port(Socket);

impl Port {
    /// One that nobody has.
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("a flag");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
        Self(socket)
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().ok().and_then(|address| address.as_socket()).expect("it is bound")
    }
}

impl Default for Port {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn kept_port_serves_successive_listeners_and_nobody_else() {
        let port = Port::new();
        let refused = || TcpStream::connect(port.address()).unwrap_err().kind();
        assert_eq!(refused(), ErrorKind::ConnectionRefused, "nobody listens");
        for _ in 0..3 {
            // As servers do, it allows others.
            let listener = TcpListener::bind(port.address()).unwrap();
            let client = TcpStream::connect(port.address()).unwrap();
            assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
            drop((listener, client));
            assert_eq!(refused(), ErrorKind::ConnectionRefused, "nobody listens any more");
        }
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert_eq!(other.bind(&port.address().into()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
