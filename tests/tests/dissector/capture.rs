//! A capture file, with headers of TCP/IP made up.

use std::collections::HashMap;
use std::path::Path;

use dafs_tests::cut::Way;

/// The port that the dissector takes for dafs.
pub(crate) const PORT: u16 = 12049;

/// Bytes of the headers in front of the data of a segment.
pub(crate) const HEADERS_SIZE: usize = 14 + 20 + 20;

const SEGMENT_SIZE_MAX: usize = 60_000;

/// Bytes that one side of a connection has sent.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The client's port.
    pub(crate) client: u16,
    pub(crate) way: Way,
    pub(crate) bytes: Vec<u8>,
}

/// A file of the pcap format in memory: a packet for each segment.
pub(crate) struct Capture {
    server: u16,
    bytes: Vec<u8>,
    packets: u32,
    /// Bytes sent so far in each direction of a connection.
    sent: HashMap<(u16, bool), u32>,
}

impl Capture {
    /// Of connections to a server at this port.
    pub(crate) fn new(server: u16) -> Self {
        // Magic for little-endian and microseconds, version 2.4, no time zone, no accuracy, longest packet, Ethernet.
        let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1];
        let bytes = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        Self { server, bytes, packets: 0, sent: HashMap::new() }
    }

    pub(crate) fn of(server: u16, segments: &[Segment]) -> Self {
        let mut capture = Self::new(server);
        segments.iter().for_each(|segment| capture.push(segment));
        capture
    }

    /// Adds a segment, as several packets where it is long.
    pub(crate) fn push(&mut self, segment: &Segment) {
        segment
            .bytes
            .chunks(SEGMENT_SIZE_MAX)
            .for_each(|data| self.push_packet(segment.client, segment.way, data));
    }

    /// Counts bytes of a direction as sent that the capture does not have.
    pub(crate) fn leave_out(&mut self, client: u16, way: Way, count: u32) {
        *self.sent.entry((client, way == Way::ToServer)).or_insert(1) += count;
    }

    fn push_packet(&mut self, client: u16, way: Way, data: &[u8]) {
        let is_to_server = way == Way::ToServer;
        let acknowledged = *self.sent.entry((client, !is_to_server)).or_insert(1);
        let sequence = self.sent.entry((client, is_to_server)).or_insert(1);
        let at = *sequence;
        *sequence = at.wrapping_add(data.len() as u32);
        let hosts = [[192, 0, 2, 1], [192, 0, 2, 2]];
        let [(from, from_port), (to, to_port)] = if is_to_server {
            [(hosts[0], client), (hosts[1], self.server)]
        } else {
            [(hosts[1], self.server), (hosts[0], client)]
        };
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let ip_size = (40 + data.len()) as u16;
        packet.extend([0x45, 0]);
        packet.extend(ip_size.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        packet.extend(from);
        packet.extend(to);
        packet.extend(from_port.to_be_bytes());
        packet.extend(to_port.to_be_bytes());
        packet.extend(at.to_be_bytes());
        packet.extend(acknowledged.to_be_bytes());
        packet.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(packet.len(), HEADERS_SIZE);
        packet.extend(data);
        self.packets += 1;
        let len = packet.len() as u32;
        let (seconds, micros) = (self.packets / 1000, self.packets % 1000 * 1000);
        self.bytes.extend([seconds, micros, len, len].iter().flat_map(|word| word.to_le_bytes()));
        self.bytes.extend(packet);
    }

    pub(crate) fn save(&self, path: &Path) {
        std::fs::write(path, &self.bytes).expect("the capture is written");
    }
}
