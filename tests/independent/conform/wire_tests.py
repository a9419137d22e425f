"""The pages of the wire: headers, bodies, payloads, refused messages, eager buffers."""
from __future__ import annotations

import random
from types import SimpleNamespace as Record
from typing import Callable, Iterator, List, Tuple

from dafs import tcp, wire
from dafs.client import Client, File, Node
from dafs.tcp import AccessRefused, ConnectionEnded, Frame, Immediate
from dafs.wire import DIRECT, EAGER, INLINE, Extent, Message, Range
from vectors import RefusedVector, golden_messages, refused_messages

from .bench import (Bench, Failed, Skipped, ask, expect, expect_end, expect_gone, fails, make, name_of, new_file,
                    read_to_end, receive_reply, same, send, status_of, tests)


@tests("WIRE-1", "WIRE-23", "WIRE-31", "WIRE-37")
def replies_are_encoded_as_the_tables_say(bench: Bench) -> None:
    client, node = bench.dir()
    file = new_file(node, "file", b"data")
    for name, reply in _all_replies(client, node, file):
        delivered = client.session.last_delivered
        expect(reply.header.status == 0, f"{name} to succeed", reply.payload)
        same(wire.encode(reply), delivered, f"the bytes of the reply to {name}")


def _all_replies(client: Client, node: Node, file: File) -> Iterator[Tuple[str, Message]]:
    """Make a request of nearly every operation, keeping the bytes of each reply."""
    empty = Record(path=b"", name=b"", value=b"")
    requests = [
        make("Null"), make("Limits"), make("Statistics"), make("Exports"),
        make("Getattr", handle=node.handle, payload=b"file"), make("Lookup", handle=node.handle, payload=b"file"),
        make("Read", handle=file.handle, offset=0, length=10),
        make("Write", handle=file.handle, offset=0, length=2, payload=b"ab"),
        make("Append", handle=file.handle, length=2, payload=b"ab"),
        make("Commit", handle=file.handle, stability=1), make("Seek", handle=file.handle, what=1),
        make("Hint", handle=file.handle, pattern=1), make("Truncate", handle=file.handle, offset=3),
        make("Readdir", handle=node.handle, length=4096, attributes=1), make("Mkdir", handle=node.handle, payload=b"d"),
        make("Symlink", handle=node.handle, payload=(b"t", b"s")), make("Readlink", handle=node.handle, payload=b"s"),
        make("XattrList", handle=node.handle, payload=empty), make("Statfs", handle=node.handle),
        make("Share", handle=file.handle, rights=1), make("Close", handle=file.handle)]
    for sequence, request in enumerate(requests, 1):
        request.header.sequence = sequence
        send(client, request)
        delivered = client.session.connection.receive(5)
        client.session.last_delivered = tuple(delivered)
        yield request.name, wire.decode(*delivered)


@tests("WIRE-30")
def payloads_of_two_paths_are_received(bench: Bench) -> None:
    size = bench.keeper.session.connection.peer.recv_payload_max
    expect(size >= 8256, "a recv_payload_max of 8,256 at least", size)


# Refused vectors, sent to the server.

_IDS_BY_OUTCOME = {
    "ends too early": ("WIRE-2",), "bytes left over": ("WIRE-25",), "beyond a limit": ("WIRE-26",),
    "value not allowed": (), "not the structure": ("WIRE-34",), "INVALID": ("WIRE-138",), "NAME_TOO_LONG": ("WIRE-142",),
}
_IDS_BY_WORDS = {
    "reserved byte": ("WIRE-24",), "head_len": ("WIRE-3",), "payload_len": ("WIRE-3",),
    "an opcode that is none": ("WIRE-4",), "Null request: a flag": ("WIRE-4",), "with a status": ("WIRE-133",),
    "the flag CALLBACK": ("WIRE-33",), "without the flag": ("WIRE-33",), "no credits": ("WIRE-132",),
    "a nonce of": ("WIRE-44",), "a client id": ("WIRE-44",), "version_max": ("WIRE-44",), "negative": ("WIRE-44",),
    "as binary": ("WIRE-54",), "in place of": ("WIRE-54",), "by its number": ("WIRE-54",), "nil": ("WIRE-54",),
    "without a time": ("WIRE-54",), "floating-point": ("WIRE-54",), "the proof alone": ("WIRE-54",),
    "a proof as": ("WIRE-54",), "OpenToken": ("WIRE-12",), "3 bytes of data": ("WIRE-7",),
}
_IDS_BY_OPERATION = {"Batch": ("WIRE-11", "BATCH-2"), "ReadList": ("LIST-7",), "WriteList": ("LIST-7",)}


