"""files.md: copies, hints, changes by others, files without a name, deny modes."""
from __future__ import annotations

import os
import time
from types import SimpleNamespace as Record
from typing import Tuple

from dafs import wire
from dafs.client import File, Node
from dafs.session import Request
from dafs.wire import CREATE, DENY_READ, DENY_WRITE, DIFFER, EXCLUSIVE, FOLLOW, READ, TRUNCATE, UNNAMED, WRITE

from .bench import Bench, Skipped, expect, fails, name_of, new_file, same, status_of, tests

LARGE = 64 << 20


def copied(into: File, source: File, source_offset: int, offset: int, length: int) -> Tuple[int, bool]:
    """Copy until nothing is left; return how much that was, and what the last reply says of the end."""
    done = 0
    while True:
        reply = into.copy_from(source, source_offset + done, offset + done, length and length - done)
        done += reply.count
        if reply.end or done == length:
            return done, bool(reply.end)
        expect(reply.count > 0, "a byte at least", reply)


# Copies.

@tests("STOR-140", "STOR-141", "STOR-143", "STOR-148")
def copies_are_of_the_range(bench: Bench) -> None:
    _, node = bench.dir()
    data = os.urandom(300_000)
    source, into = new_file(node, "source", data), new_file(node, "into", b"-" * 10)
    for source_offset, offset, length, count, end in (
            (0, 0, 100, 100, False), (10, 7, 200_000, 200_000, False), (299_000, 3, 1000, 1000, False),
            (299_000, 3, 1001, 1000, True), (299_000, 0, 0, 1000, True), (300_000, 0, 5, 0, True),
            (400_000, 0, 5, 0, True), (0, 5000, 0, 300_000, True)):
        what = f"{length} bytes from {source_offset} to {offset}:"
        before = into.read(0, 400_000, wire.DIRECT)
        same(copied(into, source, source_offset, offset, length), (count, end), what)
        part = data[source_offset:source_offset + count]
        wanted = before[:offset].ljust(offset if count else 0, b"\0") + part + before[offset + count:]
        same(into.read(0, 400_000, wire.DIRECT) == (wanted if count else before), True, f"the data after {what}")
    verifier = into.write(0, b"x").verifier
    same(into.copy_from(source, 0, 0, 10).verifier, verifier, "the verifier:")


@tests("STOR-142", "STOR-147")
def copies_that_cannot_be_are_refused(bench: Bench) -> None:
    _, node = bench.dir()
    file = new_file(node, "file", b"0123456789")
    other = new_file(node, "other")
    for source_offset, offset, length in ((0, 0, 5), (0, 4, 5), (4, 0, 5), (0, 1, 0)):
        fails("INVALID", file.copy_from, file, source_offset, offset, length)
    same(copied(file, file, 0, 5, 5), (5, False), "a copy within a file:")
    same(file.read(0, 99), b"0123401234", "the file:")
    writer, reader = node.open("file", WRITE), node.open("other", READ)
    fails("BAD_HANDLE", other.copy_from, writer, 0, 0, 5)
    fails("BAD_HANDLE", reader.copy_from, file, 0, 0, 5)
    fails("BAD_HANDLE", other.copy_from, File(file.session, 2**40, None), 0, 0, 5)
    fails("INVALID", other.copy_from, file, 2**63 - 4, 0, 5)
    fails("TOO_LARGE", other.copy_from, file, 0, 2**63 - 4, 5)
    same(other.getattr().size, 0, "the size of what nothing was copied to:")


@tests("STOR-140")
def copy_moves_a_part_at_least(bench: Bench) -> None:
    _, node = bench.dir()
    source, into = new_file(node, "source"), new_file(node, "into")
    source.truncate(LARGE + 8192)
    # Not at a multiple of a block, so that none can be shared.
    reply = into.copy_from(source, 1, 0, LARGE + 4096)
    expect(0 < reply.count <= LARGE + 4096, "at least one byte, and no more than asked for", reply.count)
    same(reply.end, 0, "whether the source ended:")


# Hints.

@tests("STOR-160", "WIRE-29")
def hints_change_no_data(bench: Bench) -> None:
    _, file = bench.file(os.urandom(200_000))
    data = file.read(0, 200_000, wire.DIRECT)
    for pattern in list(range(6)) + [6, 2**32 - 1]:
        for offset, length in ((0, 0), (4096, 8192), (1 << 40, 5), (2**64 - 1, 2**64 - 1)):
            file.write(100, b"new")
            for likelihood in (0, 1, 50, 100):
                file.session.call("Hint", file.handle, offset=offset, length=length, pattern=pattern,
                                  likelihood=likelihood)
            data = data[:100] + b"new" + data[103:]
            same(file.read(0, 200_000, wire.DIRECT) == data, True, f"what is read after pattern {pattern}:")


