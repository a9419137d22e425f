"""lists.md and batch.md: lists, batches, notices."""
from __future__ import annotations

import os
import time
from types import SimpleNamespace as Record
from typing import Any, List, Sequence, Tuple

from dafs import wire
from dafs.client import BatchOperation, Client, File
from dafs.session import Request
from dafs.wire import CHAIN_HANDLE, DIRECT, EXPEDITE, INLINE, NOTIFY, Extent, Message, Range

from .bench import (Bench, Skipped, ask, expect, make, name_of, new_file, read_to_end, receive,
                    same, send, status_of, tests)
from .session_tests import chain, names


def list_request(name: str, file: File, parts: Sequence[Extent], *, data: bytes = b"", memory: Sequence[Range] = (),
                 **body: int) -> Message:
    """Make a list; what the body says may be set apart."""
    fields = dict(length=wire.total(parts) % 2**32, extents=len(parts), ranges=len(memory),
                  method=DIRECT if memory else INLINE)
    fields.update(body)
    return make(name, handle=file.handle, payload=Record(extents=parts, ranges=memory, data=data), **fields)


# Lists.

@tests("LIST-1", "LIST-7", "LIST-19")
def lists_that_contradict_themselves_are_invalid(bench: Bench) -> None:
    client, file = bench.file(b"data")
    four, end = [Extent(0, 4)], 2**63 - 1
    wrong = [
        list_request("ReadList", file, four, length=5), list_request("ReadList", file, four, length=3),
        list_request("ReadList", file, four, memory=[Range(1, 0, 5)]),
        list_request("ReadList", file, four, memory=[Range(1, 0, 2**64 - 1), Range(1, 0, 5)]),
        list_request("ReadList", file, [Extent(end, 1)]), list_request("ReadList", file, [Extent(2**64 - 1, 4)]),
        list_request("ReadList", file, four, method=2), list_request("ReadList", file, four, method=3),
        list_request("ReadList", file, four, extents=2), list_request("ReadList", file, four + four, extents=1),
        list_request("ReadList", file, [Extent(0, 2**31)] * 3),
        list_request("ReadList", file, [Extent(0, 2**31)]), list_request("ReadList", file, four, extents=4097),
        list_request("ReadList", file, four, method=DIRECT),
        list_request("WriteList", file, four, data=b"abc"), list_request("WriteList", file, four, data=b"abcde"),
        list_request("WriteList", file, [Extent(end - 1, 2)], data=b"ab")]
    for sequence, request in enumerate(wrong, 1):
        request.header.sequence = sequence
        reply = ask(client, request)
        same(name_of(reply), "INVALID", f"list {sequence} ({vars(request.body)}):")
        expect(bool(reply.payload), f"words that say what is wrong with list {sequence}", "none")
    same(file.read(0, 9), b"data", "the file:")


@tests("LIST-7", "LIST-1")
def lists_of_nothing_are_allowed(bench: Bench) -> None:
    client, file = bench.file(b"data")
    for sequence, request in enumerate((
            list_request("ReadList", file, []), list_request("ReadList", file, [Extent(9, 0)]),
            list_request("WriteList", file, [Extent(2**63 - 1, 0)])), 1):
        request.header.sequence = sequence
        same(name_of(ask(client, request)), "OK", f"list {sequence} of no bytes:")
    extents = [Extent(index % 4, 1) for index in range(4096)]
    same(file.read_list(extents)[0], b"data" * 1024, "4,096 extents:")


@tests("LIST-4", "LIST-21")
def highest_place_is_in_the_file(bench: Bench) -> None:
    for method in (INLINE, DIRECT):
        _, file = bench.file(bytes(8))
        file.write_list([Extent(0, 4), Extent(2, 4), Extent(1, 2)], b"aaaabbbbcc", method=method)
        same(file.read(0, 9), b"accbbb\0\0", f"method {method}:")


