"""The tcp transport (tcp.md): hellos, frames, and software RDMA that the client serves."""
from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from .wire import Range

MAGIC = b"dafs-tcp"
VERSION = 2
PORT = 12_049
HELLO_SIZE = FRAME_SIZE = 32
HEAD_MAX = 112
PAYLOAD_MAX = 1 << 20
RDMA_MAX = 16 << 20
RANGES_MAX = 256
RESPONSE_MAX = 262_144

SEND, WRITE, READ_REQUEST, READ_RESPONSE, FAULT, WRITE_LIST, READ_LIST = range(1, 8)
IMMEDIATE = 0x01
FAULT_MALFORMED, FAULT_NO_REGION, FAULT_BOUNDS, FAULT_RIGHTS = range(1, 5)
FAULT_MEANINGS = {1: "malformed frame", 2: "no region has the key", 3: "outside the region", 4: "not its rights"}


class ConnectionEnded(Exception):
    """The connection has ended."""


class Malformed(Exception):
    """A frame or hello is not as the tables say: the value found, and what was expected."""

    def __init__(self, words: str, found: int = 0, expected: int = 0):
        super().__init__(f"{words}: {found}, expected {expected}")
        self.code, self.key, self.offset = FAULT_MALFORMED, found, expected


class AccessRefused(Exception):
    """The peer reached for memory that it was not lent."""

    def __init__(self, code: int, key: int, offset: int = 0):
        super().__init__(FAULT_MEANINGS[code])
        self.code, self.key, self.offset = code, key, offset


class Hello(NamedTuple):
    """What each side says first."""

    recv_depth: int = 80
    recv_payload_max: int = 16_384
    rdma_depth: int = 128

    def encode(self) -> bytes:
        """Encode the 32 bytes."""
        return struct.pack("<8sHHIH14x", MAGIC, VERSION, *self)

    @staticmethod
    def decode(data: bytes) -> "Hello":
        """Decode and check the 32 bytes ([TCP-2])."""
        if len(data) != HELLO_SIZE:
            raise Malformed("bytes of a hello", len(data), HELLO_SIZE)
        magic, version, *terms, reserved = struct.unpack("<8sHHIH14s", data)
        hello = Hello(*terms)
        if magic != MAGIC:
            raise Malformed("magic", int.from_bytes(magic, "little"), int.from_bytes(MAGIC, "little"))
        if version != VERSION:
            raise Malformed("version", version, VERSION)
        if not (1 <= hello.recv_depth <= 4096 and 1 <= hello.rdma_depth <= 4096):
            raise Malformed("a depth", min(hello.recv_depth, hello.rdma_depth), 4096)
        if hello.recv_payload_max > PAYLOAD_MAX:
            raise Malformed("recv_payload_max", hello.recv_payload_max, PAYLOAD_MAX)
        if any(reserved):
            raise Malformed("a reserved byte", 1)
        return hello


@dataclass(frozen=True)
class Frame:
    """The header of a frame."""

    kind: int
    flags: int = 0
    head_len: int = 0
    len: int = 0
    key: int = 0
    offset: int = 0
    value: int = 0

    def encode(self) -> bytes:
        """Encode the 32 bytes ([TCP-3])."""
        return struct.pack("<BBHIQQI4x", self.kind, self.flags, self.head_len, self.len, self.key, self.offset,
                           self.value)

    @staticmethod
    def decode(data: bytes, payload_max: int = PAYLOAD_MAX) -> "Frame":
        """Decode and check the 32 bytes ([TCP-22], [TCP-5])."""
        *fields, reserved = struct.unpack("<BBHIQQI4s", data)
        frame = Frame(*fields)
        if any(reserved):
            raise Malformed("the last bytes", int.from_bytes(reserved, "little"))
        _check_frame(frame, payload_max)
        return frame

    @property
    def body_len(self) -> int:
        """Count the bytes of the body."""
        ranges = 24 * self.head_len
        return {SEND: self.head_len + self.len, READ_REQUEST: 0, FAULT: 0, WRITE_LIST: ranges + self.len,
                READ_LIST: ranges}.get(self.kind, self.len)


class Limits(NamedTuple):
    """What the header of a kind of frame may have; fields beyond `uses` are zero."""

    head: Tuple[int, int]
    len: Tuple[int, int]
    uses: str


LIMITS = {
    SEND: Limits((1, HEAD_MAX), (0, PAYLOAD_MAX), ""),
    WRITE: Limits((0, 0), (0, RDMA_MAX), "key offset"),
    READ_REQUEST: Limits((0, 0), (0, RDMA_MAX), "key offset value"),
    READ_RESPONSE: Limits((0, 0), (0, RDMA_MAX), "offset value"),
    FAULT: Limits((0, 0), (0, 0), "key offset value"),
    WRITE_LIST: Limits((1, RANGES_MAX), (1, RDMA_MAX), ""),
    READ_LIST: Limits((1, RANGES_MAX), (1, RDMA_MAX), "value"),
}


