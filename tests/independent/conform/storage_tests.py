"""files.md: paths, identity, data, durability, directories, nodes."""
from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace as Record
from typing import Iterator, List

from dafs import wire
from dafs.client import Client, File, Node
from dafs.session import Request
from dafs.wire import DIRECT, READ, WRITE, Message

from .bench import (Bench, Skipped, expect, fails, make, name_of, new_file, receive_reply, same, send, status_of,
                    tests)

END_MAX = 2**63 - 1


# Paths and confinement.

@tests("STOR-1", "STOR-42")
def paths_do_not_leave_the_export(bench: Bench) -> None:
    client, node = bench.dir()
    root = client.mount()
    node.mkdir("d")
    node.symlink("/", "absolute")
    node.symlink("../../..", "above")
    node.symlink(b"../../" + bench.name, "above-and-back")
    for number, call in enumerate((
            lambda: root.getattr(".."), lambda: root.getattr("/"), lambda: root.getattr("/etc/passwd"),
                 lambda: node.getattr("../.."), lambda: node.getattr("absolute"), lambda: node.getattr("above"),
                 lambda: node.getattr("absolute/etc"), lambda: node.getattr("above-and-back"),
                 lambda: node.open("absolute/etc/passwd"), lambda: node.mkdir("../../x"),
                 lambda: node.rename("d", "../../x"), lambda: node.mkdir("above/x"),
                 lambda: node.lookup("d/../../../.."),
                 lambda: node.symlink("t", "/dafs-conform-x"), lambda: node.remove("absolute/x"))):
        came = status_of(call)
        same(came, "CROSS_DEVICE", f"path {number}:")


@tests("STOR-43")
def links_that_leave_the_node_are_followed(bench: Bench) -> None:
    client, node = bench.dir()
    node.mkdir("d")
    new_file(node, "file", b"data").close()
    node.symlink("../file", "d/link")
    below = node.lookup("d")
    same(below.getattr("link").size, 4, "a link that leaves the node:")
    same(below.getattr("../file").size, 4, "a path that leaves the node:")
    same(below.open("link").read(0, 9), b"data", "what is opened by it:")


@tests("STOR-44")
def names_are_bytes(bench: Bench) -> None:
    _, node = bench.dir()
    wanted = {bytes([byte]) * 3 for byte in range(1, 256) if byte != ord("/")} | {b"\xff\xfe", b" "}
    for name in wanted:
        new_file(node, name).close()
    same({entry.name for entry in node.readdir()}, wanted, "the names:")


@tests("STOR-3")
def last_parts_that_are_no_names_are_invalid(bench: Bench) -> None:
    _, node = bench.dir()
    node.mkdir("d")
    for last in (b"", b".", b"..", b"d/.", b"d/.."):
        same(status_of(node.mkdir, last), "INVALID", f"Mkdir {last!r}:")
        same(status_of(node.remove, last, directory=True), "INVALID", f"Remove {last!r}:")
        same(status_of(node.rename, last, b"x"), "INVALID", f"Rename from {last!r}:")
        same(status_of(node.rename, b"d", last), "INVALID", f"Rename to {last!r}:")
        same(status_of(node.link, b"d", last), "INVALID", f"Link to {last!r}:")
        same(status_of(node.symlink, b"t", last), "INVALID", f"Symlink {last!r}:")


@tests("STOR-46")
def slashes_at_the_end_of_directories(bench: Bench) -> None:
    _, node = bench.dir()
    same(status_of(node.mkdir, "d/"), "OK", "Mkdir d/")
    same(status_of(node.mkdir, "d/e///"), "OK", "Mkdir d/e///")
    same(status_of(node.remove, "d/e//", directory=True), "OK", "Remove d/e//")
    same(status_of(node.remove, "d/", directory=True), "OK", "Remove d/")


# Identity.

@tests("STOR-6")
def looked_up_handles_have_no_data(bench: Bench) -> None:
    _, node = bench.dir()
    new_file(node, "file", b"data").close()
    looked = node.lookup("file")
    file = File(looked.session, looked.handle, looked.attributes)
    fails("BAD_HANDLE", file.read, 0, 4)
    fails("BAD_HANDLE", file.write, 0, b"x")
    fails("BAD_HANDLE", file.append, b"x")
    fails("BAD_HANDLE", file.read_list, [wire.Extent(0, 1)])


@tests("STOR-51")
def handles_allow_what_they_were_opened_for(bench: Bench) -> None:
    _, node = bench.dir()
    new_file(node, "file", b"data").close()
    reader, writer = node.open("file", READ), node.open("file", WRITE)
    fails("BAD_HANDLE", reader.write, 0, b"x")
    fails("BAD_HANDLE", reader.write, 0, b"x", 0, DIRECT)
    fails("BAD_HANDLE", reader.append, b"x")
    fails("BAD_HANDLE", reader.write_list, [wire.Extent(0, 1)], b"x")
    fails("BAD_HANDLE", writer.read, 0, 4)
    fails("BAD_HANDLE", writer.read, 0, 4, DIRECT)
    same(reader.read(0, 9), b"data", "the file:")