def vector_ids(vector: RefusedVector) -> Tuple[str, ...]:
    """Find the requirements that a vector is an example of."""
    kind, reason = vector.outcome.split(": ")
    ids = _IDS_BY_OUTCOME[reason] + (("WIRE-137",) if kind == "refused" else ())
    operation = vector.title.split()[0]
    if kind == "answered" and operation == "ViewSet":
        ids += ("VIEW-7",) if "a part of no" in vector.title or "that reaches" in vector.title else ("VIEW-4",)
    elif kind == "answered":
        ids += _IDS_BY_OPERATION.get(operation, ())
    for words, more in _IDS_BY_WORDS.items():
        ids += more if words in vector.title else ()
    return ids


def vector_test(vector: RefusedVector) -> Callable[[Bench], None]:
    """Make the test that sends a vector."""
    handshake = vector.title.startswith(("Hello", "Authenticate"))

    def run(bench: Bench) -> None:
        """Send the vector, and see that others are served."""
        (_send_to_handshake if handshake else _send_to_session)(bench, vector)
        bench.others_are_served()
    run.__name__ = vector.title.replace(" ", "_")
    return run


def register_vectors(bench: Bench) -> None:
    """Make a test of each refused request; replies and callbacks are the client's to refuse."""
    for vector in refused_messages(bench.spec):
        if vector.kind == "request":
            tests(*vector_ids(vector))(vector_test(vector))


def _send_to_handshake(bench: Bench, vector: RefusedVector) -> None:
    """Send a vector as the first message, or behind a good `Hello`."""
    connection = bench.raw()
    if vector.title.startswith("Authenticate"):
        session = bench.keeper.session
        hello = session._make_hello(bytes(32), None)
        connection.send(*wire.encode(Message(wire.new_header("Hello"), Record(), hello)))
        receive_reply(connection)
    connection.send(vector.head, vector.payload)
    expect_end(connection, vector.title)


def _send_to_session(bench: Bench, vector: RefusedVector) -> None:
    """Send a vector in an unused slot, on a handle that fits."""
    client, file = bench.file(b"data")
    connection = client.session.connection
    connection.send(_placed(vector.head, file.handle), vector.payload)
    if vector.outcome.startswith("answered"):
        same(name_of(receive_reply(connection)), vector.outcome.split(": ")[1], "the reply")
        client.null()
        return
    try:
        end = expect_end(connection, vector.title)
    except AccessRefused as error:
        raise Failed(f"the end of the connection for {vector.title}", "RDMA, as if nothing were wrong") from error
    if connection.fault is None:
        expect(end.notice is not None, "a Notice (2) before the end", end)
        expect_gone(client)


def _placed(head: bytes, handle: int, sequence: int = 1) -> bytes:
    """Put slot 1, a sequence number, and a handle into a head."""
    place = (1).to_bytes(4, "little") + sequence.to_bytes(4, "little")
    return head[:4] + place + head[12:24] + handle.to_bytes(8, "little") + head[32:]


# Single rules.

@tests("WIRE-3")
def head_len_that_the_frame_contradicts_is_refused(bench: Bench) -> None:
    client = bench.client()
    head, _ = wire.encode(make("Null"))
    client.session.connection.send_raw(Frame(tcp.SEND, head_len=40, len=3).encode() + head + b"abc")
    expect_end(client.session.connection, "a payload that the header does not have")
    bench.others_are_served()


@tests("WIRE-4")
def opcodes_that_are_none_are_refused(bench: Bench) -> None:
    for opcode in (0x0009, 0x000F, 0x0019, 0x002D, 0x003A, 0x0045, 0x0052, 0x7FFF):
        client = bench.client()
        head, _ = wire.encode(make("Null"))
        client.session.connection.send(opcode.to_bytes(2, "little") + head[2:])
        expect_end(client.session.connection, f"opcode {opcode:#x}")
    bench.others_are_served()


