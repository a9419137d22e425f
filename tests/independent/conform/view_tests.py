"""views.md: views, and reads and writes of what they show."""
from __future__ import annotations

import os
import random
import time
from types import SimpleNamespace as Record
from typing import Any, List, Sequence

from dafs import view, wire
from dafs.client import Client, File
from dafs.wire import DIRECT, INLINE, Message, Range, node

from .bench import Bench, ask, expect, fails, make, name_of, receive_reply, same, send, status_of, tests
from .data_tests import SIEVES, check_explanation

BYTES, FILE_SIZE = 4, 4000


def of_bytes(kind: int, entries: Sequence[Sequence[int]] = (), **fields: int) -> List[Record]:
    """Describe a node of a kind, made of 4 bytes."""
    return [node(wire.BYTES_NODE, length=BYTES), node(kind, 0, entries, **fields)]


# Each with the displacement that its least offset needs.
VIEWS = {
    "bytes": [node(wire.BYTES_NODE, length=5)],
    "contiguous": of_bytes(wire.CONTIGUOUS, count=3),
    "vector": of_bytes(wire.VECTOR, count=3, block_length=2, stride=3),
    "vector that goes back": of_bytes(wire.VECTOR, count=3, block_length=2, stride=-3),
    "hvector": of_bytes(wire.HVECTOR, count=3, block_length=1, stride=7),
    "hvector that overlaps": of_bytes(wire.HVECTOR, count=4, block_length=1, stride=3),
    "indexed": of_bytes(wire.INDEXED, [(2, 5), (0, 90), (1, 0), (3, -4)]),
    "hindexed": of_bytes(wire.HINDEXED, [(2, 11), (1, 0), (1, 4)]),
    "indexed block": of_bytes(wire.INDEXED_BLOCK, [(7,), (1,), (4,)], block_length=2),
    "hindexed block": of_bytes(wire.HINDEXED_BLOCK, [(30,), (1,), (13,)], block_length=2),
    "struct": of_bytes(wire.CONTIGUOUS, count=2) + [node(wire.STRUCT, 0, [(1, 3, 1), (2, 20, 0), (0, 99, 0)])],
    "subarray": of_bytes(wire.SUBARRAY, [(4, 2, 1), (5, 3, 2)]),
    "subarray of Fortran": of_bytes(wire.SUBARRAY, [(4, 2, 1), (5, 3, 2)], order=wire.ORDER_FORTRAN),
    "darray": of_bytes(wire.DARRAY, [(7, 0, wire.BLOCK, 2), (6, 2, wire.CYCLIC, 2), (2, 0, wire.NOT_DEALT, 1)],
                       processes=4, process=3),
    "darray of Fortran": of_bytes(wire.DARRAY, [(7, 4, wire.BLOCK, 2), (5, 0, wire.CYCLIC, 2)], processes=4,
                                  process=1, order=wire.ORDER_FORTRAN),
    "resized": of_bytes(wire.VECTOR, count=2, block_length=1, stride=2) + [node(wire.RESIZED, 1, lower=-2, extent=31)],
    "tiles that mesh": of_bytes(wire.VECTOR, count=2, block_length=1, stride=5) + [
        node(wire.RESIZED, 1, lower=0, extent=8)],
    "tiles that go back": of_bytes(wire.CONTIGUOUS, count=1) + [node(wire.RESIZED, 1, lower=0, extent=-9)],
}
DISPLACEMENT = 1000


def view_request(name: str, file: File, number: int, place: int, length: int, *, data: bytes = b"",
                 memory: Sequence[Range] = (), **body: int) -> Message:
    """Make a request of a view; what the body says may be set apart."""
    fields = dict(view=number, displacement=DISPLACEMENT, place=place, length=length, ranges=len(memory),
                  method=DIRECT if memory else INLINE)
    fields.update(body)
    return make(name, handle=file.handle, payload=Record(ranges=memory, data=data), **fields)