def _check_frame(frame: Frame, payload_max: int) -> None:
    """Check the header of a frame against the tables."""
    if frame.kind not in LIMITS:
        raise Malformed("kind", frame.kind, READ_LIST)
    limits = LIMITS[frame.kind]
    uses = limits.uses.split()
    if frame.kind == WRITE and frame.flags == IMMEDIATE:
        uses.append("value")
    elif frame.flags:
        raise Malformed("flags", frame.flags)
    for name in ("key", "offset", "value"):
        if name not in uses and getattr(frame, name):
            raise Malformed(f"unused {name}", getattr(frame, name))
    if not limits.head[0] <= frame.head_len <= limits.head[1]:
        raise Malformed("head_len", frame.head_len, limits.head[1])
    len_max = payload_max if frame.kind == SEND else limits.len[1]
    if not limits.len[0] <= frame.len <= len_max:
        raise Malformed("len", frame.len, len_max)


def decode_ranges(frame: Frame, data: bytes) -> List[Range]:
    """Decode and check the ranges of a list ([TCP-14], [TCP-33])."""
    ranges = [Range(*struct.unpack_from("<QQQ", data, 24 * index)) for index in range(frame.head_len)]
    for item in ranges:
        if not 1 <= item.length <= RDMA_MAX:
            raise Malformed("length of a range", item.length, RDMA_MAX)
    if sum(item.length for item in ranges) != frame.len:
        raise Malformed("ranges in all", sum(item.length for item in ranges), frame.len)
    return ranges


class Region:
    """Registered memory: a key, and what the peer may do."""

    def __init__(self, memory: bytearray, remote_write: bool, remote_read: bool):
        self.key = secrets.randbelow(2**64 - 1) + 1
        self.memory = memory
        self.remote_write, self.remote_read = remote_write, remote_read

    def range(self, offset: int = 0, length: Optional[int] = None) -> Range:
        """Name bytes of the region, as a request does."""
        return Range(self.key, offset, len(self.memory) - offset if length is None else length)


class Regions:
    """The regions of a client; they outlive its connections."""

    def __init__(self) -> None:
        self._by_key: Dict[int, Region] = {}

    def register(self, memory: bytearray, remote_write: bool = False, remote_read: bool = False) -> Region:
        """Lend memory to the peer."""
        region = Region(memory, remote_write, remote_read)
        self._by_key[region.key] = region
        return region

    def deregister(self, region: Region) -> None:
        """End a region."""
        del self._by_key[region.key]

    def reach(self, item: Range, kind: int) -> memoryview:
        """Find the memory that a peer reaches for ([TCP-11])."""
        region = self._by_key.get(item.key)
        if region is None:
            raise AccessRefused(FAULT_NO_REGION, item.key)
        if not (region.remote_write if kind in (WRITE, WRITE_LIST) else region.remote_read):
            raise AccessRefused(FAULT_RIGHTS, item.key)
        if item.offset + item.length > len(region.memory):
            raise AccessRefused(FAULT_BOUNDS, item.key, item.offset)
        return memoryview(region.memory)[item.offset:item.offset + item.length]


class Delivered(NamedTuple):
    """A message that arrived."""

    head: bytes
    payload: bytes


class Immediate(NamedTuple):
    """A write with an immediate that arrived: its value and size."""

    value: int
    size: int


