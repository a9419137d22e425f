"""tcp.md: hellos, frames, RDMA in both directions."""
from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any, List, Tuple

from dafs import tcp, wire
from dafs.client import Client
from dafs.tcp import Frame, Hello, TcpConnection
from dafs.wire import DIRECT, Extent, Range
from vectors import named_bytes

from .bench import (Bench, Skipped, WatchedConnection, ask, expect, make, name_of, new_file, read_to_end, same, send,
                    tests)
from .wire_tests import Lent


def plain_socket(bench: Bench) -> socket.socket:
    """Connect without a word."""
    return socket.create_connection((bench.place.host, bench.place.port), 8)


def read_all(sock: socket.socket) -> bytes:
    """Receive until the stream ends."""
    data = b""
    try:
        while True:
            part = sock.recv(65_536)
            if not part:
                return data
            data += part
    except ConnectionResetError:
        return data
    finally:
        sock.close()


@tests("TCP-2", "TCP-16")
def refused_hellos_are_answered_and_closed(bench: Bench) -> None:
    for name, data in named_bytes(bench.spec / "vectors" / "tcp.txt"):
        if name.startswith("refused hello") and len(data) == 32:
            sock = plain_socket(bench)
            sock.sendall(data)
            came = read_all(sock)
            same(len(came), 32, f"only the server's hello for {name}:")
            Hello.decode(came)
    bench.others_are_served()


@tests("TCP-2")
def hellos_at_their_limits_are_taken(bench: Bench) -> None:
    for name, data in named_bytes(bench.spec / "vectors" / "tcp.txt"):
        if name.startswith("hello"):
            sock = plain_socket(bench)
            sock.sendall(data)
            Hello.decode(sock.recv(32, socket.MSG_WAITALL))
            sock.settimeout(0.3)
            try:
                same(sock.recv(1), "nothing", f"after {name}:")
            except socket.timeout:
                pass
            sock.close()


@tests("TCP-20")
def stalled_hellos_keep_nobody_out(bench: Bench) -> None:
    sockets = [plain_socket(bench) for _ in range(300)]
    time.sleep(1)
    bench.client().null()
    for sock in sockets:
        sock.close()


@tests("TCP-20")
def half_a_hello_delays_nobody(bench: Bench) -> None:
    sock = plain_socket(bench)
    sock.sendall(Hello().encode()[:31])
    begun = time.monotonic()
    bench.client().null()
    expect(time.monotonic() - begun < 4, "a session in less than 4 s", time.monotonic() - begun)
    sock.close()


@tests("TCP-3", "TCP-4", "TCP-14")
def frames_of_the_server_fit_the_tables(bench: Bench) -> None:
    client, file = bench.file(os.urandom(300_000))
    file.read(0, 300_000)
    file.write(0, os.urandom(300_000), wire.FILE_SYNC, DIRECT)
    for size in (10, 5000):
        extents = [Extent(index * 9000, size) for index in range(20)]
        region = client.session.regions.register(bytearray(40 * size), True, True)
        ranges = [region.range(index * 2 * size, size) for index in range(20)]
        for slot, name in enumerate(("ReadList", "WriteList"), 11):
            body = dict(length=20 * size, extents=20, ranges=20, method=DIRECT)
            lists = wire.Record(extents=extents, ranges=ranges, data=b"")
            request = make(name, slot=slot, sequence=1 if size == 10 else 2, handle=file.handle, payload=lists, **body)
            same(name_of(ask(client, request)), "OK", name)


@tests("TCP-22", "TCP-5", "TCP-38", "TCP-33")
def malformed_frames_end_the_connection_with_a_fault(bench: Bench) -> None:
    for name, data in named_bytes(bench.spec / "vectors" / "tcp.txt"):
        if not name.startswith("refused ") or "hello" in name or name.startswith("refused read response"):
            continue
        client = bench.client()
        client.session.connection.send_raw(data)
        _expect_fault(client, tcp.FAULT_MALFORMED, name)
    bench.others_are_served()