def part_request(number: int, part: bytes, length: int, offset: int, sequence: int) -> Message:
    """Make a part of a description."""
    return make("ViewSet", payload=part, sequence=sequence, view=number, description_length=length, offset=offset)


@tests("VIEW-1", "VIEW-2", "VIEW-3", "VIEW-12")
def views_show_what_their_lists_read_and_write(bench: Bench) -> None:
    client, file = bench.file()
    content = os.urandom(FILE_SIZE)
    chance = random.Random(1)
    for number, (name, nodes) in enumerate(VIEWS.items(), 1):
        client.set_view(number, nodes)
        size = len(view.tile_of(nodes).data)
        for method in (INLINE, DIRECT):
            place, length = chance.randrange(2 * size), 1 + chance.randrange(3 * size)
            extents = view.extents(nodes, DISPLACEMENT, place, length)
            file.write(0, content)
            same(file.read_view(number, DISPLACEMENT, place, length, method)[0], file.read_list(extents, method)[0],
                 f"{name}, {length} bytes from place {place}, method {method}:")
            data = os.urandom(length)
            file.write_list(extents, data)
            expected = file.read(0, FILE_SIZE)
            file.write(0, content)
            same(file.write_view(number, DISPLACEMENT, place, data, method=method).count, length, f"{name}, written:")
            same(file.read(0, FILE_SIZE), expected, f"{name}, what {length} bytes from place {place} have changed:")


@tests("VIEW-12")
def end_of_the_file_within_views(bench: Bench) -> None:
    client, file = bench.file(bytes(range(60)))
    nodes = VIEWS["indexed"]
    client.set_view(1, nodes)
    for method in (INLINE, DIRECT):
        listed, body = file.read_list(view.extents(nodes, 30, 0, 40), method)
        shown, other = file.read_view(1, 30, 0, 40, method)
        same((other.count, other.end_of_file, other.end), (body.count, body.end_of_file, body.end), "the end:")
        if method == INLINE:
            same(shown, listed, "what lies before it:")


@tests("LIST-47")
def explanations_of_views_count_what_was_done(bench: Bench) -> None:
    client, file = bench.file(os.urandom(2000))
    client.set_view(1, [node(wire.BYTES_NODE, length=8), node(wire.RESIZED, 0, lower=0, extent=100)])
    for name, sieve in SIEVES.items():
        for method in (INLINE, DIRECT):
            fields, data = dict(method=method, sieve=sieve, flags=wire.EXPLAIN), os.urandom(64)
            what = f"with sieve {name} and method {method}"
            began = time.monotonic_ns()
            body = file.write_view(1, 10, 0, data, **fields)
            check_explanation(body.explanation, 8, time.monotonic_ns() - began, sieve, f"a write {what}")
            began = time.monotonic_ns()
            found, body = file.read_view(1, 10, 0, 64, **fields)
            check_explanation(body.explanation, 8, time.monotonic_ns() - began, sieve, f"a read {what}")
            same(found, data, f"a read {what}: data")


