"""session.md: handshake, slots, credits, chains, callbacks, eager buffers, tokens, reconnecting."""
from __future__ import annotations

import socket
import time
from types import SimpleNamespace as Record
from typing import Any, List, Tuple

from dafs import tcp, wire
from dafs.client import BatchOperation, Client, File
from dafs.session import Identity, Key, Request, StatusError
from dafs.tcp import ConnectionEnded, Frame, TcpConnection
from dafs.wire import CHAIN_BACK, CHAIN_FORWARD, CHAIN_HANDLE, DIRECT, SAVE_HANDLE, Extent, Message

from .bench import (Bench, Skipped, ask, expect, expect_end, expect_gone, fails, make, name_of, new_file,
                    read_to_end, receive, receive_reply, same, send, status_of, tests)
from .wire_tests import Lent


def hello(bench: Bench, **fields: Any) -> Record:
    """Make a `Hello` with some fields as wanted."""
    made = bench.keeper.session._make_hello(bytes(32), None)
    vars(made).update(fields)
    return made


def send_hello(bench: Bench, **fields: Any) -> TcpConnection:
    """Connect and send a `Hello`."""
    connection = bench.raw()
    connection.send(*wire.encode(Message(wire.new_header("Hello"), Record(), hello(bench, **fields))))
    return connection


def authenticate(connection: TcpConnection, proof: bytes = b"") -> Message:
    """Send `Authenticate` and return the reply."""
    connection.send(*wire.encode(Message(wire.new_header("Authenticate"), Record(), Record(proof=proof))))
    return receive_reply(connection)


# The handshake.

@tests("SESS-1", "SESS-78")
def other_first_messages_end_the_connection(bench: Bench) -> None:
    for request in (make("Null"), make("Mount", payload=b"x"), make("Authenticate", payload=Record(proof=b""))):
        for place in (dict(slot=0, sequence=0), dict(slot=1, sequence=1)):
            connection = bench.raw()
            vars(request.header).update(place)
            connection.send(*wire.encode(request))
            expect_end(connection, f"{request.name} first")
    connection = send_hello(bench)
    receive_reply(connection)
    connection.send(*wire.encode(Message(wire.new_header("Hello"), Record(), hello(bench))))
    expect_end(connection, "Hello twice")
    bench.others_are_served()


@tests("SESS-1", "SESS-78", "SESS-121")
def hello_that_is_not_plain_ends_the_connection(bench: Bench) -> None:
    for fields in (dict(slot=1), dict(sequence=1), dict(handle=1), dict(flags=CHAIN_FORWARD)):
        connection = bench.raw()
        connection.send(*wire.encode(Message(wire.new_header("Hello", **fields), Record(), hello(bench))))
        expect_end(connection, f"Hello with {fields}")
    connection = bench.raw()
    head, payload = wire.encode(Message(wire.new_header("Hello"), Record(), hello(bench)))
    connection.send(head[:2] + wire.REPLY.to_bytes(2, "little") + head[4:], payload)
    expect_end(connection, "Hello with the flag REPLY")


@tests("SESS-122")
def proofs_of_no_key_are_refused(bench: Bench) -> None:
    connection = send_hello(bench, key_name="")
    if name_of(receive_reply(connection)) != "OK":
        raise Skipped("the listener demands a key")
    connection.send(*wire.encode(Message(wire.new_header("Authenticate"), Record(), Record(proof=bytes(32)))))
    expect_end(connection, "a proof without a key name")


@tests("SESS-79", "TCP-17", "TCP-20")
def stalled_handshakes_end_and_delay_nobody(bench: Bench) -> None:
    stalled_session = bench.raw()
    silent = _silent_socket(bench)
    begun = time.monotonic()
    bench.client().null()
    expect(time.monotonic() - begun < 4, "a handshake beside stalled ones in less than 4 s", time.monotonic() - begun)
    silent.settimeout(30)
    same(silent.recv(1), b"", "the end of a connection without hello:")
    silent.close()
    came = time.monotonic() - begun
    expect(4 < came < 15, "its end after 5 s", f"{came:.1f} s")
    end = read_to_end(stalled_session, 20)
    expect(end.ended, "the end of a session's handshake that stalls", end)