def _expect_fault(client: Client, code: int, what: str) -> Frame:
    """Expect a FAULT and the end of the connection."""
    connection = client.session.connection
    end = read_to_end(connection)
    expect(end.ended, f"the end of the connection for {what}", end)
    expect(connection.fault is not None, f"a FAULT for {what}", end)
    same(connection.fault.value, code, f"the code of the FAULT for {what}:")
    client.session.connection.close()
    return connection.fault


@tests("TCP-5")
def payloads_beyond_the_own_hello_are_malformed(bench: Bench) -> None:
    client = bench.client()
    size = client.session.connection.peer.recv_payload_max + 1
    client.session.connection.send_raw(Frame(tcp.SEND, head_len=40, len=size).encode())
    fault = _expect_fault(client, tcp.FAULT_MALFORMED, "a payload that is too large")
    same((fault.key, fault.offset), (size, size - 1), "the value found, and the limit:")


@tests("TCP-30")
def responses_to_no_read_are_malformed(bench: Bench) -> None:
    client = bench.client()
    client.session.connection.send_raw(Frame(tcp.READ_RESPONSE, len=4, value=77).encode() + b"none")
    _expect_fault(client, tcp.FAULT_MALFORMED, "a response to no read")
    for offset, length in ((1, 4), (0, 0), (0, 100_001)):
        client, read_id = _read_in_flight(bench)
        data = Frame(tcp.READ_RESPONSE, len=length, offset=offset, value=read_id).encode() + bytes(length)
        client.session.connection.send_raw(data)
        _expect_fault(client, tcp.FAULT_MALFORMED, f"a response of {length} bytes at {offset}")
    bench.others_are_served()


def _read_in_flight(bench: Bench) -> Tuple[Client, int]:
    """Have the server read the client's memory, and hold the answer back."""
    client, file = bench.file()
    region = client.session.regions.register(bytearray(100_000), remote_read=True)
    connection = client.session.connection
    connection.holding = True
    send(client, make("Write", handle=file.handle, length=100_000, method=DIRECT, ranges=1, key=region.key,
                      range_length=100_000))
    read_to_end(connection, 0.3)
    if not connection.held:
        raise Skipped("the server read no memory for a direct write")
    return client, connection.held[0][0]


@tests("TCP-8")
def frames_before_the_end_are_executed(bench: Bench) -> None:
    client, file = bench.file()
    send(client, make("Write", handle=file.handle, length=5, payload=b"whole"))
    client.session.connection.send_raw(Frame(tcp.SEND, head_len=80).encode() + b"cut")
    client.session.connection.sock.shutdown(socket.SHUT_WR)
    read_to_end(client.session.connection, 2)
    node = bench.dir()[1]
    same(node.open(f"file-{bench.files}").read(0, 9), b"whole", "what was written by the whole frame:")


@tests("TCP-39")
def fault_from_the_client_ends_the_connection(bench: Bench) -> None:
    for code in (1, 3, 99):
        client = bench.client()
        client.session.connection.send_raw(Frame(tcp.FAULT, key=5, value=code).encode())
        end = read_to_end(client.session.connection)
        expect(end.ended, f"the end of the connection for a FAULT {code}", end)
    bench.others_are_served()


@tests("TCP-1")
def payloads_fit_the_client(bench: Bench) -> None:
    client, node = bench.dir(hello=Hello(recv_payload_max=8256))
    for index in range(400):
        node.symlink("t", f"{index:03}-" + "n" * 200)
    same(len(list(node.readdir(attributes=True, length=1 << 20))), 400, "entries:")
    file = new_file(node, "file", bytes(20_000))
    reply = ask(client, make("Read", handle=file.handle, length=8256))
    same(len(reply.payload), 8256, "an inline read:")