@tests("LIST-5", "LIST-21")
def end_of_the_file_within_lists(bench: Bench) -> None:
    _, file = bench.file(b"0123456789")
    data, body = file.read_list([Extent(8, 4), Extent(0, 2), Extent(20, 3), Extent(9, 1)])
    same((data, body.count, body.end_of_file, body.end), (b"89019", 5, 1, 10), "inline:")
    data, body = file.read_list([Extent(8, 4), Extent(0, 2), Extent(20, 3), Extent(9, 1)], DIRECT)
    same((body.count, body.end_of_file, body.end), (5, 1, 10), "direct:")
    same((data[:2], data[4:6], data[9:10]), (b"89", b"01", b"9"), "bytes at their places:")
    _, body = file.read_list([Extent(2, 8)])
    same((body.count, body.end_of_file, body.end), (8, 0, 0), "up to the end:")


@tests("LIST-22")
def reads_touch_their_segments_only(bench: Bench) -> None:
    client, file = bench.file(b"0123456789" * 1000)
    region = client.session.regions.register(bytearray(b"-" * 3000), remote_write=True)
    ranges = [region.range(100, 50), region.range(2000, 1), region.range(200, 949)]
    same(name_of(ask(client, list_request("ReadList", file, [Extent(5, 500), Extent(3000, 500)], memory=ranges))),
         "OK", "the list:")
    memory, data = bytes(region.memory), (b"0123456789" * 1000)
    data = data[5:505] + data[3000:3500]
    same((memory[100:150], memory[2000:2001]), (data[:50], data[50:51]), "what is inside:")
    outside = memory[:100] + memory[150:200] + memory[1149:2000] + memory[2001:]
    same(outside, b"-" * len(outside), "what is outside:")


@tests("LIST-21")
def lists_have_the_same_results_by_all_methods(bench: Bench) -> None:
    _, file = bench.file()
    data = os.urandom(40_000)
    file.write(0, data)
    extents = [Extent(index * 7919 % 39_000, 1 + index * 31 % 900) for index in range(30)]
    expected = b"".join(data[item.offset:item.offset + item.length] for item in extents)
    for method in (INLINE, DIRECT):
        same(file.read_list(extents, method)[0], expected, f"method {method}:")


@tests("LIST-6")
def writes_count_what_is_in_the_file(bench: Bench) -> None:
    _, file = bench.file()
    same(file.write_list([Extent(10, 2), Extent(0, 3)], b"abcde", wire.DATA_SYNC).count, 5, "the count:")


@tests("LIST-43")
def holes_between_extents_stay(bench: Bench) -> None:
    for sieve in (wire.SIEVE_ON, wire.SIEVE_AUTO, wire.SIEVE_OFF):
        _, file = bench.file()
        file.truncate(1 << 20)
        extents = [Extent(place * 131_072, 8) for place in range(5)]
        file.write_list(extents, b"x" * 40, sieve=sieve)
        same(file.getattr().size, 1 << 20, "the size:")
        if file.seek(0, True) == 1 << 20:
            raise Skipped("the file system tells of no holes")
        for extent in extents[1:]:
            same(file.seek(extent.offset - 65_536, False), extent.offset, "the next data from within a hole:")
        file.write_list([Extent((1 << 20) - 100, 8), Extent(1 << 20, 8)], b"x" * 16, sieve=sieve)
        same(file.getattr().size, (1 << 20) + 8, "the size after a list beyond the end:")


SIEVES = {"auto": wire.SIEVE_AUTO, "on": wire.SIEVE_ON, "off": wire.SIEVE_OFF}


def check_explanation(told: Any, parts: int, elapsed_ns: int, sieve: int, what: str) -> None:
    """Fail unless an explanation of so many parts is there, and its numbers fit each other and the time that passed."""
    expect(told is not None, f"{what} explained", "no explanation")
    same(told.parts, parts, f"{what}: parts")
    expect(told.copied <= parts, f"{what}: at most {parts} parts copied", told)
    expect(told.calls + told.windows + told.copied > 0, f"{what}: something that moved the parts", told)
    expect(told.calls <= parts, f"{what}: at most one call for each part", told)
    expect(told.waited <= told.calls + told.windows, f"{what}: no more waits than calls", told)
    expect((told.windows > 0) == (told.window_bytes > 0), f"{what}: windows with bytes", told)
    expect(sieve != wire.SIEVE_OFF or told.windows == 0, f"{what}: no windows", told)
    # The calls were made while the client waited; several may have been made at a time.
    calls = told.calls + told.windows
    expect(told.measured_ns <= max(calls, 1) * elapsed_ns, f"{what}: at most {elapsed_ns} ns for each call", told)
    expect(not calls or told.measured_ns > 0, f"{what}: calls that took time", told)