def _silent_socket(bench: Bench) -> socket.socket:
    """Connect and say nothing."""
    return socket.create_connection((bench.place.host, bench.place.port), 5)


@tests("SESS-4", "WIRE-35")
def highest_version_of_both_is_chosen(bench: Bench) -> None:
    connection = send_hello(bench, version_max=65_535)
    reply = receive_reply(connection)
    same((name_of(reply), getattr(reply.payload, "version", None)), ("OK", 1), "version")


@tests("SESS-83")
def versions_that_are_not_spoken(bench: Bench) -> None:
    connection = send_hello(bench, version_min=60_000, version_max=65_535)
    same(name_of(receive_reply(connection)), "VERSION", "the reply to other versions:")
    expect_end(connection, "a refused Hello")


@tests("SESS-84", "SESS-85")
def features_hold_that_both_name(bench: Bench) -> None:
    for features in (0, wire.RESUME | wire.CHAINS, 2**64 - 1):
        client = bench.client(features=features)
        held = client.session.welcome.features
        expect(held & ~features == 0, f"features of {features:#x}", hex(held))


@tests("SESS-119")
def no_more_slots_than_asked_for(bench: Bench) -> None:
    for slots in (1, 2, 7, 65_535):
        welcome = bench.client(slots=slots).session.welcome
        expect(1 <= welcome.credits <= welcome.slots <= slots, f"at most {slots} slots", welcome)


@tests("SESS-80", "SESS-2", "ACC-77")
def unknown_key_names_are_refused_as_wrong_proofs(bench: Bench) -> None:
    connection = send_hello(bench, key_name="dafs-conform-none")
    same(name_of(receive_reply(connection)), "OK", "the reply to a Hello with an unknown key:")
    same(name_of(authenticate(connection, bytes(32))), "AUTH_FAILED", "the reply to its proof:")
    expect_end(connection, "a wrong proof")


def need_key(bench: Bench) -> Key:
    """Skip without a key."""
    if bench.key is None:
        raise Skipped("no key was given (--key)")
    return bench.key


@tests("SESS-2", "ACC-77")
def wrong_proofs_are_refused(bench: Bench) -> None:
    key = need_key(bench)
    for proof in (bytes(32), b"", bytes(31), bytes(33)):
        connection = send_hello(bench, key_name=key.name)
        receive_reply(connection)
        same(name_of(authenticate(connection, proof)), "AUTH_FAILED", f"the reply to a proof of {len(proof)} bytes:")


@tests("SESS-82")
def server_proves_the_key(bench: Bench) -> None:
    need_key(bench)
    bench.client().null()


@tests("SESS-3")
def key_is_demanded(bench: Bench) -> None:
    connection = send_hello(bench, key_name="")
    reply = receive_reply(connection)
    if name_of(reply) == "OK" and not reply.payload.key_required:
        raise Skipped("this listener demands no key: it is on a loopback address")
    same(name_of(reply), "AUTH_REQUIRED", "the reply to a Hello without a key:")
    expect_end(connection, "a refused Hello")


# Slots.

@tests("SESS-10", "SESS-11", "SESS-12", "SESS-13")
def table_of_slots(bench: Bench) -> None:
    cached, other = "Commit", "Null"
    for first, arrives, outcome in (
            (None, (1, cached), "OK"), (None, (1, other), "OK"), (None, (2, cached), "fault"),
            (None, (7, cached), "fault"), (None, (0, cached), "fault"),
            (cached, (1, cached), "OK"), (cached, (1, other), "FALSE_RETRY"), (cached, (2, other), "OK"),
            (cached, (3, other), "fault"), (cached, (0, other), "fault"),
            (other, (1, other), "OK"), (other, (1, cached), "FALSE_RETRY"), (other, (2, cached), "OK"),
            (other, (3, cached), "fault"), (other, (0, cached), "fault")):
        client = bench.client()
        file = client.mount().open(bench.name + b"/file", wire.READ | wire.WRITE | wire.CREATE, 0o644)
        if first:
            ask(client, _of(first, 1, file))
        sequence, name = arrives
        _expect_outcome(client, _of(name, sequence, file), outcome, f"{name} {sequence} after {first}")
    bench.others_are_served()