@tests("TCP-15")
def reads_in_flight_are_bounded(bench: Bench) -> None:
    client, file = bench.file(hello=Hello(rdma_depth=2))
    connection = client.session.connection
    region = client.session.regions.register(bytearray(8 << 20), remote_read=True)
    connection.holding = True
    for slot in range(4):
        send(client, make("Write", slot=11 + slot, handle=file.handle, offset=slot << 21, length=2 << 20,
                          method=DIRECT, ranges=1, key=region.key, range_offset=slot << 21, range_length=2 << 20))
    read_to_end(connection, 0.7)
    expect(len(connection.held) <= 2, "at most 2 reads in flight", len(connection.held))


@tests("TCP-11", "TCP-23", "TCP-38", "ACC-80")
def memory_of_the_server_is_out_of_reach(bench: Bench) -> None:
    lists = struct.pack("<QQQ", 5, 0, 8)
    for what, data in (
            ("WRITE", Frame(tcp.WRITE, len=8, key=5).encode() + bytes(8)),
            ("WRITE of 0 bytes", Frame(tcp.WRITE, key=5).encode()),
            ("READ_REQUEST", Frame(tcp.READ_REQUEST, len=8, key=5).encode()),
            ("READ_REQUEST of 0 bytes", Frame(tcp.READ_REQUEST, key=2**64 - 1).encode()),
            ("key 0", Frame(tcp.READ_REQUEST, len=8).encode()),
            ("WRITE_LIST", Frame(tcp.WRITE_LIST, head_len=1, len=8).encode() + lists + bytes(8)),
            ("READ_LIST", Frame(tcp.READ_LIST, head_len=1, len=8).encode() + lists)):
        client = bench.client()
        client.session.connection.send_raw(data)
        _expect_fault(client, tcp.FAULT_NO_REGION, what)
        before = bench.raw()
        before.send_raw(data)
        end = read_to_end(before)
        expect(end.ended, f"the end of a connection without a session for {what}", end)
    bench.others_are_served()


class ReadingConnection(WatchedConnection):
    """A connection that reads the server's memory."""

    def _handle(self, deadline: float) -> Any:
        """Keep READ_RESPONSE frames; the rest is as ever."""
        self._wait_for(tcp.FRAME_SIZE, deadline)
        if self._received[0] != tcp.READ_RESPONSE:
            return super()._handle(deadline)
        frame = Frame.decode(bytes(self._received[:tcp.FRAME_SIZE]))
        body = self._take(tcp.FRAME_SIZE + frame.len, deadline)[tcp.FRAME_SIZE:]
        self.responses.append((frame.value, frame.offset, body))
        return None


def reading_client(bench: Bench, size: int = 1_044_480) -> Tuple[Client, Range, int]:
    """Connect and get an eager buffer that may be read."""
    client = bench.client(connection_type=ReadingConnection)
    lent = Lent(client, 1, size, reads=1)
    return client, lent.ranges[0], lent.reply.body.size + 4096


def responses(client: Client, timeout: float = 2.0) -> List[Tuple[int, int, bytes]]:
    """Receive responses until nothing comes."""
    end = read_to_end(client.session.connection, timeout)
    expect(not end.ended, "responses", end)
    return client.session.connection.responses


@tests("TCP-9", "TCP-29", "TCP-28")
def reads_of_eager_buffers_are_answered_in_order(bench: Bench) -> None:
    client, item, size = reading_client(bench)
    connection, data = client.session.connection, os.urandom(size)
    connection.send_raw(Frame(tcp.WRITE, len=size, key=item.key, offset=item.offset).encode() + data)
    connection.send_raw(Frame(tcp.READ_REQUEST, len=size, key=item.key, offset=item.offset, value=9).encode())
    came = responses(client)
    same({read_id for read_id, _, _ in came}, {9}, "the read id:")
    same(b"".join(body for _, _, body in came), data, "the data:")
    at = 0
    for _, offset, body in came:
        same(offset, at, "an offset without a gap:")
        expect(0 < len(body) <= 262_144, "1 to 262,144 bytes in a response", len(body))
        at += len(body)
    connection.responses.clear()
    connection.send_raw(Frame(tcp.READ_REQUEST, key=item.key, offset=item.offset, value=10).encode())
    same(responses(client), [(10, 0, b"")], "the answer to a read of 0 bytes:")