@tests("STOR-50")
def open_files_outlive_permissions(bench: Bench) -> None:
    _, node = bench.dir()
    file = new_file(node, "file", b"data")
    node.setattr("file", mode=0)
    same(file.read(0, 9), b"data", "what is read:")
    same(status_of(file.write, 0, b"DATA"), "OK", "a write:")


@tests("STOR-52")
def empty_paths_are_checked_when_opened(bench: Bench) -> None:
    client, node = bench.dir()
    if client.limits().uid == 0:
        raise Skipped("this client is root, which may open any file")
    file = new_file(node, "file", b"data")
    node.setattr("file", mode=0)
    fails("ACCESS", file.open, b"", READ)


@tests("STOR-7")
def modes_are_those_of_the_request(bench: Bench) -> None:
    _, node = bench.dir()
    for mode in (0o777, 0o666, 0o700, 0o421):
        node.mkdir(f"d{mode}", mode)
        new_file(node, f"f{mode}", mode=mode).close()
        same(oct(node.getattr(f"d{mode}").mode), oct(mode), "the mode of a directory:")
        same(oct(node.getattr(f"f{mode}").mode), oct(mode), "the mode of a file:")


@tests("STOR-53", "STOR-57")
def set_group_id_is_inherited(bench: Bench) -> None:
    _, node = bench.dir()
    node.mkdir("d", 0o755)
    same(oct(node.setattr("d", mode=0o2755).mode), oct(0o2755), "the mode that was set:")
    node.mkdir("d/e", 0o750)
    same(oct(node.getattr("d/e").mode), oct(0o2750), "the mode of a directory below:")


@tests("STOR-24", "STOR-54")
def changes_of_data_clear_set_id_bits(bench: Bench) -> None:
    _, node = bench.dir()
    for number, change in enumerate((lambda file: file.write(0, b"x"), lambda file: file.append(b"x"),
                                     lambda file: file.truncate(1), lambda file: file.write(0, b"x", 0, DIRECT),
                                     lambda file: file.write_list([wire.Extent(0, 1)], b"x"))):
        file = new_file(node, f"f{number}", b"data")
        same(oct(file.setattr(mode=0o6777).mode), oct(0o6777), "the mode that was set:")
        change(file)
        same(oct(file.getattr().mode), oct(0o777), f"the mode after change {number}:")


@tests("STOR-8", "STOR-58")
def attributes_outside_user_are_root_s(bench: Bench) -> None:
    client, node = bench.dir()
    if client.limits().uid == 0:
        raise Skipped("this client is root")
    for name in (b"trusted.a", b"security.a", b"system.a"):
        fails("PERMISSION", node.xattr_read, "", name)
        fails("PERMISSION", node.xattr_write, "", name, b"v")
        fails("PERMISSION", node.xattr_remove, "", name)


# Data.

@tests("STOR-9", "STOR-59")
def transfers_are_whole(bench: Bench) -> None:
    _, file = bench.file()
    data = os.urandom(3_000_001)
    same(file.write(7, data, method=DIRECT).count, len(data), "the count of a write:")
    same(file.read(0, len(data) + 100, DIRECT) == bytes(7) + data, True, "the data is as written:")
    same(file.read(len(data) + 7, 10), b"", "a read behind the end:")


@tests("STOR-60")
def transfers_end_below_the_largest_offset(bench: Bench) -> None:
    client, file = bench.file(b"data")
    for offset in (END_MAX - 3, END_MAX, 2**63, 2**64 - 4):
        fails("INVALID", file.read, offset, 4)
        fails("INVALID", file.read, offset, 4, DIRECT)
        fails("TOO_LARGE", file.write, offset, b"four")
    same(file.read(END_MAX - 4, 4), b"", "a read up to the largest offset:")


@tests("STOR-11", "STOR-61")
def appends_are_atomic(bench: Bench) -> None:
    client, file = bench.file()
    others = [bench.client().mount().open(bench.name + f"/file-{bench.files}".encode(), WRITE) for _ in range(3)]
    pending = []
    for number in range(30):
        for place, writer in enumerate([file] + others):
            data = bytes([number, place]) * (100 + 700 * place)
            pending.append((writer, data, writer.session.submit(
                Request("Append", writer.handle, Record(length=len(data)), data))))
    replies = [(data, writer.session.finish(item).body) for writer, data, item in pending]
    whole = b"".join(file.read(at, 16_000) for at in range(0, file.getattr().size, 16_000))
    same(sum(len(data) for data, _ in replies), len(whole), "the size:")
    for data, body in replies:
        same(body.count, len(data), "the count:")
        same(whole[body.offset:body.offset + len(data)] == data, True, f"the append of {len(data)} is in one place:")