def _of(name: str, sequence: int, file: File) -> Message:
    """Make a request that every server can carry out."""
    if name == "Null":
        return make("Null", sequence=sequence)
    return make("Commit", sequence=sequence, handle=file.handle, stability=1)


def _expect_outcome(client: Client, request: Message, outcome: str, what: str) -> None:
    """Send a request, and expect a status or a fault."""
    if outcome == "fault":
        send(client, request)
        expect_end(client.session.connection, what)
    else:
        same(name_of(ask(client, request)), outcome, what)


@tests("SESS-12")
def false_retry_changes_nothing(bench: Bench) -> None:
    client, node = bench.dir()
    ask(client, make("Null"))
    same(name_of(ask(client, make("Mkdir", handle=node.handle, payload=b"d"))), "FALSE_RETRY", "another opcode:")
    fails("NOT_FOUND", node.getattr, "d")
    same(name_of(ask(client, make("Mkdir", sequence=2, handle=node.handle, payload=b"d"))), "OK", "the next number:")


@tests("SESS-13")
def slots_beyond_the_session_are_a_fault(bench: Bench) -> None:
    for slots, slot in ((4, 4), (4, 2**32 - 1), (1, 1)):
        client = bench.client(slots=slots)
        send(client, make("Null", slot=slot))
        expect_end(client.session.connection, f"slot {slot} of {slots}")
    bench.others_are_served()


def held_write(bench: Bench, **options: Any) -> Tuple[Client, File, Message]:
    """Send a direct write in slot 1 whose data the client holds back, so that it goes on executing."""
    client, file = bench.file(b"data", **options)
    region = client.session.regions.register(bytearray(b"x" * 100_000), remote_read=True)
    request = make("Write", handle=file.handle, length=100_000, method=DIRECT, ranges=1, key=region.key,
                   range_length=100_000)
    connection = client.session.connection
    connection.holding = True
    send(client, request)
    try:
        while not connection.held:
            receive(connection, 0.3)
    except TimeoutError:
        pass
    expect(bool(connection.held), "a read of the client's memory", "none")
    return client, file, request


@tests("SESS-13", "SESS-12", "SESS-87", "SESS-11")
def slots_that_are_executing(bench: Bench) -> None:
    client, _, request = held_write(bench)
    connection = client.session.connection
    send(client, request)
    send(client, make("Null"))
    same(name_of(receive_reply(connection)), "FALSE_RETRY", "another opcode of an executing slot:")
    connection.release()
    same(name_of(receive_reply(connection)), "OK", "the one reply:")
    end = read_to_end(connection, 0.5)
    expect(not end.messages and not end.ended, "one reply only", end)
    client, _, _ = held_write(bench)
    send(client, make("Null", sequence=2))
    expect_end(client.session.connection, "a new request in a busy slot")
    bench.others_are_served()


@tests("SESS-87", "SESS-117", "SESS-50", "SESS-120")
def reply_goes_to_the_new_connection(bench: Bench) -> None:
    client, file, request = held_write(bench)
    old, slots = client.session.connection, client.session.welcome.slots
    _resume_beside(client)
    expect(client.session.welcome.resumed, "the session resumed", "a new one")
    same(client.session.welcome.slots, slots, "the slots of the resumed session:")
    end = read_to_end(old)
    expect(end.ended, "the end of the older connection", end)
    request.header.flags |= wire.REPLAY
    send(client, request)
    same(name_of(receive_reply(client.session.connection)), "OK", "the reply on the new connection:")
    same(file.read(0, 5), b"xxxxx", "the data:")


def _resume_beside(client: Client) -> None:
    """Resume a session while its older connection is open."""
    session = client.session
    session._connect(Record(session=session.welcome.session, secret=session.welcome.secret))


@tests("SESS-57")
def failures_of_repeated_opcodes_are_not_kept(bench: Bench) -> None:
    client, file = bench.file(b"data")
    write = dict(length=4, payload=b"DATA")
    same(name_of(ask(client, make("Write", handle=file.handle + 2**40, **write))), "BAD_HANDLE", "a wrong handle:")
    same(name_of(ask(client, make("Write", handle=file.handle, **write))), "OK", "the write that comes again:")