@tests("WIRE-25")
def bytes_behind_the_last_field_are_refused(bench: Bench) -> None:
    for name, body in (("Null", {}), ("Close", {}), ("Read", dict(length=4)), ("Commit", dict(stability=1)),
                       ("Seek", {}), ("Hint", {}), ("Readdir", dict(length=4096)), ("Share", dict(rights=1)),
                       ("Truncate", dict(offset=4)), ("Limits", {}), ("Bye", {})):
        client, file = bench.file(b"data")
        handle = file.handle if body or name in ("Seek", "Hint", "Close") else 0
        head, _ = wire.encode(make(name, handle=handle, **body))
        client.session.connection.send(head[:16] + (1).to_bytes(4, "little") + head[20:], b"x")
        expect_end(client.session.connection, f"{name} with a payload of 1 byte")
        client, file = bench.file(b"data")
        head, _ = wire.encode(make(name, handle=handle and file.handle, **body))
        client.session.connection.send(head[:14] + (len(head) + 1).to_bytes(2, "little") + head[16:] + b"\0")
        expect_end(client.session.connection, f"{name} with a body of 1 byte more")


@tests("WIRE-33", "WIRE-51")
def messages_that_run_the_wrong_way_are_refused(bench: Bench) -> None:
    for name, flags in (("CreditTarget", wire.CALLBACK | wire.REPLY), ("CreditTarget", wire.CALLBACK),
                        ("Null", wire.REPLY)):
        client = bench.client()
        send(client, make(name, flags=flags))
        expect_end(client.session.connection, f"{name} with the flags {flags:#x}")


@tests("WIRE-50")
def eager_writes_that_are_no_frames_are_refused(bench: Bench) -> None:
    client, file = bench.file(b"data")
    head, _ = wire.encode(make("Write", handle=file.handle, length=4, method=EAGER))
    client.session.connection.send(head[:16] + (4).to_bytes(4, "little") + head[20:], b"data")
    expect_end(client.session.connection, "an eager write as a message")


@tests("WIRE-138")
def ranges_beyond_256_and_beside_inline_are_invalid(bench: Bench) -> None:
    for method, count in ((DIRECT, 0), (DIRECT, 257), (INLINE, 1), (EAGER, 1)):
        client, file = bench.file(b"data")
        payload = [Range(1, 0, 1)] * count if count > 1 else b""
        head, data = wire.encode(make("Read", handle=file.handle, length=count, method=method, ranges=count,
                                      payload=payload))
        client.session.connection.send(head, data)
        same(name_of(receive_reply(client.session.connection)), "INVALID", f"method {method} with {count} ranges:")
    bench.others_are_served()


@tests("WIRE-7")
def inline_write_of_another_length_is_refused(bench: Bench) -> None:
    for length in (0, 3, 5, 2**32 - 1):
        client, file = bench.file()
        send(client, make("Write", handle=file.handle, length=length, payload=b"four"))
        expect_end(client.session.connection, f"length {length} with 4 bytes")
    bench.others_are_served()


@tests("WIRE-40")
def ranges_that_do_not_add_up_are_invalid(bench: Bench) -> None:
    client, file = bench.file(b"data")
    for slot, name in enumerate(("Read", "Write", "Append"), 1):
        for sequence, (length, sizes) in enumerate(((5, [4]), (5, [2, 2]), (3, [2**64 - 1, 4])), 1):
            ranges = [Range(7, 0, size) for size in sizes]
            body = dict(key=7, range_length=sizes[0]) if len(sizes) == 1 else {}
            payload = ranges if len(sizes) > 1 else b""
            reply = ask(client, make(name, slot=slot, sequence=sequence, handle=file.handle, length=length,
                                     method=DIRECT, ranges=len(sizes), payload=payload, **body))
            same(name_of(reply), "INVALID", f"{name} of {length} into {sizes}:")


@tests("WIRE-29")
def hints_of_unknown_patterns_are_answered_alike(bench: Bench) -> None:
    _, file = bench.file(b"data")
    for pattern in (0, 1, 2, 3, 4, 5, 77, 2**32 - 1):
        same(status_of(file.hint, 0, 0, pattern), "OK", f"pattern {pattern}:")


@tests("WIRE-5")
def long_paths_are_too_long(bench: Bench) -> None:
    _, node = bench.dir()
    same(status_of(node.getattr, b"x" * 255), "NOT_FOUND", "a part of 255 bytes:")
    fails("NAME_TOO_LONG", node.getattr, b"x" * 256)
    same(status_of(node.getattr, b"./" * 2047), "OK", "a path of 4,094 bytes:")
    fails("NAME_TOO_LONG", node.getattr, b"./" * 2048)
    fails("NAME_TOO_LONG", node.mkdir, b"y" * 256)