@tests("LIST-42", "LIST-47")
def explanations_count_what_was_done(bench: Bench) -> None:
    _, file = bench.file(os.urandom(2000))
    extents = [Extent(100 * index, 8) for index in range(8)]
    data = os.urandom(64)
    for name, sieve in SIEVES.items():
        for method in (INLINE, DIRECT):
            fields = dict(method=method, sieve=sieve, flags=wire.EXPLAIN)
            what = f"with sieve {name} and method {method}"
            began = time.monotonic_ns()
            body = file.write_list(extents, data, **fields)
            check_explanation(body.explanation, 8, time.monotonic_ns() - began, sieve, f"a write {what}")
            same(body.count, 64, f"a write {what}: the count")
            began = time.monotonic_ns()
            found, body = file.read_list(extents, **fields)
            check_explanation(body.explanation, 8, time.monotonic_ns() - began, sieve, f"a read {what}")
            same((found, body.count), (data, 64), f"a read {what}: data and count")


@tests("LIST-47")
def explanations_are_told_to_who_asks(bench: Bench) -> None:
    client, file = bench.file(b"0123456789" * 10)
    extents = [Extent(10, 5), Extent(95, 20)]
    memory = client.session.regions.register(bytearray(25), remote_read=True, remote_write=True)
    ranges, size = [memory.range(0, 25)], wire.EXPLANATION.struct.size
    asked = [
        (list_request("ReadList", file, extents), b"01234" + b"56789"),
        (list_request("WriteList", file, extents, data=b"a" * 25), b""),
        (list_request("ReadList", file, extents, memory=ranges), b""),
        (list_request("WriteList", file, extents, memory=ranges), b"")]
    for sequence, (request, data) in enumerate(asked):
        what = f"{request.name} by method {request.body.method}"
        for flags in (0, wire.EXPLAIN):
            request.header.sequence, request.body.flags = 2 * sequence + 1 + flags, flags
            reply = ask(client, request)
            same(name_of(reply), "OK", f"{what}:")
            same(reply.payload[:len(data)], data, f"{what}, flags {flags}: data")
            same(len(reply.payload), len(data) + flags * size, f"{what}, flags {flags}: bytes in all")
    request = list_request("ReadList", file, extents, length=1)
    request.header.sequence, request.body.flags = 2 * len(asked) + 1, wire.EXPLAIN
    reply = ask(client, request)
    same(name_of(reply), "INVALID", "a list that contradicts itself:")
    expect(isinstance(reply.payload, str), "words alone", reply.payload)


@tests("LIST-47")
def explanations_need_room(bench: Bench) -> None:
    client, file = bench.file()
    size, most = wire.EXPLANATION.struct.size, client.session.hello.recv_payload_max
    data = os.urandom(most + 1)
    file.write(0, data)
    for length in (most - size - 1, most - size, most - size + 1, most):
        found, body = file.read_list([Extent(1, 9), Extent(10, length - 9)], flags=wire.EXPLAIN)
        same(found == data[1:1 + length], True, f"{length} bytes:")
        same(body.explanation is not None, length <= most - size, f"{length} bytes in messages of {most}, explained:")


# Batches.

def operation(file: Any, kind: int, extents: Sequence[Extent], **fields: Any) -> Record:
    """Make an operation of a batch, with fields as wanted."""
    item = Record(handle=file if isinstance(file, int) else file.handle, kind=kind, stability=0, method=INLINE,
                  length=wire.total(extents), extents=extents, ranges=[])
    vars(item).update(fields)
    return item