@tests("SESS-14", "SESS-86")
def failures_of_cached_opcodes_are_kept(bench: Bench) -> None:
    client, node = bench.dir()
    request = make("Remove", handle=node.handle, payload=b"d", directory=1)
    same(name_of(ask(client, request)), "NOT_FOUND", "a directory that is not there:")
    node.mkdir("d")
    same(name_of(ask(client, request)), "NOT_FOUND", "the kept failure:")
    node.getattr("d")


# Credits.

@tests("SESS-20", "SESS-89")
def requests_beyond_the_limit_are_a_fault(bench: Bench) -> None:
    client, file = bench.file(b"data", slots=4)
    limit = client.session.limit
    for sequence in range(1, 30):
        reply = ask(client, make("Null", slot=3, sequence=sequence, credits=1))
        limit = min(4, max(1, limit - 1, reply.header.credits))
    if limit > 2:
        raise Skipped(f"the server grants {limit} credits to a client that asks for 1")
    for slot in range(3):
        client.session.sequences[slot] += 1
        send(client, _held_write(client, file, slot))
    end = read_to_end(client.session.connection)
    expect(end.ended, f"the end of the connection for 3 requests with {limit} credits", end)
    bench.others_are_served()


def _held_write(client: Client, file: File, slot: int) -> Message:
    """Make a write that waits for the client's memory."""
    region = client.session.regions.register(bytearray(100_000), remote_read=True)
    client.session.connection.holding = True
    return make("Write", slot=slot, sequence=client.session.sequences[slot], handle=file.handle, length=100_000,
                method=DIRECT, ranges=1, key=region.key, range_length=100_000, credits=1)


@tests("SESS-23")
def credits_are_granted(bench: Bench) -> None:
    client = bench.client()
    for _ in range(3):
        client.null()
    expect(client.session.limit > 1, "more than one credit for a client that wants 16", client.session.limit)


# Chains.

def chain(client: Client, *requests: Request) -> List[Message]:
    """Send a chain and return the replies."""
    return client.session.chain(list(requests))


def names(replies: List[Message]) -> List[str]:
    """Name the statuses of replies."""
    return [name_of(reply) for reply in replies]


def write_request(file: Any, data: bytes, offset: int = 0, **named: Any) -> Request:
    """Make an inline write."""
    handle = file if isinstance(file, int) else file.handle
    return Request("Write", handle, Record(offset=offset, length=len(data)), data, **named)


def read_request(file: Any, length: int = 100, **named: Any) -> Request:
    """Make an inline read."""
    handle = file if isinstance(file, int) else file.handle
    return Request("Read", handle, Record(offset=0, length=length), **named)


@tests("SESS-30")
def links_are_executed_in_order(bench: Bench) -> None:
    client, file = bench.file()
    for _ in range(20):
        replies = chain(client, *(write_request(file, b"%02d" % number) for number in range(10)), read_request(file))
        same(replies[-1].payload, b"09", "what the last link reads:")


@tests("SESS-91")
def links_behind_a_failure_are_aborted(bench: Bench) -> None:
    client, file = bench.file(b"data")
    replies = chain(client, Request("Getattr", file.handle, Record(), b"none"), write_request(file, b"spoilt"),
                    Request("Truncate", file.handle, Record()))
    same(names(replies)[1:], ["CHAIN_ABORTED"] * 2, "the links behind:")
    same(file.read(0, 10), b"data", "the file:")


@tests("SESS-31")
def saved_handle_is_used(bench: Bench) -> None:
    client, node = bench.dir()
    new_file(node, "one", b"first")
    two = new_file(node, "two", b"second")
    opened = Request("Open", node.handle, Record(flags=wire.READ, mode=0), b"one", SAVE_HANDLE)
    replies = chain(client, opened, read_request(CHAIN_HANDLE), read_request(two, flags=SAVE_HANDLE),
                    read_request(CHAIN_HANDLE))
    same([reply.payload for reply in replies[1:]], [b"first", b"second", b"second"], "what is read:")