# Changes by others.

def _expected(attributes: Record) -> dict:
    """Name all that a verify can compare, as it is."""
    return dict(change=attributes.change, size=attributes.size, mtime_seconds=attributes.mtime.seconds % 2**64,
                mtime_nanoseconds=attributes.mtime.nanoseconds, file_id=attributes.file_id,
                generation=attributes.generation)


@tests("STOR-132", "STOR-133", "WIRE-131")
def verify_compares_what_its_mask_names(bench: Bench) -> None:
    _, node = bench.dir()
    new_file(node, "file", b"data").close()
    node.symlink("file", "link")
    truth = _expected(node.getattr("file"))
    parts = [("change",), ("size",), ("mtime_seconds", "mtime_nanoseconds"), ("file_id", "generation")]
    for bits in range(1, 16):
        names = [name for place, group in enumerate(parts) if bits >> place & 1 for name in group]
        good = {name: truth[name] for name in names}
        same(status_of(node.verify, 0, "file", **good), "OK", f"{names} as they are:")
        same(status_of(node.verify, DIFFER, "file", **good), "SAME", f"{names} that are to differ:")
        for name in names:
            bad = {**good, name: (good[name] + 1) % 10**9}
            same(status_of(node.verify, 0, "file", **bad), "NOT_SAME", f"another {name}:")
            same(status_of(node.verify, DIFFER, "file", **bad), "OK", f"another {name} that is to differ:")
    same(status_of(node.verify, FOLLOW, "link", size=4, file_id=truth["file_id"], generation=truth["generation"]), "OK",
         "a link that is followed:")
    same(status_of(node.verify, 0, "link", file_id=truth["file_id"], generation=truth["generation"]), "NOT_SAME",
         "a link that is not:")


@tests("STOR-130")
def changes_change_the_number(bench: Bench) -> None:
    _, node = bench.dir()
    file = new_file(node, "file", b"data")
    for what, target, change in (
            ("a write", b"file", lambda: file.write(0, b"x")), ("an append", b"file", lambda: file.append(b"x")),
            ("a truncation", b"file", lambda: file.truncate(1)),
            ("a mode", b"file", lambda: node.setattr("file", mode=0o600)),
            ("a name", b"", lambda: node.mkdir("d")), ("a name that is gone", b"", lambda: node.remove("d", True))):
        before = node.getattr(target).change
        # The clock of some file systems ticks 100 times a second.
        time.sleep(0.03)
        change()
        expect(node.getattr(target).change != before, f"another change after {what}", before)
        fails("NOT_SAME", node.verify, 0, target, change=before)


@tests("STOR-132")
def verify_ends_its_chain(bench: Bench) -> None:
    client, node = bench.dir()
    file = new_file(node, "file", b"data")
    body = Record(mask=wire.SIZE, flags=0, size=5)
    replies = client.session.chain([Request("Verify", file.handle, body),
                                    Request("Write", file.handle, Record(length=4), b"DATA")])
    same([name_of(reply) for reply in replies], ["NOT_SAME", "CHAIN_ABORTED"], "the chain:")
    same(file.read(0, 9), b"data", "the file:")


# Files without a name.

def unnamed(bench: Bench, data: bytes = b"") -> Tuple[Node, File]:
    """Make a file without a name in the test's directory."""
    _, node = bench.dir()
    came = status_of(node.open, b"", READ | WRITE | UNNAMED, 0o644)
    if came == "NOT_SUPPORTED":
        raise Skipped("the file system has no files without a name")
    file = node.open(b"", READ | WRITE | UNNAMED, 0o644)
    file.write(0, data)
    return node, file


@tests("STOR-174")
def files_without_a_name_are_made_or_not_supported(bench: Bench) -> None:
    _, node = bench.dir()
    came = status_of(node.open, b"", READ | WRITE | UNNAMED, 0o644)
    expect(came in ("OK", "NOT_SUPPORTED"), "OK or NOT_SUPPORTED", came)
    same(list(node.readdir()), [], "names:")
    for flags in (READ, READ | WRITE | CREATE, READ | WRITE | wire.DIRECTORY, READ | WRITE | TRUNCATE):
        fails("INVALID", node.open, b"", flags | UNNAMED, 0o644)