def batch_request(items: Sequence[Record], written: bytes = b"", **fields: int) -> Message:
    """Make a batch; what the body says may be set apart."""
    request = make("Batch", payload=Record(operations=items, data=written))
    request.body = Record(operations=len(items), data=len(written))
    vars(request.body).update(fields)
    return request


@tests("BATCH-2", "BATCH-12", "WIRE-11")
def batches_that_contradict_themselves_are_invalid(bench: Bench) -> None:
    client, file = bench.file(b"data")
    one, good = [Extent(0, 4)], operation(file, 1, [Extent(0, 4)])
    wrong = [
        batch_request([good, operation(file, 2, one)], b"SPOI"),
        batch_request([good, operation(file, 0, one, stability=1)], b"SPOI"),
        batch_request([good, operation(file, 1, one, stability=3)], b"SPOILT!!"),
        batch_request([good, operation(file, 0, one, method=2)], b"SPOI"),
        batch_request([good, operation(file, 0, one, method=1)], b"SPOI"),
        batch_request([good, operation(file, 0, one, ranges=[Range(1, 0, 4)])], b"SPOI"),
        batch_request([good, operation(file, 0, one, length=5)], b"SPOI"),
        batch_request([good, operation(file, 0, [Extent(2**63 - 2, 4)])], b"SPOI"),
        batch_request([good], b"SPO"), batch_request([good], b"SPOIL"), batch_request([good], b"SPOI", data=5),
        batch_request([good], b"SPOI", operations=2), batch_request([good, good], b"SPOISPOI", operations=1),
        batch_request([good, operation(file, 0, [Extent(0, 1 << 20)])], b"SPOI"),
        batch_request([good] + [operation(file, 0, [Extent(0, 0)] * 4096)], b"SPOI")]
    for sequence, request in enumerate(wrong, 1):
        request.header.sequence = sequence
        reply = ask(client, request)
        same(name_of(reply), "INVALID", f"batch {sequence}:")
        expect(bool(reply.payload), f"words that name the operation of batch {sequence}", "none")
    same(file.read(0, 9), b"data", "the file:")


@tests("BATCH-3", "BATCH-4", "BATCH-11", "BATCH-17")
def batches_have_a_result_for_each_operation(bench: Bench) -> None:
    client, node = bench.dir()
    one, two = new_file(node, "one", b"first"), new_file(node, "two", b"second")
    readable = node.open("one", wire.READ)
    results = client.batch([
        BatchOperation(two, [Extent(4, 9), Extent(0, 1)]), BatchOperation(readable, [Extent(0, 1)], b"x"),
        BatchOperation(one, [Extent(9, 1)], b"y"), BatchOperation(node, [Extent(0, 1)]),
        BatchOperation(readable, [Extent(0, 5)])], NOTIFY)
    same([wire.status_name(result.status) for result, _ in results], ["OK", "BAD_HANDLE", "OK", "BAD_HANDLE", "OK"],
         "the results:")
    same([data for _, data in results], [b"nds", b"", b"", b"", b"first"], "the data:")
    same([result.count for result, _ in results], [3, 0, 1, 0, 5], "the counts:")
    same((results[0][0].value, results[4][0].value), (6, wire.NO_END), "the ends of the files:")


@tests("BATCH-4", "BATCH-10")
def direct_and_inline_operations_mix(bench: Bench) -> None:
    client, file = bench.file(b"0123456789")
    source = client.session.regions.register(bytearray(b"DIRECT"), remote_read=True)
    target = client.session.regions.register(bytearray(6), remote_write=True)
    operations = [
        operation(file, 1, [Extent(20, 3)]),
        operation(file, 1, [Extent(10, 6)], method=DIRECT, ranges=[source.range()]),
        operation(file, 0, [Extent(2, 6)], method=DIRECT, ranges=[target.range()]),
        operation(file, 1, [Extent(30, 2)])]
    reply = ask(client, batch_request(operations, b"onetw"))
    same([result.status for result in reply.payload.results], [0] * 4, "the results:")
    same(bytes(target.memory), b"234567", "what was read directly:")
    same(file.read(10, 30), b"DIRECT" + bytes(4) + b"one" + bytes(7) + b"tw", "what was written:")