@tests("SESS-93")
def chain_handle_without_a_chain(bench: Bench) -> None:
    client, file = bench.file(b"data")
    same(name_of(ask(client, make("Read", handle=CHAIN_HANDLE, length=4))), "BAD_HANDLE", "outside of a chain:")
    batch = Record(operations=[BatchOperation(file, [Extent(0, 4)])], data=b"")
    reply = ask(client, make("Batch", sequence=2, handle=CHAIN_HANDLE, operations=1, payload=batch))
    same(name_of(reply), "BAD_HANDLE", "a batch outside of a chain:")
    same(names(chain(client, Request("Null"), read_request(CHAIN_HANDLE))), ["OK", "BAD_HANDLE"], "none saved:")


@tests("SESS-33")
def chain_that_was_left_open_ends_with_the_next(bench: Bench) -> None:
    client, file = bench.file(b"data")
    same(name_of(ask(client, make("Getattr", handle=file.handle, payload=b"x", flags=CHAIN_FORWARD))),
         "NOT_DIRECTORY", "the link that fails:")
    same(names(chain(client, read_request(file), read_request(file))), ["OK", "OK"], "the next chain:")
    ask(client, make("Read", sequence=2, handle=file.handle, length=1, flags=CHAIN_FORWARD | SAVE_HANDLE))
    same(names(chain(client, Request("Null"), read_request(CHAIN_HANDLE))), ["OK", "BAD_HANDLE"],
         "the saved handle of the chain before:")


@tests("SESS-32")
def chains_longer_than_the_slots_are_a_fault(bench: Bench) -> None:
    client = bench.client(slots=2)
    ask(client, make("Null", slot=0, sequence=1, flags=CHAIN_FORWARD))
    ask(client, make("Null", slot=1, sequence=1, flags=CHAIN_BACK | CHAIN_FORWARD))
    send(client, make("Null", slot=0, sequence=2, flags=CHAIN_BACK))
    expect_end(client.session.connection, "a third link of a session of 2 slots")
    bench.others_are_served()


@tests("SESS-94")
def chain_back_without_a_chain_is_a_fault(bench: Bench) -> None:
    for before in ([], [dict(sequence=1)], [dict(sequence=1, flags=CHAIN_FORWARD), dict(sequence=2, flags=CHAIN_BACK)]):
        client = bench.client()
        for fields in before:
            ask(client, make("Null", **fields))
        send(client, make("Null", sequence=len(before) + 1, flags=CHAIN_BACK))
        expect_end(client.session.connection, "CHAIN_BACK without an open chain")


@tests("SESS-88")
def replies_of_links_are_kept(bench: Bench) -> None:
    client, file = bench.file(b"before")
    session = client.session
    for _ in range(5):
        file.write(0, b"before")
        links = [session.submit(request) for request in (
            read_request(file, flags=CHAIN_FORWARD), read_request(file, flags=CHAIN_BACK))]
        time.sleep(0.1)
        _, node = bench.dir()
        node.open(f"file-{bench.files}", wire.READ | wire.WRITE).write(0, b"behind")
        session.resume()
        replies = [session.wait(link) for link in links]
        same([(name_of(reply), reply.payload) for reply in replies], [("OK", b"before")] * 2, "the kept replies:")


@tests("SESS-123", "SESS-124")
def replies_of_direct_reads_are_not_kept(bench: Bench) -> None:
    client, file = bench.file(b"before")
    region = client.session.regions.register(bytearray(6), remote_write=True)
    links = [make("Read", slot=slot, handle=file.handle, length=6, method=DIRECT, ranges=1, key=region.key,
                  range_length=6, flags=flags) for slot, flags in ((8, CHAIN_FORWARD), (9, CHAIN_BACK))]
    same([name_of(ask(client, link)) for link in links], ["OK"] * 2, "direct reads in a chain:")
    same([name_of(ask(client, link)) for link in links], ["CHAIN_ABORTED"] * 2, "the same again, behind the chain:")


# Callbacks, time, the end.

