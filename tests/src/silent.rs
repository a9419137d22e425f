//! Who takes a stopped server's place, lets clients connect, and never says a word.

use std::io::ErrorKind;

use dafs_proto::transport::Address;
use socket2::{Domain, SockAddr, Socket, Type};

/// Listens where a server did. Dropping it cuts its connections and leaves the place to the next.
pub struct Silent {
    listener: Socket,
    taken: Vec<Socket>,
    address: Address,
}

impl Silent {
    /// Takes the place of a server that was stopped, over tcp or shm.
    pub fn at(address: &Address) -> Self {
        let (place, kind) = match address {
            Address::Tcp(address) => (SockAddr::from(*address), Type::STREAM),
            Address::Shm(path) => {
                // The server may have left it behind.
                let _ = std::fs::remove_file(path);
                (SockAddr::unix(path).expect("a short path"), Type::SEQPACKET)
            }
            _ => panic!("{address} is no address of a socket"),
        };
        let listener = Socket::new(Domain::from(i32::from(place.family())), kind, None).expect("a socket");
        listener.set_reuse_address(true).expect("an option");
        listener.bind(&place).expect("the place is free");
        listener.listen(16).expect("a listener");
        listener.set_nonblocking(true).expect("a flag");
        Self { listener, taken: Vec::new(), address: address.clone() }
    }

    /// Connections that clients have made so far. Does not block.
    pub fn connections(&mut self) -> usize {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => self.taken.push(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.taken.len(),
                Err(error) => panic!("accepting: {error}"),
            }
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // A child of this process may have it for a while.
        let _ = self.listener.shutdown(std::net::Shutdown::Both);
        if let Address::Shm(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}