@tests("WIRE-41")
def paths_with_a_zero_byte_are_invalid(bench: Bench) -> None:
    _, node = bench.dir()
    fails("INVALID", node.getattr, b"a\0b")
    fails("INVALID", node.open, b"a\0", wire.READ | wire.CREATE | wire.WRITE)
    fails("INVALID", node.rename, b"a", b"b\0")


@tests("WIRE-9")
def gather_is_sent_with_lists_only(bench: Bench) -> None:
    client = bench.client(features=wire.FEATURES_ALL & ~wire.LISTS)
    same(client.session.welcome.gather, None, "the field gather without the feature LISTS:")


@tests("WIRE-13", "WIRE-28")
def callbacks_to_the_server_do_no_harm(bench: Bench) -> None:
    client = bench.client()
    send(client, make("CreditTarget", flags=wire.CALLBACK))
    read_to_end(client.session.connection, 0.5)
    bench.others_are_served()


@tests("WIRE-14", "ACC-36")
def nothing_changes_in_a_read_only_export(bench: Bench) -> None:
    client = bench.client()
    root = bench.read_only_root(client)
    ranged = dict(offset=0, length=1)
    calls = {
        "Setattr": (Record(path=b"", attributes=Record(mode=0o777, uid=None, gid=None, atime=None, mtime=None)), {}),
        "Mkdir": (b"x", {}), "Remove": (b"x", {}), "Rename": ((b"x", b"y"), dict(second_handle=root.handle)),
        "Link": ((b"x", b"y"), dict(second_handle=root.handle)), "Symlink": ((b"x", b"y"), {}),
        "XattrWrite": (Record(path=b"", name=b"user.a", value=b""), {}),
        "XattrRemove": (Record(path=b"", name=b"user.a", value=b""), {}), "Truncate": (b"", {}),
        "Allocate": (b"", ranged), "Punch": (b"", ranged), "Write": (b"x", ranged), "Append": (b"x", dict(length=1)),
        "WriteList": (Record(extents=[Extent(0, 1)], ranges=[], data=b"x"), dict(length=1, extents=1))}
    for name, (payload, body) in calls.items():
        same(status_of(client.session.call, name, root.handle, payload, **body), "READ_ONLY", name)
    for flags in (wire.WRITE, wire.READ | wire.WRITE, wire.READ | wire.CREATE):
        came = status_of(root.open, "dafs-conform-none", flags)
        expect(came == "READ_ONLY", f"READ_ONLY for an open with flags {flags:#x}", came)


@tests("WIRE-15", "WIRE-18", "SESS-11", "SESS-14", "SESS-86")
def replies_of_cached_opcodes_are_kept(bench: Bench) -> None:
    client, node = bench.dir()
    file = new_file(node, "file", b"0123456789")
    attributes = Record(mode=0o640, uid=None, gid=None, atime=None, mtime=None)
    slot = dict(slot=3)
    requests = [
        make("Mount", payload=bench.place.export.encode(), **slot),
        make("Lookup", handle=node.handle, payload=b"file", **slot),
        make("Open", handle=node.handle, payload=b"new", **slot),
        make("Setattr", handle=node.handle, payload=Record(path=b"file", attributes=attributes), **slot),
        make("Share", handle=file.handle, rights=1, **slot),
        make("Append", handle=file.handle, payload=b"abc", length=3, **slot),
        make("Truncate", handle=file.handle, **slot), make("Mkdir", handle=node.handle, payload=b"d", **slot),
        make("Remove", handle=node.handle, payload=b"d", directory=1, **slot),
        make("Symlink", handle=node.handle, payload=(b"t", b"s"), **slot),
        make("Link", handle=node.handle, payload=(b"file", b"l"), second_handle=node.handle, **slot),
        make("Rename", handle=node.handle, payload=(b"l", b"m"), second_handle=node.handle, **slot),
        make("XattrWrite", handle=node.handle, payload=Record(path=b"file", name=b"user.a", value=b"v"), mode=1,
             **slot),
        make("XattrRemove", handle=node.handle, payload=Record(path=b"file", name=b"user.a", value=b""), **slot),
        make("Close", handle=file.handle, **slot)]
    requests[2].body = Record(flags=wire.READ | wire.WRITE | wire.CREATE | wire.EXCLUSIVE, mode=0o644)
    for sequence, request in enumerate(requests, 1):
        request.header.sequence = sequence
        first, again = ask(client, request), ask(client, request)
        same(name_of(first), "OK", request.name)
        same((name_of(again), again.header.handle, again.body, again.payload),
             (name_of(first), first.header.handle, first.body, first.payload), f"the kept reply of {request.name}:")
    same(status_of(node.getattr, "m"), "OK", "what was renamed once:")