@tests("SESS-43")
def silent_sessions_end(bench: Bench) -> None:
    client, _ = bench.dir()
    lease = client.session.welcome.lease_ms / 1000
    if lease > 5:
        raise Skipped(f"the lease is {lease:.0f} s; begin the server with --lease-ms 2000")
    client.session.connection.close()
    time.sleep(lease / 2)
    client.session.resume()
    client.session.connection.close()
    time.sleep(lease * 1.5 + 1)
    expect_gone(client)


@tests("SESS-44")
def requests_past_their_deadline_have_no_effect(bench: Bench) -> None:
    client, file, request = held_write_in_chain(bench)
    connection = client.session.connection
    late = make("Write", slot=12, handle=file.handle, offset=0, length=4, payload=b"late", flags=CHAIN_BACK,
                deadline_ms=50)
    send(client, late)
    # When the server answers others it has the request.
    bench.client().null()
    time.sleep(0.5)
    connection.release()
    replies = {reply.header.slot: name_of(reply) for reply in (receive_reply(connection), receive_reply(connection))}
    same(replies, {11: "OK", 12: "TIMED_OUT"}, "the replies:")
    same(file.read(0, 4), b"xxxx", "the file:")


def held_write_in_chain(bench: Bench) -> Tuple[Client, File, Message]:
    """Hold back the data of a write that begins a chain."""
    client, file = bench.file(b"data")
    region = client.session.regions.register(bytearray(b"x" * 100_000), remote_read=True)
    client.session.connection.holding = True
    request = make("Write", handle=file.handle, length=100_000, method=DIRECT, ranges=1, key=region.key,
                   range_length=100_000, flags=CHAIN_FORWARD)
    send(client, request)
    return client, file, request


@tests("SESS-45", "SESS-126")
def faults_end_the_session_with_a_notice(bench: Bench) -> None:
    client, _ = bench.dir()
    send(client, make("Null", slot=2**31))
    end = expect_end(client.session.connection, "a slot that is none")
    expect(end.notice is not None and end.notice.payload != "", "a Notice (2) with words", end)
    expect(len(end.notice.payload.encode()) <= 512, "512 bytes of words at most", len(end.notice.payload))
    expect_gone(client)


@tests("SESS-99")
def bye_ends_session_and_connection(bench: Bench) -> None:
    client, _ = bench.dir()
    same(name_of(ask(client, make("Bye"))), "OK", "Bye")
    end = read_to_end(client.session.connection)
    expect(end.ended, "the end of the connection", end)
    expect_gone(client)


# Eager buffers.

@tests("SESS-60", "SESS-106")
def eager_buffers_are_replaced(bench: Bench) -> None:
    client, file = bench.file()
    old = Lent(client, 1, 4096, slot=9)
    client.session.sequences[9] = 1
    new = Lent(client, 1, 8192, slot=10)
    new.write(b"new", 4096)
    same(name_of(ask(client, make("Write", handle=file.handle, length=3, method=wire.CLIENT_INITIATED))), "OK",
         "a write by the new buffer:")
    same(file.read(0, 9), b"new", "the data:")
    old.write(b"old", 4096)
    _expect_fault(client.session.connection, tcp.FAULT_NO_REGION, "a write into the old buffer")


def _expect_fault(connection: TcpConnection, code: int, what: str) -> None:
    """Expect a FAULT and the end of the connection."""
    end = read_to_end(connection)
    expect(end.ended, f"the end of the connection for {what}", end)
    same(connection.fault and connection.fault.value, code, f"the FAULT for {what}:")


@tests("SESS-106", "SESS-62", "ACC-16")
def eager_buffers_serve_their_connection_alone(bench: Bench) -> None:
    lender, other = bench.client(), bench.client()
    lent = Lent(lender)
    lent.client = other
    lent.write(b"stolen", 4096)
    _expect_fault(other.session.connection, tcp.FAULT_NO_REGION, "memory that was lent to another")
    lender.null()
    again, _ = bench.dir()
    lent = Lent(again)
    again.session.resume()
    lent.write(b"late", 4096)
    _expect_fault(again.session.connection, tcp.FAULT_NO_REGION, "memory that was lent to an older connection")