@tests("BATCH-8", "BATCH-19", "BATCH-20")
def batches_that_come_again(bench: Bench) -> None:
    client, file = bench.file(b"data")
    request = batch_request([operation(file, 1, [Extent(0, 4)]), operation(file, 0, [Extent(10, 4)])], b"once")
    first = ask(client, request)
    file.write(0, b"otherwise, twice")
    again = ask(client, request)
    same(again.payload.results[0], first.payload.results[0], "the result of the write:")
    same(file.read(0, 5), b"other", "what the write does not write again:")
    same(again.payload.data, b" twi", "what is read anew:")


@tests("BATCH-9")
def handle_of_the_header_stands_for_others(bench: Bench) -> None:
    client, file = bench.file(b"data")
    item = operation(CHAIN_HANDLE, 0, [Extent(0, 4)])
    request = batch_request([item])
    request.header.handle = file.handle
    same(ask(client, request).payload.data, b"data", "the handle of the header:")
    replies = chain(client, Request("Read", file.handle, Record(length=1), flags=wire.SAVE_HANDLE),
                    Request("Batch", CHAIN_HANDLE, request.body, request.payload))
    same(replies[1].payload.data, b"data", "the saved handle:")


@tests("BATCH-21")
def failed_operations_do_not_end_chains(bench: Bench) -> None:
    client, file = bench.file(b"data")
    failing = batch_request([operation(file.handle + 2**40, 0, [Extent(0, 4)])])
    replies = chain(client, Request("Batch", 0, failing.body, failing.payload), Request("Null"))
    same(names(replies), ["OK", "OK"], "a chain with an operation that fails:")
    refused = batch_request([operation(file, 2, [Extent(0, 4)])])
    replies = chain(client, Request("Batch", 0, refused.body, refused.payload), Request("Null"))
    same(names(replies), ["INVALID", "CHAIN_ABORTED"], "a chain with a batch that is refused:")


def notices_of(client: Client, request: Message) -> List[Message]:
    """Send a batch and return the notices that came before its reply."""
    send(client, request)
    notices = []
    while True:
        message = receive(client.session.connection)
        if message.is_reply:
            same(name_of(message), "OK", "the batch:")
            return notices
        if message.name == "BatchDone":
            notices.append(message)


def held_batch(bench: Bench, **fields: int) -> Tuple[Client, Message]:
    """Send a batch with inline reads, and a direct write that the client holds back."""
    client, file = bench.file(b"data" * 100)
    region = client.session.regions.register(bytearray(70_000), remote_read=True)
    operations = [operation(file, 0, [Extent(index, 4)]) for index in range(6)]
    operations.insert(3, operation(file, 1, [Extent(0, 70_000)], method=DIRECT, ranges=[region.range()]))
    client.session.connection.holding = True
    request = batch_request(operations, **fields)
    send(client, request)
    return client, request


def _collect(client: Client, timeout: float) -> List[Message]:
    """Receive callbacks until nothing comes."""
    return [message for message in read_to_end(client.session.connection, timeout).messages if not message.is_reply]


@tests("BATCH-6", "BATCH-14")
def notices_name_the_batch(bench: Bench) -> None:
    client, request = held_batch(bench, flags=NOTIFY, completions=1)
    notices = _collect(client, 0.7)
    if not notices:
        raise Skipped("the server sent no notice of operations that had ended")
    client.session.connection.release()
    notices += _collect(client, 0.7)
    same({(notice.body.slot, notice.body.sequence) for notice in notices}, {(11, 1)}, "slot and sequence:")
    places = [place for notice in notices for place, _ in notice.payload]
    same(len(places), len(set(places)), "each operation at most once:")
    expect(set(places) <= set(range(7)), "places of the batch", places)