# Eager buffers.

class Lent:
    """Eager buffers of both sides."""

    def __init__(self, client: Client, count: int = 2, size: int = 65_536, reads: int = 0, slot: int = 9):
        self.client = client
        self.regions = [client.session.regions.register(bytearray(size + 4096), True, True) for _ in range(count)]
        self.reply = ask(client, make("EagerBuffers", slot=slot, count=count, size=size, reads=reads,
                                      payload=[region.range() for region in self.regions]))
        same(name_of(self.reply), "OK", "EagerBuffers")
        if not self.reply.body.count:
            raise Skipped("the server lends no eager buffers")
        self.ranges: List[Range] = self.reply.payload

    def write(self, data: bytes, offset: int = 0, key: int = 0) -> None:
        """Write into the first buffer of the server."""
        item = self.ranges[0]
        frame = Frame(tcp.WRITE, len=len(data), key=key or item.key, offset=item.offset + offset)
        self.client.session.connection.send_raw(frame.encode() + data)


@tests("WIRE-45")
def eager_buffers_are_no_more_than_asked_for(bench: Bench) -> None:
    for count, size in ((1, 4096), (2, 65_536), (0, 0)):
        client = bench.client()
        regions = [client.session.regions.register(bytearray(size + 4096), True, True) for _ in range(count)]
        reply = ask(client, make("EagerBuffers", count=count, size=size,
                                 payload=[region.range() for region in regions]))
        same(name_of(reply), "OK", "EagerBuffers")
        expect(reply.body.count <= count and reply.body.size <= size, f"at most {count} of {size}", reply.body)
        for item in reply.payload:
            same(item.length, reply.body.size + 4096, "the length of a range:")


@tests("WIRE-46")
def eager_ranges_of_a_wrong_length_are_invalid(bench: Bench) -> None:
    client = bench.client()
    region = client.session.regions.register(bytearray(100_000), True, True)
    for sequence, length in enumerate((0, 4096, 65_536, 65_536 + 4095, 65_536 + 4097), 1):
        reply = ask(client, make("EagerBuffers", sequence=sequence, count=1, size=65_536,
                                 payload=[region.range(0, length)]))
        same(name_of(reply), "INVALID", f"a range of {length} for a size of 65,536:")


@tests("WIRE-47", "SESS-57", "SESS-63")
def eager_buffers_that_are_none_are_out_of_reach(bench: Bench) -> None:
    client, file = bench.file(b"data")
    lent = Lent(client, 1, 4096)
    size = lent.reply.body.size
    for slot, (key, length) in enumerate(((99, 4), (0, size + 1), (2**64 - 1, 4)), 1):
        for sequence, name in enumerate(("Read", "Write"), 1):
            reply = ask(client, make(name, slot=slot, sequence=sequence, handle=file.handle, length=length,
                                     method=wire.CLIENT_INITIATED, key=key))
            same(name_of(reply), "REMOTE_ACCESS", f"{name} of {length} by buffer {key}:")
    again = ask(client, make("Write", slot=1, sequence=2, handle=file.handle, length=4, payload=b"DATA"))
    same(name_of(again), "OK", "the same write inline, since REMOTE_ACCESS is not kept:")


@tests("WIRE-21")
def frames_of_reads_end_where_the_data_begins(bench: Bench) -> None:
    client, file = bench.file(b"0123456789")
    lent = Lent(client)
    place = len(lent.ranges) - 1
    send(client, make("Read", handle=file.handle, length=20, method=EAGER, key=place))
    came = client.session.connection.receive(5)
    expect(isinstance(came, Immediate), "a write with immediate", came)
    same(came, Immediate(place, 48 + 10), "the immediate:")
    memory = lent.regions[place].memory
    reply = wire.decode(bytes(memory[4048:4096]), bytes(memory[4096:4106]))
    same((reply.header.slot, reply.body.count, reply.payload), (11, 10, b"0123456789"), "the frame:")