@tests("TCP-35", "TCP-36", "TCP-14")
def lists_into_and_out_of_eager_buffers(bench: Bench) -> None:
    client, item, _ = reading_client(bench, 65_536)
    connection = client.session.connection
    ranges = wire.encode_ranges([Range(item.key, item.offset + at, size) for at, size in ((500, 3), (7, 2), (90, 4))])
    connection.send_raw(Frame(tcp.WRITE_LIST, head_len=3, len=9).encode() + ranges + b"aaabbcccc")
    connection.send_raw(Frame(tcp.READ_REQUEST, len=503, key=item.key, offset=item.offset, value=1).encode())
    memory = b"".join(body for _, _, body in responses(client))
    same((memory[7:9], memory[90:94], memory[500:503]), (b"bb", b"cccc", b"aaa"), "the buffer:")
    connection.responses.clear()
    connection.send_raw(Frame(tcp.READ_LIST, head_len=3, len=9, value=2).encode() + ranges)
    came = responses(client)
    same(b"".join(body for _, _, body in came), b"aaabbcccc", "the list that is read:")
    same(came[0][1], 0, "its first offset:")


@tests("TCP-34")
def lists_with_a_wrong_range_place_nothing(bench: Bench) -> None:
    client, item, _ = reading_client(bench, 65_536)
    _, file = bench.file()
    ranges = wire.encode_ranges([Range(item.key, item.offset, 4), Range(item.key ^ 1, 0, 4)])
    client.session.connection.send_raw(Frame(tcp.WRITE_LIST, head_len=2, len=8).encode() + ranges + b"spoilt!!")
    fault = _expect_fault(client, tcp.FAULT_NO_REGION, "a list with a wrong range")
    same(fault.key, item.key ^ 1, "the key in the FAULT:")
    file.write(0, b"x")


@tests("TCP-33")
def lists_that_do_not_add_up_are_malformed(bench: Bench) -> None:
    for kind in (tcp.WRITE_LIST, tcp.READ_LIST):
        for sizes in ((4, 5), (8, 0), (2**64 - 4, 12)):
            client, item, _ = reading_client(bench, 65_536)
            ranges = wire.encode_ranges([Range(item.key, item.offset, size) for size in sizes])
            data = bytes(8) if kind == tcp.WRITE_LIST else b""
            client.session.connection.send_raw(Frame(kind, head_len=2, len=8).encode() + ranges + data)
            _expect_fault(client, tcp.FAULT_MALFORMED, f"kind {kind} of {sizes} for 8 bytes")


@tests("TCP-31", "TCP-37")
def reads_beyond_the_depth_are_malformed(bench: Bench) -> None:
    for what, one, count in (("READ_REQUEST", 1, None), ("READ_LIST", 2, 64)):
        client, item, size = reading_client(bench)
        connection = client.session.connection
        ranges = wire.encode_ranges([Range(item.key, item.offset, size // 2)] * 2)
        frame = (Frame(tcp.READ_REQUEST, len=size, key=item.key, offset=item.offset).encode() if one == 1
                 else Frame(tcp.READ_LIST, head_len=2, len=size // 2 * 2).encode() + ranges)
        count = count or connection.peer.rdma_depth + 200
        _send_unread(connection, frame * count)
        _expect_unread_fault(connection, what, count)
    bench.others_are_served()


def _send_unread(connection: TcpConnection, data: bytes) -> None:
    """Send without receiving anything, so that reads are not answered whole."""
    connection.sock.setblocking(True)
    connection.sock.settimeout(5)
    try:
        connection.sock.sendall(data)
    except OSError:
        pass
    time.sleep(0.5)
    connection.sock.setblocking(False)


def _expect_unread_fault(connection: TcpConnection, what: str, count: int) -> None:
    """Expect the end of the connection before all reads were answered."""
    end = read_to_end(connection, 10)
    expect(end.ended, f"the end of the connection for {count} of {what}", f"{len(connection.responses)} responses")