@tests("STOR-14", "STOR-63", "STOR-64", "STOR-65")
def allocate_punch_and_seek(bench: Bench) -> None:
    _, file = bench.file(b"x" * (3 << 20))
    if status_of(file.punch, 1 << 20, 1 << 20) == "NOT_SUPPORTED":
        raise Skipped("the file system cannot punch")
    file.punch(2 << 20, 8 << 20)
    same(file.getattr().size, 3 << 20, "the size after a punch beyond the end:")
    same(file.read((1 << 20) - 1, 3), b"x\0\0", "the data:")
    fails("NO_DEVICE", file.seek, 2 << 20, False)
    fails("NO_DEVICE", file.seek, 3 << 20, False)
    fails("NO_DEVICE", file.seek, 4 << 20, False)
    fails("INVALID", file.allocate, 0, 0)
    fails("INVALID", file.punch, 5, 0)
    for offset, length in ((END_MAX, 1), (1, 2**63 - 1), (2**64 - 1, 2**64 - 1)):
        fails("TOO_LARGE", file.allocate, offset, length)
        fails("TOO_LARGE", file.punch, offset, length)
    file.allocate(4 << 20, 4096)
    same(file.getattr().size, (4 << 20) + 4096, "the size after an allocation:")
    other = bench.file(b"x" * 10)[1]
    same(other.seek(3, True), 10, "the end of the file as a hole:")


@tests("STOR-28", "STOR-66")
def access_is_checked(bench: Bench) -> None:
    client, node = bench.dir()
    new_file(node, "file", mode=0o600).close()
    same(status_of(node.access_check, "file", 0), "OK", "whether it exists:")
    fails("NOT_FOUND", node.access_check, "none", 0)
    same(status_of(node.access_check, "file", 6), "OK", "read and write:")
    fails("ACCESS", node.access_check, "file", 1)
    same(status_of(node.access_check, "", 7), "OK", "the own directory:")
    for mode in (8, 0o10, 0o7777):
        fails("INVALID", node.access_check, "file", mode)


@tests("STOR-66")
def access_to_write_read_only(bench: Bench) -> None:
    client = bench.client()
    root = bench.read_only_root(client)
    fails("READ_ONLY", root.access_check, "", 2)
    same(status_of(root.access_check, "", 4), "OK", "read access:")


@tests("STOR-27")
def reads_count_what_is_there(bench: Bench) -> None:
    client, file = bench.file(b"x" * 200_000)
    _, node = bench.dir()
    other = node.open(f"file-{bench.files}", READ | WRITE)
    stop = threading.Event()

    def cut() -> None:
        """Cut the file and write it again, over and over."""
        while not stop.is_set():
            other.truncate(1000)
            other.write(0, b"x" * 60_000)
    cutter = threading.Thread(target=cut)
    cutter.start()
    reads = wrong = 0
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            reads += 1
            wrong += bool(file.read(0, 60_000, DIRECT).strip(b"x"))
    finally:
        stop.set()
        cutter.join()
    # A file system may show zeros itself, to pread(2) as well, where it is cut and written at that very moment: once in 20,000 reads.
    expect(wrong * 100 <= reads, "what was written only", f"zeros in {wrong} of {reads} reads")


# Durability.

@tests("STOR-15", "STOR-72", "STOR-73", "STOR-77")
def stability_is_what_was_asked_for(bench: Bench) -> None:
    _, file = bench.file()
    verifiers = set()
    for stability in (wire.UNSTABLE, wire.DATA_SYNC, wire.FILE_SYNC):
        reply = file.write(0, b"data", stability)
        expect(reply.stability >= stability, f"a stability of {stability} at least", reply.stability)
        verifiers.add(reply.verifier)
    verifiers |= {file.commit(stability=1), file.commit(0, 4, 2), file.write_list([wire.Extent(0, 1)], b"x").verifier}
    same(len(verifiers), 1, "one verifier while nothing is lost:")


@tests("STOR-75", "STOR-74")
def directories_can_be_committed(bench: Bench) -> None:
    _, node = bench.dir()
    opened = node.open(b"", READ | wire.DIRECTORY)
    node.mkdir("d")
    same(status_of(opened.commit), "OK", "a commit of a directory:")


# Directories.