@tests("SESS-105")
def eager_buffers_are_read_where_the_terms_say_so(bench: Bench) -> None:
    client = bench.client()
    item = Lent(client, reads=0).ranges[0]
    client.session.connection.send_raw(Frame(tcp.READ_REQUEST, len=10, key=item.key, offset=item.offset).encode())
    _expect_fault(client.session.connection, tcp.FAULT_RIGHTS, "a read of a buffer that is not to be read")


@tests("SESS-62", "ACC-16", "TCP-11", "TCP-23")
def nothing_beside_eager_buffers_is_reached(bench: Bench) -> None:
    for offset, length in ((-1, 1), (65_536 + 4096, 1), (65_536 + 4095, 2), (0, 1 << 20)):
        client = bench.client()
        lent = Lent(client)
        item = lent.ranges[0]
        begin = (item.offset + (offset if offset >= 0 else -1)) % 2**64
        connection = client.session.connection
        try:
            connection.send_raw(Frame(tcp.WRITE, len=length, key=item.key, offset=begin).encode() + bytes(length))
        except ConnectionEnded:
            pass
        _expect_fault(connection, tcp.FAULT_BOUNDS, f"{length} bytes at {offset}")
    bench.others_are_served()


# Tokens.

@tests("SESS-70")
def tokens_allow_no_more_than_their_handle(bench: Bench) -> None:
    client, node = bench.dir()
    new_file(node, "file", b"data")
    share = client.session.call
    fails("BAD_HANDLE", share, "Share", node.lookup("file").handle, rights=1)
    fails("BAD_HANDLE", share, "Share", node.open("file", wire.READ).handle, rights=2)
    fails("BAD_HANDLE", share, "Share", node.open("file", wire.READ).handle, rights=3)
    fails("BAD_HANDLE", share, "Share", node.open("file", wire.WRITE).handle, rights=1)


@tests("SESS-108")
def shares_without_rights_are_invalid(bench: Bench) -> None:
    client, file = bench.file()
    fails("INVALID", client.session.call, "Share", file.handle, rights=0)


@tests("SESS-71", "SESS-72", "SESS-111", "SESS-113")
def tokens_open_files(bench: Bench) -> None:
    client, file = bench.file(b"data")
    tokens = {file.share(1) for _ in range(8)}
    same(len(tokens), 8, "different tokens:")
    token = tokens.pop()
    root = bench.client().mount()
    one, two = root.open_token(token), root.open_token(token)
    expect(one.handle != two.handle, "handles of their own", one.handle)
    same((one.attributes.size, one.attributes.file_id), (4, file.getattr().file_id), "the attributes:")
    one.close()
    file.close()
    same(two.read(0, 9), b"data", "what another handle reads:")
    fails("BAD_HANDLE", two.write, 0, b"x")
    fails("BAD_HANDLE", one.read, 0, 9)


@tests("SESS-110")
def tokens_are_used_at_roots(bench: Bench) -> None:
    client, file = bench.file(b"data")
    node = client.mount().lookup(bench.name)
    fails("BAD_HANDLE", node.open_token, file.share(1))


@tests("SESS-73")
def tokens_of_others_are_unknown(bench: Bench) -> None:
    client, file = bench.file(b"data")
    token = file.share(1)
    fails("NO_TOKEN", client.mount().open_token, bytes(32))
    if bench.key:
        stranger = _client_without_key(bench)
        fails("NO_TOKEN", stranger.mount().open_token, token)
    fails("NO_TOKEN", client.mount(bench.other_export(client)).open_token, token)


def _client_without_key(bench: Bench) -> Client:
    """Connect without a key, where the listener lets one."""
    try:
        return bench.client(key=None)
    except StatusError as error:
        raise Skipped("the listener demands a key, and there is one only") from error


@tests("SESS-74", "SESS-112")
def tokens_end(bench: Bench) -> None:
    client, file = bench.file(b"data")
    share = client.session.call
    for wanted, granted in ((0, 60_000), (2**32 - 1, 60_000), (60_000, 60_000)):
        same(share("Share", file.handle, rights=1, ttl_ms=wanted).body.ttl_ms, granted, f"ttl_ms for {wanted}:")
    reply = share("Share", file.handle, rights=1, ttl_ms=300)
    expect(1 <= reply.body.ttl_ms <= 300, "at most 300 ms", reply.body.ttl_ms)
    root = bench.client().mount()
    root.open_token(reply.payload)
    time.sleep(0.8)
    fails("NO_TOKEN", root.open_token, reply.payload)
    token = file.share(1)
    client.bye()
    fails("NO_TOKEN", root.open_token, token)