@tests("WIRE-21", "WIRE-22", "SESS-103")
def eager_writes_arrive(bench: Bench) -> None:
    client, file = bench.file()
    lent = Lent(client)
    head, data = wire.encode(make("Write", handle=file.handle, length=5, method=EAGER, payload=b""))
    head = head[:16] + (5).to_bytes(4, "little") + head[20:]
    item = lent.ranges[0]
    frame = Frame(tcp.WRITE, tcp.IMMEDIATE, len=85, key=item.key, offset=item.offset + 4016, value=0)
    client.session.connection.send_raw(frame.encode() + head + b"eager")
    same(name_of(receive_reply(client.session.connection)), "OK", "the eager write:")
    same(file.read(0, 10), b"eager", "the data:")


@tests("WIRE-22")
def frames_that_are_none_are_refused(bench: Bench) -> None:
    def immediate(lent: Lent, value: int, offset: int, data: bytes) -> None:
        """Write with an immediate."""
        item = lent.ranges[0]
        frame = Frame(tcp.WRITE, tcp.IMMEDIATE, len=len(data), key=item.key, offset=item.offset + offset, value=value)
        lent.client.session.connection.send_raw(frame.encode() + data)
    for what, value, offset, data in (
            ("an immediate of no buffer", 9, 4016, bytes(85)), ("an empty frame", 0, 4016, b""),
            ("zeros for a frame", 0, 4016, bytes(85)), ("a frame that is too short", 0, 4016, bytes(10))):
        client = bench.client()
        immediate(Lent(client), value, offset, data)
        expect_end(client.session.connection, what)
    bench.others_are_served()


@tests("WIRE-46")
def client_initiated_transfers(bench: Bench) -> None:
    client, file = bench.file(b"0123456789")
    lent = Lent(client, reads=1)
    lent.write(b"by client", 4096)
    reply = ask(client, make("Write", handle=file.handle, offset=1, length=9, method=wire.CLIENT_INITIATED))
    same(name_of(reply), "OK", "the client-initiated write:")
    same(file.read(0, 20), b"0by client", "the data:")


@tests("WIRE-2", "WIRE-26", "ERR-1")
def mutated_messages_are_answered_or_end_the_connection(bench: Bench) -> None:
    chance = random.Random(1)
    client, node = bench.dir()
    sequence = 0
    for name, head, payload in list(golden_messages(bench.spec)) * 4:
        opcode = int.from_bytes(head[:2], "little")
        if head[2] & wire.REPLY or opcode >= wire.CALLBACK_BIT or opcode in _NOT_MUTATED:
            continue
        sequence += 1
        mutated = _mutate(chance, _placed(head, node.handle, sequence), payload)
        if not _survives(client, mutated, name):
            client, node = bench.dir()
            sequence = 0
    bench.others_are_served()


_NOT_MUTATED = {wire.OPCODES[name] for name in ("Publish", "FenceWrite", "Hello", "Authenticate")}


def _mutate(chance: random.Random, head: bytes, payload: bytes) -> Tuple[bytes, bytes]:
    """Change bytes behind the header, or the length of the payload."""
    data = bytearray(head[wire.HEADER_SIZE:] + payload)
    for _ in range(chance.randrange(1, 4)):
        if data:
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    cut = len(head) - wire.HEADER_SIZE
    body, payload = bytes(data[:cut]), bytes(data[cut:])
    if chance.random() < 0.3:
        payload = payload[:-1] if chance.random() < 0.5 else payload + b"\0"
    return head[:16] + len(payload).to_bytes(4, "little") + head[20:wire.HEADER_SIZE] + body, payload


def _survives(client: Client, mutated: Tuple[bytes, bytes], name: str) -> bool:
    """Send a mutated message; tell whether the connection lives, and fail where nothing comes."""
    connection = client.session.connection
    connection.send(*mutated)
    try:
        receive_reply(connection, 3)
    except TimeoutError as error:
        raise Failed(f"a reply or the end of the connection for a mutated {name}", mutated[0].hex()) from error
    except (ConnectionEnded, AccessRefused):
        return False
    return True