@tests("BATCH-6", "BATCH-7", "BATCH-18", "SESS-40")
def notices_are_bounded_and_numbered(bench: Bench) -> None:
    client, file = bench.file()
    connection = client.session.connection
    region = client.session.regions.register(bytearray(20 * 5000), remote_read=True)
    operations = [operation(file, 1, [Extent(index * 10_000, 5000)], method=DIRECT,
                            ranges=[region.range(index * 5000, 5000)]) for index in range(20)]
    connection.holding = True
    send(client, batch_request(operations, flags=NOTIFY, completions=1))
    notices = _release_one_by_one(client, 19)
    if not notices:
        raise Skipped("the server sent no notice of operations that had ended")
    expect(len(notices) <= 8, "at most 8 notices to a client that says nothing", len(notices))
    send(client, make("Null", slot=12))
    more = _collect(client, 0.7)
    told = [place for notice in notices + more for place, _ in notice.payload]
    expect(len(told) == len(set(told)), "each operation told of once at most", told)
    expect(bool(more) or len(told) == 19, "more notices when the client has said something", "none")
    numbers = [notice.header.sequence for notice in notices + more]
    same(numbers, list(range(1, len(numbers) + 1)), "the numbers of callbacks:")


def _release_one_by_one(client: Client, count: int) -> List[Message]:
    """Let the operations of a batch end one after the other; return the notices."""
    connection = client.session.connection
    notices = _collect(client, 0.3)
    for _ in range(count):
        if connection.held:
            connection.release_one()
        notices += _collect(client, 0.05)
    return notices


@tests("BATCH-16")
def empty_batch_expedites(bench: Bench) -> None:
    client, _ = held_batch(bench, flags=NOTIFY, completions=1000, window_us=60_000_000)
    same(len(_collect(client, 0.5)), 0, "notices before the window:")
    empty = batch_request([], flags=EXPEDITE)
    empty.header.slot = 12
    notices = notices_of(client, empty)
    expect(bool(notices), "the notices that are due before the reply", "none")


# Errors.

@tests("ERR-1")
def failures_are_statuses_and_the_session_goes_on(bench: Bench) -> None:
    client, node = bench.dir()
    file = new_file(node, "file", b"data")
    for status, call in (
            ("NOT_FOUND", lambda: node.getattr("none")), ("EXISTS", lambda: node.mkdir("file")),
            ("NOT_DIRECTORY", lambda: node.getattr("file/x")), ("BAD_HANDLE", lambda: client.session.call("Close", 77)),
            ("INVALID", lambda: node.open("file", wire.CREATE)),
            ("NO_DATA", lambda: node.xattr_read("file", b"user.x")),
            ("NO_DEVICE", lambda: file.seek(100, False))):
        same(status_of(call), status, "the status")
    client.null()


@tests("ERR-1")
def errnos_have_their_statuses(bench: Bench) -> None:
    _, node = bench.dir()
    node.mkdir("d")
    node.mkdir("d/e")
    new_file(node, "file").close()
    node.symlink("loop", "loop")
    for status, call in (
            ("NOT_EMPTY", lambda: node.remove("d", directory=True)), ("IS_DIRECTORY", lambda: node.remove("d")),
            ("NOT_DIRECTORY", lambda: node.remove("file", directory=True)), ("LOOP", lambda: node.getattr("loop")),
            ("INVALID", lambda: node.rename("d", "d/e/f")), ("EXISTS", lambda: node.link("file", "d")),
            ("NOT_EMPTY", lambda: (node.mkdir("g"), node.rename("g", "d"))),
            ("NAME_TOO_LONG", lambda: node.symlink("t", "n" * 256))):
        same(status_of(call), status, "the status")


@tests("ERR-1")
def refused_replies_have_words_or_nothing(bench: Bench) -> None:
    client, node = bench.dir()
    reply = ask(client, make("Getattr", handle=node.handle, payload=b"none"))
    same(reply.header.head_len, 40, "the head of a reply that failed:")
    expect(len(reply.payload.encode()) <= 512, "at most 512 bytes of words", len(reply.payload))