@tests("SESS-75")
def files_stay_open_while_a_token_is_left(bench: Bench) -> None:
    client, node = bench.dir()
    file = new_file(node, "file", b"data")
    token = file.share(1)
    node.remove("file")
    file.close()
    same(bench.client().mount().open_token(token).read(0, 9), b"data", "what the token's file has:")


@tests("SESS-76")
def tokens_of_a_session_are_bounded(bench: Bench) -> None:
    client, file = bench.file(b"data")
    for _ in range(64):
        file.share(1)
    fails("TOO_MANY_OPEN", file.share, 1)


@tests("SESS-77", "ACC-96", "ACC-107", "ACC-108", "ACC-130", "ACC-132")
def fenced_clients_do_nothing(bench: Bench) -> None:
    fenced = Identity(client_name="dafs-conform")
    client = bench.client(identity=fenced)
    root = client.mount()
    node = root.lookup(bench.name)
    file = new_file(node, "file", b"data")
    token = file.share(1)
    before = bench.keeper.session.call("FenceRead", bench.root.handle).payload
    both = Record(**{**vars(before), "clients": before.clients + [fenced.client_id]})
    came = status_of(bench.keeper.session.call, "FenceWrite", bench.root.handle, both)
    if came == "PERMISSION":
        raise Skipped("this client may not fence others")
    try:
        fails("FENCED", file.share, 1)
        fails("FENCED", file.read, 0, 1)
        fails("FENCED", node.getattr)
        fails("FENCED", client.mount)
        fails("FENCED", root.open_token, token)
        fails("FENCED", node.mkdir, "d")
        fails("FENCED", file.write, 0, b"x")
        file.close()
    finally:
        bench.keeper.session.call("FenceWrite", bench.root.handle, before)
    same(status_of(node.mkdir, "d"), "OK", "after the fence:")


@tests("SESS-114")
def tokens_to_write_do_not_open_read_only(bench: Bench) -> None:
    raise Skipped("one export is not mounted both ways: a token holds for its own export")


# Reconnecting.

@tests("SESS-115")
def unknown_sessions_are_new_ones(bench: Bench) -> None:
    client, _ = bench.dir()
    session = client.session
    for fields in (dict(session=session.welcome.session ^ 1, secret=session.welcome.secret),
                   dict(session=session.welcome.session, secret=bytes(16))):
        other = bench.client()
        other.session.connection.close()
        other.session._connect(Record(**fields))
        expect(not other.session.welcome.resumed, "a new session", "a resumed one")
        expect(other.session.welcome.session != session.welcome.session, "another session", "the same")
    client.null()


@tests("SESS-116", "ACC-15")
def sessions_of_others_are_not_resumed(bench: Bench) -> None:
    client, _ = bench.dir()
    resume = Record(session=client.session.welcome.session, secret=client.session.welcome.secret)
    other = bench.client(identity=Identity())
    other.session.connection.close()
    fails("AUTH_FAILED", other.session._connect, resume)
    client.null()
    if bench.key:
        stranger = _client_without_key(bench)
        stranger.session.identity = client.session.identity
        stranger.session.connection.close()
        fails("AUTH_FAILED", stranger.session._connect, resume)
        client.null()


@tests("SESS-50", "SESS-87")
def appends_are_executed_once_over_breaks(bench: Bench) -> None:
    client, file = bench.file()
    session = client.session
    for number in range(8):
        pending = [session.submit(Request("Append", file.handle, Record(length=4), b"%d%03d" % (number, place)))
                   for place in range(8)]
        session.resume()
        for item in pending:
            session.finish(item)
    data = file.read(0, 1000)
    same(len(data), 8 * 8 * 4, "bytes in the file:")
    same(len({data[at:at + 4] for at in range(0, len(data), 4)}), 64, "appends, each once:")