@tests("STOR-170", "STOR-172")
def files_get_names(bench: Bench) -> None:
    node, file = unnamed(bench, b"new")
    new_file(node, "taken", b"old").close()
    node.mkdir("d")

    def link(name: bytes, replace: int) -> str:
        """Give the file a name; return the status."""
        return status_of(node.session.call, "Link", file.handle, (b"", name), second_handle=node.handle,
                         replace=replace)
    same(link(b"taken", 0), "EXISTS", "a name that is taken:")
    same(node.open("taken").read(0, 9), b"old", "what has the name:")
    same(link(b"d", 1), "IS_DIRECTORY", "the name of a directory:")
    same(link(b"none/x", 1), "NOT_FOUND", "a directory that is not there:")
    same(link(b"taken", 1), "OK", "a name that is replaced:")
    same(node.open("taken").read(0, 9), b"new", "what has the name now:")
    same({entry.name for entry in node.readdir()}, {b"taken", b"d"}, "the names:")


@tests("STOR-171")
def files_without_a_name_leave_none(bench: Bench) -> None:
    node, file = unnamed(bench, b"data")
    same(status_of(node.session.call, "Link", file.handle, (b"", b"d/x"), second_handle=node.handle, replace=1),
         "NOT_FOUND", "a link that fails:")
    node.session.bye()
    _, again = bench.dir()
    same(list(again.readdir()), [], "the names:")


# Deny modes.

ACCESSES = {"read": READ, "write": WRITE, "both": READ | WRITE}


@tests("STOR-150")
def opens_that_conflict_are_denied(bench: Bench) -> None:
    _, node = bench.dir()
    new_file(node, "file", b"data").close()
    node.link("file", "other")
    _, stranger = bench.dir()
    denies = (0, DENY_READ, DENY_WRITE, DENY_READ | DENY_WRITE)
    for held, first in ((access, deny) for access in ACCESSES.values() for deny in denies):
        keeper = node.open("file", held | first)
        for wanted, second in ((access, deny) for access in ACCESSES.values() for deny in denies):
            denied = (first // DENY_READ) & wanted or (second // DENY_READ) & held
            for place, name in ((node, "file"), (stranger, "other")):
                came = status_of(lambda: place.open(name, wanted | second).close())
                same(came, "SHARE_DENIED" if denied else "OK",
                     f"an open with {wanted | second:#x} beside one with {held | first:#x}:")
        keeper.close()


@tests("STOR-151", "STOR-152")
def denied_opens_change_nothing(bench: Bench) -> None:
    _, node = bench.dir()
    file = new_file(node, "file", b"data")
    keeper = node.open("file", READ | DENY_WRITE) if status_of(file.close) == "OK" else file
    fails("SHARE_DENIED", node.open, "file", WRITE | TRUNCATE)
    fails("SHARE_DENIED", node.open, "file", READ | WRITE | CREATE | TRUNCATE, 0o600)
    fails("EXISTS", node.open, "file", READ | WRITE | CREATE | EXCLUSIVE, 0o600)
    attributes = node.getattr("file")
    same((attributes.size, oct(attributes.mode)), (4, oct(0o644)), "the file:")
    keeper.close()
    same(status_of(node.open, "file", WRITE | TRUNCATE), "OK", "an open after the Close:")


@tests("STOR-152")
def opens_count_until_their_session_ends(bench: Bench) -> None:
    holder, holders = bench.dir()
    new_file(holders, "file", b"data").close()
    _, node = bench.dir()
    holders.open("file", READ | DENY_READ | DENY_WRITE)
    fails("SHARE_DENIED", node.open, "file", READ)
    holder.session.resume()
    fails("SHARE_DENIED", node.open, "file", READ)
    holder.bye()
    same(status_of(node.open, "file", READ), "OK", "an open after Bye:")


@tests("STOR-153")
def opens_of_tokens_are_one(bench: Bench) -> None:
    client, node = bench.dir()
    new_file(node, "file", b"data").close()
    file = node.open("file", READ | DENY_READ)
    token = file.share(1, 2000)
    other = client.mount().open_token(token)
    file.close()
    fails("SHARE_DENIED", node.open, "file", READ)
    for _ in range(5):
        time.sleep(0.5)
        client.null()
    fails("SHARE_DENIED", node.open, "file", READ)
    other.close()
    same(status_of(node.open, "file", READ), "OK", "an open when the last of them is closed:")
