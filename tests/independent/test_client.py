"""Tests of the client against a server, and of its encoding against the vectors.

DAFS_SERVER names the server's binary (default: dafs-server on PATH), DAFS_SPEC the pages of the protocol.
"""
from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace as Record

import vectors
from dafs import msgpack, tcp, wire
from dafs.client import BatchOperation, Client, File
from dafs.session import Address, Identity, Key, Request, SessionLost, StatusError
from dafs.wire import CHAIN_HANDLE, CREATE, DIRECT, EXCLUSIVE, INLINE, Extent
from replay import Replay

SERVER = os.environ.get("DAFS_SERVER", "dafs-server")
SPEC = Path(os.environ.get("DAFS_SPEC", Path(__file__).resolve().parent.parent.parent / "spec" / "protocol")).parent


class Server:
    """A server on loopback, with a directory, memory, a read-only export, and keys."""

    def __init__(self) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="dafs-independent-")
        base = Path(self.scratch.name)
        self.data, self.keys = base / "data", base / "keys"
        self.data.mkdir()
        self._make_keys()
        self.log = open(base / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [SERVER, "--export", f"data={self.data}", "--export", "mem=mem:64M", "--export", f"ro={self.data},ro",
             "--export", f"locked={self.data},keys=lab", "--listen", "tcp://127.0.0.1:0",
             "--key-file", str(self.keys), "--lease-ms", "2000", "--keep-alive-ms", "500"],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = self.process.stdout.readline().split()[1]

    def _make_keys(self) -> None:
        """Make a key file that nobody else may read."""
        line = subprocess.run([SERVER, "keygen", "lab"], check=True, capture_output=True, text=True).stdout
        self.keys.touch(0o600)
        self.keys.write_text(line, encoding="utf-8")

    def stop(self) -> None:
        """End the server."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self.process.stdout.close()
        self.log.close()
        self.scratch.cleanup()


server: Server


def setUpModule() -> None:
    """Start the server."""
    global server
    server = Server()


def tearDownModule() -> None:
    """Stop the server."""
    server.stop()


class WithServer(unittest.TestCase):
    """A test with a client, and a mounted export."""

    export = "data"

    def setUp(self) -> None:
        self.client = Client(f"{server.address}/{self.export}", Key.from_file(server.keys))
        self.session = self.client.session
        self.root = self.client.mount()
        self.root.mkdir(self.id())
        self.dir = self.root.lookup(self.id())

    def tearDown(self) -> None:
        for entry in list(self.dir.readdir(attributes=True)):
            self.dir.remove(entry.name, directory=entry.attributes.kind == "Directory")
        self.root.remove(self.id(), directory=True)
        self.client.bye()

    def make(self, name: str = "file", data: bytes = b"") -> File:
        """Make a file that can be read and written."""
        file = self.dir.open(name, wire.READ | wire.WRITE | CREATE | EXCLUSIVE, 0o644)
        if data:
            file.write(0, data)
        return file

    def fails(self, status: str, call: object, *arguments: object, **named: object) -> None:
        """Expect a status."""
        with self.assertRaises(StatusError) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.name, status)


class Vectors(unittest.TestCase):
    """The golden messages."""

    def test_golden_messages_decode_and_encode(self) -> None:
        count = 0
        for name, head, payload in vectors.golden_messages(SPEC):
            with self.subTest(name):
                self.assertEqual(wire.encode(wire.decode(head, payload)), (head, payload))
            count += 1
        self.assertGreater(count, 90)

    def test_golden_messages_say_what_the_prose_says(self) -> None:
        golden = {name: wire.decode(head, payload) for name, head, payload in vectors.golden_messages(SPEC)}
        read = golden["read direct request"]
        self.assertEqual((read.header.slot, read.header.sequence, read.header.credits), (3, 0x01020304, 16))
        self.assertEqual((read.body.offset, read.body.length, read.body.method), (4096, 65536, DIRECT))
        attributes = golden["lookup reply"].payload
        self.assertEqual((attributes.kind, attributes.mode, attributes.mtime.seconds), ("File", 0o644, -1))
        wanted = golden["setattr request"].payload.attributes
        self.assertEqual((wanted.mode, wanted.gid, wanted.atime, wanted.mtime[0]), (0o600, 100, "Now", "At"))
        self.assertEqual(golden["batch notice"].payload, [(1, wire.Result(0, 4, 4100))])
        self.assertEqual(golden["list read request"].payload.extents, [Extent(4096, 5), Extent(16, 3)])
        self.assertEqual(golden["inline batch reply"].payload.data, b"four")
        self.assertEqual(golden["explained list read request"].body.flags, wire.EXPLAIN)
        data, told = wire.split_explanation(golden["explained list read reply"].payload, 7)
        self.assertEqual((data, told.parts, told.copied, told.measured_ns), (b"explain", 2, 1, 90_210))
        request = golden["explained view write request"].body
        self.assertEqual((request.flags, request.sieve), (wire.EXPLAIN, wire.SIEVE_ON))
        data, told = wire.split_explanation(golden["explained view write reply"].payload, 0)
        self.assertEqual(list(vars(told).values()), [6, 0, 2, 1, 1, 3200, 800, 250, 400, 3300, 4000, 51_000])

    def test_explanation_of_another_length_is_none(self) -> None:
        payload = b"data" + wire.EXPLANATION.encode(Record(parts=9))
        self.assertEqual(wire.split_explanation(payload, 4)[1].parts, 9)
        for other in (b"", payload[:4], payload[:-1], payload + b"-"):
            self.assertEqual(wire.split_explanation(other, 4), (other, None))

    def test_refused_messages_are_refused(self) -> None:
        refused = vectors.refused_messages(SPEC)
        for vector in refused:
            with self.subTest(vector.title):
                expected = wire.Invalid if vector.outcome.startswith("answered") else wire.Refused
                self.assertRaises(expected, wire.decode, vector.head, vector.payload)
        self.assertGreater(len(refused), 140)

    def test_tcp_frames(self) -> None:
        for name, data in vectors.named_bytes(SPEC / "vectors" / "tcp.txt"):
            with self.subTest(name):
                if name.startswith("refused "):
                    self.assertRaises(tcp.Malformed, self.take, name[8:], data)
                else:
                    self.assertEqual(self.take(name, data).encode(), data[:32])

    def take(self, name: str, data: bytes) -> object:
        """Decode a hello or a frame."""
        if name.startswith("hello"):
            return tcp.Hello.decode(data)
        frame = tcp.Frame.decode(data[:32])
        if frame.kind in (tcp.WRITE_LIST, tcp.READ_LIST) and len(data) > 32:
            tcp.decode_ranges(frame, data[32:])
        return frame

    def test_session_vectors(self) -> None:
        for file in ("session.txt", "session-2.txt"):
            lines = dict(vectors.named_bytes(SPEC / "vectors" / file))
            for name, data in lines.items():
                with self.subTest(file=file, name=name):
                    if name.endswith(" hello"):
                        self.assertEqual(tcp.Hello.decode(data).encode(), data)
                    elif name.endswith(" head"):
                        payload = lines.get(name[:-4] + "payload", b"")
                        self.assertEqual(wire.encode(wire.decode(data, payload)), (data, payload))
                        frame = tcp.Frame(tcp.SEND, head_len=len(data), len=len(payload))
                        self.assertEqual(frame.encode(), lines[name[:-4] + "frame"])
                    elif name.endswith(" frame"):
                        self.take(name, data + lines.get(name[:-5] + "ranges", b""))

    def test_proofs_of_the_session_vector(self) -> None:
        lines = dict(vectors.named_bytes(SPEC / "vectors" / "session.txt"))
        hello = lines["client Hello payload"]
        nonces = bytes(range(1, 33)) + bytes(range(0x80, 0xA0))
        key = Key("lab", bytes(range(32)))
        self.assertEqual(b"dafs client" + nonces + hello, lines["client proof input"])
        self.assertEqual(key.proof(b"client", nonces, hello), lines["client proof"])
        self.assertEqual(key.proof(b"server", nonces, hello), lines["server proof"])

    def test_second_session_is_what_a_server_says(self) -> None:
        address = Address.parse(f"{server.address}/data")
        file = server.data / "notes.txt"
        # 17 replies, a callback, three frames of RDMA and two hellos; the reply that is lost is compared too.
        self.assertEqual(Replay(SPEC / "vectors" / "session-2.txt", address.host, address.port).run(), 23)
        self.assertEqual(file.read_bytes(), b"HOWDY, listed world! End")
        file.unlink()

    def test_msgpack_examples(self) -> None:
        examples = {5: "05", 200: "ccc8", 4096: "cd1000", -1: "ff", "lab": "a36c6162", b"\1\2": "c4020102",
                    (1, 2): "920102", "Now": "a34e6f77"}
        for value, text in examples.items():
            self.assertEqual(msgpack.pack(value).hex(), text)
        self.assertEqual(msgpack.pack({"At": [1, 2]}).hex(), "81a24174920102")
        for text in ("", "cd10", "a3", "92 01", "c1", "80", "82", "91" * 100, "dd ffffffff"):
            self.assertRaises(msgpack.MsgpackError, msgpack.unpack, bytes.fromhex(text))


class Connecting(unittest.TestCase):
    """Who gets in."""

    def test_with_a_key(self) -> None:
        client = Client(f"{server.address}/locked", Key.from_file(server.keys))
        client.mount()
        self.assertEqual(sorted(client.exports()), ["data", "locked", "mem", "ro"])
        client.bye()

    def test_with_a_wrong_key(self) -> None:
        for key in (Key("lab", bytes(32)), Key("nobody", bytes(32))):
            with self.assertRaises(StatusError) as caught:
                Client(f"{server.address}/data", key)
            self.assertEqual(caught.exception.name, "AUTH_FAILED")

    def test_without_a_key(self) -> None:
        client = Client(f"{server.address}/data")
        client.mount()
        self.assertNotIn("locked", client.exports())
        with self.assertRaises(StatusError) as caught:
            client.mount("locked")
        self.assertEqual(caught.exception.name, "NO_EXPORT")
        client.bye()

    def test_limits_statistics_and_null(self) -> None:
        client = Client(f"{server.address}/data")
        client.null()
        limits = client.limits()
        self.assertEqual(limits.slots, client.session.welcome.slots)
        self.assertIn("Null", dict(client.statistics().operations))
        client.bye()


class Names(WithServer):
    """Directories and names."""

    def test_walk(self) -> None:
        self.dir.mkdir("d", 0o750)
        self.make("d/f", b"12345").close()
        node = self.dir.lookup("d/f")
        self.assertEqual((node.attributes.kind, node.attributes.size), ("File", 5))
        self.assertEqual(node.getattr().file_id, self.dir.getattr("d/f").file_id)
        self.assertEqual(self.dir.getattr("d").mode, 0o750)
        self.fails("NOT_FOUND", self.dir.lookup, "none")
        self.fails("CROSS_DEVICE", self.root.lookup, "..")
        node.close()
        self.dir.remove("d/f")

    def test_readdir(self) -> None:
        names = {f"name-{index:03}".encode() for index in range(300)}
        for name in names:
            self.make(name.decode()).close()
        for direct in (False, True):
            for attributes in (False, True):
                entries = list(self.dir.readdir(attributes, length=4096, direct=direct))
                self.assertEqual(sorted(entry.name for entry in entries), sorted(names))
        self.fails("RANGE", list, self.dir.readdir(length=4))

    def test_rename_and_remove(self) -> None:
        self.make("a", b"a").close()
        self.make("b", b"bb").close()
        self.fails("EXISTS", self.dir.rename, "a", "b", replace=False)
        self.dir.rename("a", "b")
        self.assertEqual(self.dir.getattr("b").size, 1)
        self.fails("NOT_FOUND", self.dir.remove, "a")
        self.dir.mkdir("d")
        self.dir.rename("b", "c", below=self.dir.lookup("d"))
        self.fails("NOT_EMPTY", self.dir.remove, "d", directory=True)
        self.fails("IS_DIRECTORY", self.dir.remove, "d")
        self.dir.remove("d/c")

    def test_links(self) -> None:
        self.make("file", b"data").close()
        self.assertEqual(self.dir.link("file", "other").links, 2)
        self.assertEqual(self.dir.symlink("file", "link").kind, "Symlink")
        self.assertEqual(self.dir.readlink("link"), b"file")
        self.assertEqual(self.dir.getattr("link").kind, "File")
        self.assertEqual(self.dir.getattr("link", follow=False).kind, "Symlink")
        self.fails("LOOP", self.dir.open, "link", wire.READ | wire.NO_FOLLOW)

    def test_attributes(self) -> None:
        self.make("file").close()
        at = ("At", Record(seconds=-5, nanoseconds=7))
        attributes = self.dir.setattr("file", mode=0o600, mtime=at, atime="Now")
        self.assertEqual((attributes.mode, attributes.mtime), (0o600, at[1]))
        self.dir.access_check("file", 6)
        self.assertGreater(self.dir.statfs().blocks, 0)

    def test_xattr(self) -> None:
        self.make("file").close()
        self.dir.xattr_write("file", b"user.a", b"value", mode=1)
        self.fails("EXISTS", self.dir.xattr_write, "file", b"user.a", b"", mode=1)
        self.assertEqual(self.dir.xattr_read("file", b"user.a"), b"value")
        self.assertEqual(self.dir.xattr_list("file"), [b"user.a"])
        self.dir.xattr_remove("file", b"user.a")
        self.fails("NO_DATA", self.dir.xattr_read, "file", b"user.a")

    def test_read_only(self) -> None:
        root = self.client.mount("ro")
        self.fails("READ_ONLY", root.mkdir, "x")


class Data(WithServer):
    """Reads and writes."""

    def test_inline_and_direct(self) -> None:
        for method in (INLINE, DIRECT):
            file = self.make(f"file-{method}")
            data = os.urandom(16_000)
            self.assertEqual(file.write(3, data, method=method).count, len(data))
            self.assertEqual(file.read(3, len(data), method), data)
            self.assertEqual(file.read(3 + len(data) - 2, 10, method), data[-2:])
            file.close()

    def test_large_direct(self) -> None:
        file, data = self.make(), os.urandom(5_000_000)
        self.assertEqual(file.write(0, data, wire.FILE_SYNC).count, len(data))
        self.assertEqual(file.read(0, len(data)), data)

    def test_direct_into_two_ranges(self) -> None:
        file = self.make(data=b"0123456789")
        region = self.session.regions.register(bytearray(b"-" * 16), remote_write=True)
        self.assertEqual(file.read_into(2, [region.range(0, 3), region.range(8, 4)]), 7)
        self.assertEqual(bytes(region.memory), b"234-----5678----")

    def test_lists(self) -> None:
        file = self.make(data=bytes(100))
        extents = [Extent(90, 5), Extent(10, 0), Extent(20, 3)]
        for method in (INLINE, DIRECT):
            self.assertEqual(file.write_list(extents, b"abcdefgh", wire.DATA_SYNC, method).count, 8)
            data, body = file.read_list(extents + [Extent(98, 4)], method)
            self.assertEqual((data[:10], body.count, body.end), (b"abcdefgh\0\0", 10, 100))

    def test_explained_lists_and_views(self) -> None:
        file = self.make(data=bytes(100))
        extents = [Extent(90, 5), Extent(20, 3)]
        self.client.set_view(1, [wire.node(wire.BYTES_NODE, length=2), wire.node(wire.RESIZED, 0, lower=0, extent=9)])
        for method in (INLINE, DIRECT):
            for flags, parts in ((0, None), (wire.EXPLAIN, 2)):
                fields = dict(method=method, sieve=wire.SIEVE_OFF, flags=flags)
                bodies = [file.write_list(extents, b"abcdefgh", **fields), file.write_view(1, 0, 0, b"abcd", **fields)]
                data, body = file.read_list(extents, **fields)
                shown, other = file.read_view(1, 0, 0, 4, **fields)
                self.assertEqual((data, shown), (b"abcdefgh", b"abcd"))
                for body in (*bodies, body, other):
                    self.assertEqual(body.explanation and body.explanation.parts, parts)

    def test_batch(self) -> None:
        one, two = self.make("one", b"first"), self.make("two", b"second")
        missing = self.make("none", b"x")
        missing.close()
        results = self.client.batch([
            BatchOperation(one, [Extent(0, 2)], b"FI", wire.DATA_SYNC), BatchOperation(two, [Extent(1, 100)]),
            BatchOperation(missing, [Extent(0, 1)]), BatchOperation(two, [Extent(0, 3)])], wire.NOTIFY)
        self.assertEqual([data for _, data in results], [b"", b"econd", b"", b"sec"])
        self.assertEqual([result.status for result, _ in results], [0, 0, wire.STATUSES["BAD_HANDLE"], 0])
        self.assertEqual(results[1][0].value, 6)
        self.assertEqual(one.read(0, 10), b"FIrst")

    def test_append_commit_truncate(self) -> None:
        file = self.make(data=b"abc")
        reply = file.append(b"defg", method=DIRECT)
        self.assertEqual((reply.offset, reply.count), (3, 4))
        self.assertEqual(file.commit(stability=wire.FILE_SYNC), reply.verifier)
        file.truncate(5)
        self.assertEqual(file.read(0, 10), b"abcde")

    def test_allocate_punch_seek_hint(self) -> None:
        file, part = self.make(), 1 << 20
        file.write(0, b"x" * 3 * part)
        file.punch(part, part)
        file.hint(0, 0, 77)
        self.assertEqual(file.read(part - 6, 10), b"x" * 6 + bytes(4))
        self.assertEqual((file.seek(0, True), file.seek(part, False)), (part, 2 * part))
        file.allocate(0, 4 * part)
        self.assertEqual(file.getattr().size, 4 * part)
        self.fails("NO_DEVICE", file.seek, 4 * part, False)

    def test_copy_range(self) -> None:
        source, target = self.make("source", b"0123456789"), self.make("target", b"")
        copied = target.copy_from(source, 2, 1, 4)
        self.assertEqual((copied.count, copied.end), (4, 0))
        copied = target.copy_from(source, 8, 5)
        self.assertEqual((copied.count, copied.end), (2, 1))
        self.assertEqual(target.read(0, 100), b"\x002345" + b"89")
        self.fails("INVALID", source.copy_from, source, 0, 3, 4)

    def test_chain(self) -> None:
        self.make(data=b"hello").close()
        body = Record(flags=wire.READ, mode=0)
        replies = self.session.chain([
            Request("Open", self.dir.handle, body, b"file", wire.SAVE_HANDLE),
            Request("Read", CHAIN_HANDLE, Record(offset=1, length=10)), Request("Close", CHAIN_HANDLE)])
        self.assertEqual([reply.header.status for reply in replies], [0, 0, 0])
        self.assertEqual(replies[1].payload, b"ello")

    def test_verify(self) -> None:
        file = self.make("file", b"12345")
        seen = file.getattr()
        file.verify(change=seen.change, size=5)
        file.verify(wire.DIFFER, size=6)
        self.fails("NOT_SAME", file.verify, size=6)
        self.fails("SAME", file.verify, wire.DIFFER, size=5)
        self.dir.verify(wire.FOLLOW, b"file", file_id=seen.file_id, generation=seen.generation)
        replies = self.session.chain([
            Request("Verify", file.handle, Record(mask=wire.SIZE, size=4), b"", wire.SAVE_HANDLE),
            Request("Write", CHAIN_HANDLE, Record(length=1), b"x")])
        self.assertEqual([wire.status_name(reply.header.status) for reply in replies], ["NOT_SAME", "CHAIN_ABORTED"])

    def test_chain_that_fails(self) -> None:
        replies = self.session.chain([
            Request("Open", self.dir.handle, Record(flags=wire.READ, mode=0), b"none", wire.SAVE_HANDLE),
            Request("Read", CHAIN_HANDLE, Record(offset=1, length=10)), Request("Close", CHAIN_HANDLE)])
        names = [wire.status_name(reply.header.status) for reply in replies]
        self.assertEqual(names, ["NOT_FOUND", "CHAIN_ABORTED", "CHAIN_ABORTED"])

    def test_token(self) -> None:
        token = self.make(data=b"shared").share(wire.READ)
        other = Client(f"{server.address}/{self.export}", Key.from_file(server.keys))
        file = other.mount().open_token(token)
        self.assertEqual(file.read(0, 10), b"shared")
        self.fails("BAD_HANDLE", file.write, 0, b"x")
        other.bye()


class Memory(Data):
    """The same on an export in memory."""

    export = "mem"


class Locks(WithServer):
    """Locks of ranges, between two clients."""

    def setUp(self) -> None:
        super().setUp()
        self.file = self.make("file", b"data")
        self.other = Client(f"{server.address}/{self.export}", Key.from_file(server.keys))
        self.theirs = self.other.mount().open(f"{self.id()}/file", wire.READ | wire.WRITE)

    def tearDown(self) -> None:
        self.other.bye()
        super().tearDown()

    def test_lock_waits_until_another_is_given_back(self) -> None:
        self.file.lock(0, 10, owner=5)
        self.fails("LOCKED", self.theirs.lock, 9, 1)
        found = self.theirs.test_lock(0, 100)
        self.assertEqual((found.offset, found.length, found.owner), (0, 10, 5))
        pending = self.theirs.submit_lock(5, 10)
        self.other.null()
        self.assertIsNone(pending.reply)
        self.file.unlock(0, 10, owner=5)
        self.other.session.finish(pending)
        self.fails("LOCKED", self.file.lock, 14, 0, wire.SHARED_LOCK)

    def test_turn_is_told(self) -> None:
        self.file.lock()
        self.fails("WAITING", self.theirs.lock, 0, 1, flags=wire.WAIT | wire.NOTIFY_LOCK)
        self.file.unlock()
        self.assertEqual(self.other.session.callback("LockTurn").body.handle, self.theirs.handle)
        self.theirs.lock(0, 1, flags=wire.WAIT | wire.NOTIFY_LOCK)


class Sessions(WithServer):
    """What outlives a connection, and what bounds a session."""

    def test_kept_reply_is_given_again(self) -> None:
        file = self.make()
        pending = self.session.submit(Request("Append", file.handle, Record(length=3), b"abc"))
        time.sleep(0.2)
        self.session.connection.close()
        self.session.resume()
        self.assertTrue(self.session.welcome.resumed)
        self.assertEqual(self.session.finish(pending).body.offset, 0)
        self.assertEqual(file.read(0, 10), b"abc")

    def test_request_that_never_arrived_is_sent_again(self) -> None:
        file = self.make()
        self.session.connection.close()
        with self.assertRaises(tcp.ConnectionEnded):
            file.append(b"abc")
        (pending,) = self.session.outstanding.values()
        self.session.resume()
        self.assertEqual(self.session.finish(pending).body.count, 3)
        self.assertEqual(file.read(0, 10), b"abc")

    def test_many_replays(self) -> None:
        file = self.make()
        appends = [self.session.submit(Request("Append", file.handle, Record(length=2), b"%02d" % number))
                   for number in range(10)]
        for _ in range(3):
            self.session.resume()
        offsets = [self.session.finish(pending).body.offset for pending in appends]
        data = file.read(0, 100)
        self.assertEqual([data[offset:offset + 2] for offset in offsets], [b"%02d" % number for number in range(10)])
        self.assertEqual(len(data), 20)

    def test_direct_write_is_replayed(self) -> None:
        file = self.make()
        region = self.session.regions.register(bytearray(b"x" * 100_000), remote_read=True)
        pending = self.session.submit(Request("Write", file.handle, Record(
            offset=0, length=100_000, method=DIRECT, ranges=1, key=region.key, range_offset=0, range_length=100_000)))
        self.session.resume()
        self.assertEqual(self.session.finish(pending).body.count, 100_000)
        self.assertEqual(file.read(0, 100_000), b"x" * 100_000)

    def test_session_that_is_over_is_not_resumed(self) -> None:
        client = Client(f"{server.address}/data")
        client.session.call("Bye")
        with self.assertRaises(SessionLost):
            client.session.resume()
        client.mount()
        client.bye()

    def test_credits_and_slots_are_kept(self) -> None:
        file = self.make(data=b"x" * 100)
        reads = []
        for _ in range(200):
            reads.append(file.submit_read(0, 100))
            self.assertLessEqual(len(self.session.outstanding), self.session.limit)
            self.assertLessEqual(self.session.limit, self.session.welcome.slots)
        self.assertEqual({file.finish_read(read) for read in reads}, {b"x" * 100})

    def test_one_slot(self) -> None:
        client = Client(f"{server.address}/data", slots=1)
        self.assertEqual(client.session.welcome.slots, 1)
        client.mount()
        for _ in range(20):
            client.null()
        client.bye()

    def test_bye_ends_the_session(self) -> None:
        client = Client(f"{server.address}/data", identity=Identity(client_name="leaves"))
        client.mount()
        client.bye()
        self.assertIsNotNone(client.session.connection.ended)


if __name__ == "__main__":
    unittest.main()