@tests("STOR-18", "STOR-80", "STOR-81")
def listings_go_on_behind_cookies(bench: Bench) -> None:
    client, node = bench.dir()
    there = {b"entry-%04d" % number for number in range(1500)}
    for name in there:
        node.symlink("t", name)
    replies = list(_replies(client, node, 900))
    seen = [entry.name for reply in replies for entry in reply.payload]
    same((len(seen), set(seen) == there), (1500, True), "each entry once:")
    expect(b"." not in seen and b".." not in seen, "no . and ..", "them")
    first = replies[0].payload
    again = client.session.call("Readdir", node.handle, cookie=first[4].cookie, length=900).payload
    same(again[0].name, first[5].name, "the entry behind a cookie:")
    largest = client.session.call("Readdir", node.handle, length=1 << 20).payload
    expect(len(largest) <= 1024, "at most 1,024 entries in a reply", len(largest))
    same(len(list(node.readdir(length=1 << 20, direct=True))), 1500, "entries that are listed directly:")


def _replies(client: Client, node: Node, length: int) -> Iterator[Message]:
    """List a directory in small replies."""
    cookie = end = 0
    while not end:
        reply = client.session.call("Readdir", node.handle, cookie=cookie, length=length)
        expect(reply.body.count <= length, f"at most {length} bytes", reply.body.count)
        cookie, end = reply.body.cookie, reply.body.end
        yield reply


@tests("STOR-80")
def entries_that_stay_are_listed_once(bench: Bench) -> None:
    client, node = bench.dir()
    for number in range(300):
        node.symlink("t", f"stay-{number:03}")
        node.symlink("t", f"go-{number:03}")
    seen: List[bytes] = []
    for step, reply in enumerate(_replies(client, node, 700)):
        seen += [entry.name for entry in reply.payload]
        if step < 300:
            node.remove(f"go-{step:03}")
            node.symlink("t", f"come-{step:03}")
        expect(step < 3000, "the end of the listing", "none")
    stay = [name for name in seen if name.startswith(b"stay")]
    same((len(stay), len(set(stay))), (300, 300), "entries that stay:")


@tests("STOR-82")
def entries_that_do_not_fit_are_out_of_range(bench: Bench) -> None:
    client, node = bench.dir()
    node.symlink("t", "name")
    for length in (0, 1, 15):
        fails("RANGE", client.session.call, "Readdir", node.handle, length=length)
    same(len(client.session.call("Readdir", node.handle, length=16).payload), 1, "an entry of 16 bytes:")


# Nodes.

@tests("STOR-19", "STOR-85")
def handles_are_not_used_again(bench: Bench) -> None:
    client, node = bench.dir()
    seen = set()
    for _ in range(300):
        other = node.lookup("")
        expect(other.handle not in seen, "a handle that was not given before", other.handle)
        seen.add(other.handle)
        other.close()
    file = new_file(node, "file", b"data")
    file.close()
    for call in (lambda: file.read(0, 1), file.getattr, file.close, lambda: file.write(0, b"x"), file.commit):
        fails("BAD_HANDLE", call)


@tests("STOR-86")
def operations_in_flight_are_finished(bench: Bench) -> None:
    client, file = bench.file(b"data")
    region = client.session.regions.register(bytearray(b"y" * 100_000), remote_read=True)
    connection = client.session.connection
    connection.holding = True
    send(client, make("Write", handle=file.handle, length=100_000, method=DIRECT, ranges=1, key=region.key,
                      range_length=100_000))
    send(client, make("Close", slot=12, handle=file.handle))
    time.sleep(0.3)
    try:
        while True:
            connection.receive(0.3)
    except TimeoutError:
        pass
    connection.release()
    reply = receive_reply(connection)
    if reply.name == "Close":
        reply = receive_reply(connection)
    same((reply.name, name_of(reply)), ("Write", "OK"), "the write in flight:")


@tests("STOR-4", "STOR-48")
def special_files_are_not_opened(bench: Bench) -> None:
    raise Skipped("a client cannot make a device, a FIFO or a socket")


@tests("STOR-41")
def generations_tell_files_apart(bench: Bench) -> None:
    _, node = bench.dir()
    seen = set()
    for _ in range(20):
        file = new_file(node, "file")
        attributes = file.getattr()
        file.close()
        node.remove("file")
        if attributes.generation == 0:
            raise Skipped("the file system tells no generation")
        name = (attributes.fs_id, attributes.file_id, attributes.generation)
        expect(name not in seen, "another generation or file id for each file", name)
        seen.add(name)


@tests("WIRE-5")
def long_paths_are_walked_or_refused(bench: Bench) -> None:
    _, node = bench.dir()
    node.mkdir("d")
    same(status_of(node.getattr, b"d/../" * 800), "OK", "a path of 1,600 parts:")


@tests("STOR-97")
def sizes_beyond_any_file_are_refused(bench: Bench) -> None:
    _, file = bench.file(b"data")
    fails("TOO_LARGE", file.truncate, 1 << 63)
    same(file.read(0, 10), b"data", "the file:")