@tests("VIEW-4")
def descriptions_that_contradict_themselves_are_invalid(bench: Bench) -> None:
    client, file = bench.file(b"data")
    chain = [node(wire.BYTES_NODE, length=1)]
    for number in range(100):
        chain.append(node(wire.HINDEXED, number, [(1, 0), (1, 1 << number % 50), (1, 7)]))
    wrong = {
        "5,000 nodes": [node(wire.BYTES_NODE, length=1)] * 5000,
        "65,537 entries": of_bytes(wire.HINDEXED_BLOCK, [(0,)] * 65_537, block_length=1),
        "100 levels": chain,
        "bytes beyond any file": [node(wire.BYTES_NODE, length=2**63)],
        "copies beyond any file": of_bytes(wire.CONTIGUOUS, count=2**62),
        "a displacement before any file": of_bytes(wire.HINDEXED, [(1, -2**63)]),
        "a node of a later one": [node(wire.CONTIGUOUS, 1, count=1), node(wire.BYTES_NODE, length=1)],
        "33 dimensions": of_bytes(wire.SUBARRAY, [(1, 1, 0)] * 33),
        "a part beyond its array": of_bytes(wire.SUBARRAY, [(4, 3, 2)]),
        "a process that is none": of_bytes(wire.DARRAY, [(4, 0, wire.BLOCK, 2)], processes=2, process=2),
        "a grid of others": of_bytes(wire.DARRAY, [(4, 0, wire.BLOCK, 2)], processes=3, process=2),
        "blocks that do not cover": of_bytes(wire.DARRAY, [(5, 2, wire.BLOCK, 2)], processes=2, process=1),
    }
    for what, nodes in wrong.items():
        same(_status_of_view(client, nodes), "INVALID", f"{what}:")
        fails("NO_VIEW", file.read_view, 1, 0, 0, 1)
    client.set_view(1, of_bytes(wire.DARRAY, [(4, 2, wire.BLOCK, 2)], processes=2, process=1))


def _status_of_view(client: Client, nodes: Sequence[Record]) -> str:
    """Describe view 1, and return the name of the last status."""
    return status_of(client.set_view, 1, nodes)


@tests("VIEW-7", "VIEW-8", "VIEW-16")
def descriptions_come_in_parts(bench: Bench) -> None:
    client, file = bench.file(bytes(range(100)))
    nodes = VIEWS["resized"]
    whole = wire.encode_description(nodes)
    client.set_view(1, nodes, part=7)
    same(file.read_view(1, 20, 0, 9)[0], file.read_list(view.extents(nodes, 20, 0, 9))[0], "view 1:")
    size = len(whole)
    sequence = 0

    def say(number: int, part: bytes, offset: int, length: int = size) -> str:
        """Send a part; name the status of the reply."""
        nonlocal sequence
        sequence += 1
        return name_of(ask(client, part_request(number, part, length, offset, sequence)))
    same(say(1, whole, 0), "EXISTS", "a number that is taken:")
    same(say(2, whole[5:], 5), "INVALID", "a part of what was not begun:")
    wrong = ((2, whole[21:], 21, size), (2, whole[19:], 19, size), (2, whole[20:] + b"-", 20, size), (2, b"", 20, size),
             (3, whole[20:], 20, size), (2, whole[20:], 20, size + 1))
    for number, part, offset, length in wrong:
        same(say(2, whole[:20], 0), "OK", "the first part:")
        same(say(number, part, offset, length), "INVALID", f"{len(part)} bytes at {offset} of view {number}:")
        same(say(2, whole[20:], 20), "INVALID", "a part of what was thrown away:")
    same(say(2, whole[:20], 0), "OK", "the first part:")
    same(say(3, whole[:20], 0), "OK", "the first part of another:")
    same(say(3, whole[20:], 20), "OK", "its last part:")
    same(file.read_view(3, 20, 0, 9)[0], file.read_view(1, 20, 0, 9)[0], "view 3:")
    for length in (0, wire.DESCRIPTION_MAX + 1):
        same(say(4, whole, 0, length), "INVALID", f"a description of {length} bytes:")


@tests("VIEW-9")
def views_of_a_session_are_bounded(bench: Bench) -> None:
    client = bench.client()
    nodes = [node(wire.BYTES_NODE, length=1)]
    for number in range(1024):
        client.set_view(number, nodes)
    fails("TOO_MANY_VIEWS", client.set_view, 5000, nodes)
    client.drop_view(3)
    client.set_view(5000, nodes)