class TcpConnection:
    """A connection: sends and receives messages, and serves the peer's RDMA while it receives."""

    def __init__(self, host: str, port: int = PORT, hello: Hello = Hello(), timeout: float = 10.0):
        self.hello, self.timeout = hello, timeout
        self.ended: Optional[str] = None
        self.fault: Optional[Frame] = None
        self.regions = Regions()
        self._received = bytearray()
        self.sock = socket.create_connection((host, port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.peer = self._shake_hands()
        except BaseException:
            self.sock.close()
            raise

    def _shake_hands(self) -> Hello:
        """Send the own hello and check the peer's."""
        self.sock.setblocking(False)
        self._transmit(self.hello.encode())
        return Hello.decode(self._take(HELLO_SIZE, time.monotonic() + self.timeout))

    def send(self, head: bytes, payload: bytes = b"") -> None:
        """Send one message."""
        if len(payload) > self.peer.recv_payload_max:
            raise ValueError(f"a payload of {len(payload)} bytes; the peer takes {self.peer.recv_payload_max}")
        self._transmit(Frame(SEND, head_len=len(head), len=len(payload)).encode() + head + payload)

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._transmit(data)

    def receive(self, timeout: Optional[float] = None) -> Union[Delivered, Immediate]:
        """Receive the next message; serve RDMA that comes before it."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                delivered = self._handle(deadline)
            except (Malformed, AccessRefused) as fault:
                self._end_with_fault(fault)
                raise
            if delivered is not None:
                return delivered

    def close(self) -> None:
        """Close the connection."""
        self.ended = self.ended or "closed"
        self.sock.close()

    # What arrives.

    def _handle(self, deadline: float) -> Union[Delivered, Immediate, None]:
        """Take one frame and do what it says."""
        self._wait_for(FRAME_SIZE, deadline)
        frame = Frame.decode(bytes(self._received[:FRAME_SIZE]), self.hello.recv_payload_max)
        if frame.kind in (WRITE, READ_REQUEST):
            self.regions.reach(Range(frame.key, frame.offset, frame.len), frame.kind)
        body = self._take(FRAME_SIZE + frame.body_len, deadline)[FRAME_SIZE:]
        if frame.kind == SEND:
            return Delivered(body[:frame.head_len], body[frame.head_len:])
        if frame.kind == WRITE:
            return self._write(frame, body)
        if frame.kind == WRITE_LIST:
            return self._write_list(frame, body)
        if frame.kind == READ_REQUEST:
            return self._respond(frame.value, [Range(frame.key, frame.offset, frame.len)])
        if frame.kind == READ_LIST:
            return self._respond(frame.value, decode_ranges(frame, body))
        if frame.kind == FAULT:
            self.fault = frame
            self.ended = FAULT_MEANINGS.get(frame.value, f"fault {frame.value}")
            raise ConnectionEnded(f"the peer found a fault: {self.ended}")
        raise Malformed("a response to a read that is not in flight", frame.value)

    def _write(self, frame: Frame, data: bytes) -> Optional[Immediate]:
        """Place the data of a write."""
        self.regions.reach(Range(frame.key, frame.offset, frame.len), WRITE)[:] = data
        return Immediate(frame.value, frame.len) if frame.flags & IMMEDIATE else None

    def _write_list(self, frame: Frame, body: bytes) -> None:
        """Place the data of a list of writes, in order ([TCP-34], [TCP-35])."""
        ranges = decode_ranges(frame, body)
        at = 24 * len(ranges)
        for memory in [self.regions.reach(item, WRITE_LIST) for item in ranges]:
            memory[:] = body[at:at + len(memory)]
            at += len(memory)

    def _respond(self, read_id: int, ranges: List[Range]) -> None:
        """Answer a read with the bytes of its ranges, in responses of bounded size ([TCP-9], [TCP-29])."""
        data = b"".join([self.regions.reach(item, READ_REQUEST) for item in ranges])
        for at in range(0, max(len(data), 1), RESPONSE_MAX):
            part = data[at:at + RESPONSE_MAX]
            self._transmit(Frame(READ_RESPONSE, len=len(part), offset=at, value=read_id).encode() + part)

    def _end_with_fault(self, fault: Union[Malformed, AccessRefused]) -> None:
        """Say what the peer did wrong, and close ([TCP-38])."""
        try:
            self._transmit(Frame(FAULT, key=fault.key, offset=fault.offset, value=fault.code).encode())
        except (ConnectionEnded, OSError):
            pass
        self.ended = str(fault)
        self.close()

    # The stream.

    def _transmit(self, data: bytes) -> None:
        """Send bytes, and go on receiving meanwhile, so that two senders do not wait for each other."""
        view = memoryview(data)
        while view:
            if self.sock.fileno() < 0:
                raise ConnectionEnded(self.ended or "closed")
            watched = [] if self.ended else [self.sock]
            readable, writable, _ = select.select(watched, [self.sock], [], self.timeout)
            if not readable and not writable:
                raise TimeoutError("the peer takes nothing")
            if readable:
                self._fill()
            if writable:
                view = view[self._send_some(view):]

    def _send_some(self, view: memoryview) -> int:
        """Send what the socket takes."""
        try:
            return self.sock.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionEnded(self.ended or str(error)) from error

    def _fill(self) -> None:
        """Receive what is here; the end of the stream is noted."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            data, self.ended = b"", str(error)
        if not data:
            self.ended = self.ended or "the peer closed"
        self._received += data

    def _wait_for(self, count: int, deadline: float) -> None:
        """Receive until that many bytes are here; whole frames before the end still count ([TCP-8])."""
        while len(self._received) < count:
            if self.ended:
                raise ConnectionEnded(self.ended)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError("nothing arrived")
            self._fill()

    def _take(self, count: int, deadline: float) -> bytes:
        """Take bytes from the front of what was received."""
        self._wait_for(count, deadline)
        data = bytes(self._received[:count])
        del self._received[:count]
        return data