@tests("VIEW-6", "VIEW-14")
def unknown_views_are_told(bench: Bench) -> None:
    client, file = bench.file(b"data")
    other = bench.client()
    other.set_view(9, VIEWS["bytes"])
    fails("NO_VIEW", file.read_view, 9, 0, 0, 1)
    fails("NO_VIEW", file.write_view, 9, 0, 0, b"x")
    fails("NO_VIEW", client.drop_view, 9)
    client.set_view(9, VIEWS["bytes"])
    same(file.read_view(9, 0, 0, 4)[0], b"data", "the view:")
    client.drop_view(9)
    fails("NO_VIEW", file.read_view, 9, 0, 0, 1)
    client.set_view(9, VIEWS["vector"])
    send(client, view_request("WriteView", file, 9, 0, 4, data=b"last", displacement=0))
    send(client, make("ViewDrop", slot=12, view=9))
    for _ in range(2):
        same(name_of(receive_reply(client.session.connection)), "OK", "a write, and the end of its view:")
    same(file.read(0, 4), b"last", "what was written:")


@tests("VIEW-5", "VIEW-10")
def requests_that_a_view_does_not_have_are_invalid(bench: Bench) -> None:
    client, file = bench.file(b"data")
    client.set_view(1, of_bytes(wire.HINDEXED, [(1, 0), (1, -8)]))
    client.set_view(2, [node(wire.BYTES_NODE, length=0)])
    client.set_view(3, [node(wire.BYTES_NODE, length=1), node(wire.RESIZED, 0, lower=0, extent=2)])
    memory = client.session.regions.register(bytearray(1 << 19), remote_write=True)
    end, many = 2**63 - 1, 262_144
    wrong: List[Any] = [
        (view_request("ReadView", file, 1, 0, 8, displacement=7), "a byte before the file"),
        (view_request("ReadView", file, 1, 0, 1, displacement=end), "a byte beyond the largest offset"),
        (view_request("ReadView", file, 1, 0, 1, displacement=2**64 - 1), "a displacement of 2⁶⁴−1"),
        (view_request("ReadView", file, 1, end, 1), "a place beyond the largest"),
        (view_request("ReadView", file, 1, 2**64 - 1, 2), "a place of 2⁶⁴−1"),
        (view_request("WriteView", file, 1, 0, 8, data=b"SPOILT!!", displacement=7), "a write before the file"),
        (view_request("ReadView", file, 2, 0, 1), "a byte of a view that has none"),
        (view_request("ReadView", file, 3, 0, many + 1, memory=[memory.range(0, many + 1)]), "262,145 segments"),
        (view_request("ReadView", file, 1, 0, 4, memory=[memory.range(0, 5)]), "ranges of more bytes"),
        (view_request("ReadView", file, 1, 0, 4, method=DIRECT), "no range"),
        (view_request("ReadView", file, 1, 0, 4, method=2), "the method eager"),
        (view_request("WriteView", file, 1, 0, 4, data=b"abc"), "too little data")]
    for sequence, (request, what) in enumerate(wrong, 1):
        request.header.sequence = sequence
        reply = ask(client, request)
        same(name_of(reply), "INVALID", f"{what}:")
        expect(bool(reply.payload), f"words that say what is wrong with {what}", "none")
    right = [view_request("ReadView", file, 2, 9, 0), view_request("ReadView", file, 1, 0, 8, displacement=8),
             view_request("ReadView", file, 3, 0, many, memory=[memory.range(0, many)])]
    for sequence, request in enumerate(right, len(wrong) + 1):
        request.header.sequence = sequence
        same(name_of(ask(client, request)), "OK", "a request that the view has:")
    same(file.read(0, 9), b"data", "the file:")


@tests("VIEW-12", "VIEW-13")
def requests_of_a_group_do_not_wait_long_for_others(bench: Bench) -> None:
    client, file = bench.file(bytes(64))
    client.set_view(1, of_bytes(wire.CONTIGUOUS, count=1) + [node(wire.RESIZED, 1, lower=0, extent=8)])
    same(file.write_view(1, 0, 0, b"alonealone!!", group=77, group_size=1000).count, 12, "a member that stands alone:")
    same(file.read_view(1, 0, 0, 12, group=78, group_size=1000)[0], b"alonealone!!", "another:")
