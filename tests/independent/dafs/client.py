"""Files and directories (files.md, lists.md, batch.md), as a program uses them."""
from __future__ import annotations

from types import SimpleNamespace as Record
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import wire
from .session import Address, Identity, Key, Pending, Request, ServerFault, Session
from .tcp import Region
from .wire import DIRECT, INLINE, Entry, Extent, Message, Range, Result

Path = Union[bytes, str]


def as_bytes(path: Path) -> bytes:
    """Take names as bytes; text is UTF-8."""
    return path.encode() if isinstance(path, str) else path


class Node:
    """What a handle names: something open, or a path that was looked up."""

    def __init__(self, session: Session, handle: int, attributes: Record):
        self.session, self.handle, self.attributes = session, handle, attributes

    def _made(self, reply: Message, kind: "type[Node]") -> "Node":
        """Make a node of a reply that has a handle."""
        return kind(self.session, reply.header.handle, reply.payload)

    def lookup(self, path: Path, follow: bool = True) -> "Node":
        """Give a path a handle."""
        return self._made(self.session.call("Lookup", self.handle, as_bytes(path), follow=follow), Node)

    def open(self, path: Path, flags: int = wire.READ, mode: int = 0) -> "File":
        """Open a file, or make it."""
        return self._made(self.session.call("Open", self.handle, as_bytes(path), flags=flags, mode=mode), File)

    def open_token(self, token: bytes) -> "File":
        """Open a file by a token; the node is the root."""
        return self._made(self.session.call("OpenToken", self.handle, token), File)

    def close(self) -> None:
        """Give the handle back."""
        self.session.call("Close", self.handle)

    def getattr(self, path: Path = b"", follow: bool = True) -> Record:
        """Get attributes."""
        return self.session.call("Getattr", self.handle, as_bytes(path), follow=follow).payload

    def setattr(self, path: Path = b"", follow: bool = True, **attributes: object) -> Record:
        """Set mode, uid, gid, atime or mtime."""
        wanted = Record(mode=None, uid=None, gid=None, atime=None, mtime=None)
        vars(wanted).update(attributes)
        payload = Record(path=as_bytes(path), attributes=wanted)
        return self.session.call("Setattr", self.handle, payload, follow=follow).payload

    def readdir(self, attributes: bool = False, length: Optional[int] = None, direct: bool = False) -> Iterator[Entry]:
        """List a directory, a reply at a time."""
        cookie, end = 0, 0
        length = length or self.session.hello.recv_payload_max
        while not end:
            reply, entries = self._readdir_once(cookie, length, attributes, direct)
            yield from entries
            cookie, end = reply.body.cookie, reply.body.end

    def _readdir_once(self, cookie: int, length: int, attributes: bool, direct: bool) -> Tuple[Message, List[Entry]]:
        """Ask for the entries behind a cookie, inline or written into own memory."""
        body = Record(cookie=cookie, length=length, attributes=int(attributes))
        if not direct:
            reply = self.session.call("Readdir", self.handle, **vars(body))
            return reply, reply.payload
        region = self.session.regions.register(bytearray(length), remote_write=True)
        try:
            reply = self.session.call("Readdir", self.handle, key=region.key, range_length=length, **vars(body))
        finally:
            self.session.regions.deregister(region)
        data = bytes(region.memory[:reply.body.count])
        return reply, wire.DirectoryEntries().decode(data, reply.body)

    def mkdir(self, path: Path, mode: int = 0o755) -> Record:
        """Make a directory."""
        return self.session.call("Mkdir", self.handle, as_bytes(path), mode=mode).payload

    def remove(self, path: Path, directory: bool = False) -> None:
        """Remove a file, or an empty directory."""
        self.session.call("Remove", self.handle, as_bytes(path), directory=directory)

    def rename(self, old: Path, new: Path, below: Optional["Node"] = None, replace: bool = True) -> None:
        """Rename a path to another, below this node or another one."""
        self.session.call("Rename", self.handle, (as_bytes(old), as_bytes(new)),
                          second_handle=(below or self).handle, replace=replace)

    def link(self, existing: Path, new: Path, below: Optional["Node"] = None) -> Record:
        """Give a file another name."""
        return self.session.call("Link", self.handle, (as_bytes(existing), as_bytes(new)),
                                 second_handle=(below or self).handle).payload

    def symlink(self, target: Path, path: Path) -> Record:
        """Make a symbolic link."""
        return self.session.call("Symlink", self.handle, (as_bytes(target), as_bytes(path))).payload

    def readlink(self, path: Path) -> bytes:
        """Read where a symbolic link leads."""
        return self.session.call("Readlink", self.handle, as_bytes(path)).payload

    def access_check(self, path: Path, mode: int, follow: bool = True) -> None:
        """Ask whether the path may be read (4), written (2), executed or searched (1)."""
        self.session.call("AccessCheck", self.handle, as_bytes(path), follow=follow, mode=mode)

    def verify(self, flags: int = 0, path: Path = b"", **expected: int) -> None:
        """Compare attributes: change, size, mtime_seconds and mtime_nanoseconds, file_id and generation."""
        bits = dict(change=wire.CHANGE, size=wire.SIZE, mtime_seconds=wire.MTIME, file_id=wire.IDENTITY)
        mask = sum(bit for name, bit in bits.items() if name in expected)
        self.session.call("Verify", self.handle, as_bytes(path), mask=mask, flags=flags, **expected)

    def xattr_read(self, path: Path, name: bytes) -> bytes:
        """Read an extended attribute."""
        return self.session.call("XattrRead", self.handle, _attribute(path, name)).payload

    def xattr_write(self, path: Path, name: bytes, value: bytes, mode: int = 0) -> None:
        """Make or replace (0), make (1) or replace (2) an extended attribute."""
        self.session.call("XattrWrite", self.handle, _attribute(path, name, value), mode=mode)

    def xattr_list(self, path: Path) -> List[bytes]:
        """List the names of extended attributes."""
        names = self.session.call("XattrList", self.handle, _attribute(path, b"")).payload
        return names.split(b"\0")[:-1]

    def xattr_remove(self, path: Path, name: bytes) -> None:
        """Remove an extended attribute."""
        self.session.call("XattrRemove", self.handle, _attribute(path, name))

    def statfs(self, path: Path = b"") -> Record:
        """Get the statistics of the file system."""
        return self.session.call("Statfs", self.handle, as_bytes(path)).payload


def _attribute(path: Path, name: bytes, value: bytes = b"") -> Record:
    """Make the payload of the operations on extended attributes."""
    return Record(path=as_bytes(path), name=name, value=value)


class File(Node):
    """An open file."""

    def read(self, offset: int, length: int, method: Optional[int] = None) -> bytes:
        """Read inline where it fits a message, else direct."""
        method = _method(method, length, self.session.hello.recv_payload_max)
        if method == INLINE:
            return self.finish_read(self.submit_read(offset, length))
        region = self.session.regions.register(bytearray(length), remote_write=True)
        try:
            reply = self.session.call("Read", self.handle, offset=offset, length=length, method=DIRECT, ranges=1,
                                      **_body_range(region.range()))
        finally:
            self.session.regions.deregister(region)
        _check_count(reply.body.count, length, reply.payload, 0)
        return bytes(region.memory[:reply.body.count])

    def submit_read(self, offset: int, length: int) -> Pending:
        """Send an inline read, and do not wait for it."""
        return self.session.submit(Request("Read", self.handle, Record(offset=offset, length=length)))

    def finish_read(self, pending: Pending) -> bytes:
        """Wait for an inline read and return its data."""
        reply = self.session.finish(pending)
        _check_count(reply.body.count, pending.message.body.length, reply.payload, reply.body.count)
        return reply.payload

    def read_into(self, offset: int, ranges: Sequence[Range]) -> int:
        """Read contiguous bytes of the file into several ranges of registered memory."""
        return self.session.call("Read", self.handle, list(ranges), offset=offset, length=wire.total(ranges),
                                 method=DIRECT, ranges=len(ranges)).body.count

    def write(self, offset: int, data: bytes, stability: int = wire.UNSTABLE, method: Optional[int] = None) -> Record:
        """Write inline where the data fits a message, else direct."""
        return self._write("Write", offset, data, stability, method)

    def append(self, data: bytes, stability: int = wire.UNSTABLE, method: Optional[int] = None) -> Record:
        """Append; the reply says where the data went."""
        return self._write("Append", 0, data, stability, method)

    def _write(self, name: str, offset: int, data: bytes, stability: int, method: Optional[int]) -> Record:
        """Write or append."""
        body = dict(offset=offset, length=len(data), stability=stability)
        if _method(method, len(data), self.session.connection.peer.recv_payload_max) == INLINE:
            reply = self.session.call(name, self.handle, data, **body)
        else:
            region = self.session.regions.register(bytearray(data), remote_read=True)
            try:
                reply = self.session.call(name, self.handle, method=DIRECT, ranges=1, **body,
                                          **_body_range(region.range()))
            finally:
                self.session.regions.deregister(region)
        _check_count(reply.body.count, len(data), b"", 0)
        return reply.body

    # Lists and views take further fields of their requests: sieve, flags, group. With the flag EXPLAIN the body that
    # they return has what the server told, as its field `explanation`, or None.

    def read_list(self, extents: Sequence[Extent], method: int = INLINE, **body: int) -> Tuple[bytes, Record]:
        """Read extents; return their bytes, each at its place, and the body of the reply."""
        length = wire.total(extents)
        lists = Record(extents=extents, ranges=[], data=b"")
        body.update(length=length, method=method, extents=len(extents))
        return self._read_parts("ReadList", lists, body)

    def _read_parts(self, name: str, payload: Record, body: Dict[str, int]) -> Tuple[bytes, Record]:
        """Read a list, or what a view shows, inline or into own memory."""
        length = body["length"]
        if body["method"] == INLINE:
            reply = self.session.call(name, self.handle, payload, **body)
            return _split(reply, body, reply.body.count), reply.body
        region = self.session.regions.register(bytearray(length), remote_write=True)
        payload.ranges = _halves(region)
        try:
            reply = self.session.call(name, self.handle, payload, ranges=len(payload.ranges), **body)
        finally:
            self.session.regions.deregister(region)
        _split(reply, body, 0)
        return bytes(region.memory), reply.body

    def write_list(self, extents: Sequence[Extent], data: bytes, stability: int = wire.UNSTABLE,
                   method: int = INLINE, **body: int) -> Record:
        """Write extents, byte n of the data to byte n of the extents."""
        lists = Record(extents=extents, ranges=[], data=data if method == INLINE else b"")
        body.update(length=len(data), method=method, stability=stability, extents=len(extents))
        return self._write_parts("WriteList", lists, data, body)

    def _write_parts(self, name: str, payload: Record, data: bytes, body: Dict[str, int]) -> Record:
        """Write a list, or what a view shows, inline or out of own memory."""
        region = None
        if body["method"] == DIRECT:
            region = self.session.regions.register(bytearray(data), remote_read=True)
            payload.ranges = _halves(region)
        try:
            reply = self.session.call(name, self.handle, payload, ranges=len(payload.ranges), **body)
        finally:
            if region:
                self.session.regions.deregister(region)
        _split(reply, body, 0)
        return reply.body

    def read_view(self, view: int, displacement: int, place: int, length: int, method: int = INLINE,
                  **body: int) -> Tuple[bytes, Record]:
        """Read a range of the data of a view; return its bytes, each at its place, and the body of the reply."""
        body.update(view=view, displacement=displacement, place=place, length=length, method=method)
        return self._read_parts("ReadView", Record(ranges=[], data=b""), body)

    def write_view(self, view: int, displacement: int, place: int, data: bytes, stability: int = wire.UNSTABLE,
                   method: int = INLINE, **body: int) -> Record:
        """Write a range of the data of a view."""
        payload = Record(ranges=[], data=data if method == INLINE else b"")
        body.update(view=view, displacement=displacement, place=place, length=len(data), method=method,
                    stability=stability)
        return self._write_parts("WriteView", payload, data, body)

    def commit(self, offset: int = 0, length: int = 0, stability: int = wire.DATA_SYNC) -> int:
        """Make unstable data durable; return the verifier."""
        return self.session.call("Commit", self.handle, offset=offset, length=length,
                                 stability=stability).body.verifier

    def truncate(self, size: int) -> None:
        """Set the size."""
        self.session.call("Truncate", self.handle, offset=size)

    def allocate(self, offset: int, length: int) -> None:
        """Reserve space."""
        self.session.call("Allocate", self.handle, offset=offset, length=length)

    def punch(self, offset: int, length: int) -> None:
        """Give space back."""
        self.session.call("Punch", self.handle, offset=offset, length=length)

    def seek(self, offset: int, hole: bool) -> int:
        """Find the next data or hole."""
        return self.session.call("Seek", self.handle, offset=offset, what=hole).body.offset

    def copy_from(self, source: "File", source_offset: int, offset: int, length: int = 0) -> Record:
        """Copy a part of another file on the server; tell how much, and whether that file ended."""
        return self.session.call("CopyRange", self.handle, source=source.handle, source_offset=source_offset,
                                 offset=offset, length=length).body

    def hint(self, offset: int, length: int, pattern: int) -> None:
        """Say how the file will be used."""
        self.session.call("Hint", self.handle, offset=offset, length=length, pattern=pattern)

    # Locks of ranges (locks.md). The owner is a number of this client; a length of 0 is all that follows.

    def lock(self, offset: int = 0, length: int = 0, kind: int = wire.EXCLUSIVE_LOCK, flags: int = 0,
             owner: int = 1) -> None:
        """Lock a range; with the flag NOTIFY the status may be WAITING, and the callback `LockTurn` follows."""
        self.session.finish(self.submit_lock(offset, length, kind, flags, owner))

    def submit_lock(self, offset: int = 0, length: int = 0, kind: int = wire.EXCLUSIVE_LOCK, flags: int = wire.WAIT,
                    owner: int = 1, deadline_ms: int = 0) -> Pending:
        """Ask for a lock, and do not wait for the reply."""
        body = Record(offset=offset, length=length, owner=owner, kind=kind, flags=flags)
        return self.session.submit(Request("Lock", self.handle, body, deadline_ms=deadline_ms))

    def unlock(self, offset: int = 0, length: int = 0, owner: int = 1) -> None:
        """Give back what an owner holds of a range."""
        self.session.call("Unlock", self.handle, offset=offset, length=length, owner=owner)

    def test_lock(self, offset: int = 0, length: int = 0, kind: int = wire.EXCLUSIVE_LOCK, owner: int = 1) -> Record:
        """Ask for a lock that is in the way of one."""
        return self.session.call("LockTest", self.handle, offset=offset, length=length, owner=owner, kind=kind).body

    def share(self, rights: int, ttl_ms: int = 0) -> bytes:
        """Make a token by which another session opens this file."""
        return self.session.call("Share", self.handle, rights=rights, ttl_ms=ttl_ms).payload


def _method(method: Optional[int], length: int, inline_max: int) -> int:
    """Choose how data travels, unless the caller did."""
    if method is not None:
        return method
    return INLINE if length <= inline_max else DIRECT


def _body_range(item: Range) -> dict:
    """Name the only range of a request in its body."""
    return dict(key=item.key, range_offset=item.offset, range_length=item.length)


def _halves(region: Region) -> List[Range]:
    """Name a region as two ranges, or as one where it is small."""
    half = len(region.memory) // 2
    return [region.range(0, half), region.range(half)] if half else [region.range()]


def _check_count(count: int, length: int, payload: bytes, inline: int) -> None:
    """Refuse a count beyond what was asked for, and data of another length than its count."""
    if count > length or len(payload) != inline:
        raise ServerFault(f"{count} bytes of {length}, with a payload of {len(payload)}")


def _split(reply: Message, body: Dict[str, int], inline: int) -> bytes:
    """Take the explanation that was asked for out of a reply, and check the count; return the data."""
    data, explanation = reply.payload, None
    if body.get("flags", 0) & wire.EXPLAIN:
        data, explanation = wire.split_explanation(data, inline)
    _check_count(reply.body.count, body["length"], data, inline)
    reply.body.explanation = explanation
    return data


class BatchOperation(Record):
    """An inline operation of a batch: a read, or a write of data."""

    def __init__(self, file: File, extents: Sequence[Extent], data: Optional[bytes] = None, stability: int = 0):
        super().__init__(handle=file.handle, kind=int(data is not None), stability=stability, method=INLINE,
                         length=wire.total(extents), extents=extents, ranges=[])
        self.data = data


class Client:
    """A client of one server."""

    def __init__(self, address: str, key: Optional[Key] = None, identity: Optional[Identity] = None, **options: Any):
        self.address = Address.parse(address)
        self.session = Session(self.address, key, identity, **options)

    def mount(self, export: Optional[str] = None) -> Node:
        """Mount an export, that of the address unless another is named; return its root."""
        reply = self.session.call("Mount", 0, (self.address.export if export is None else export).encode())
        return Node(self.session, reply.header.handle, reply.payload.attributes)

    def null(self) -> None:
        """Say that the client is there."""
        self.session.call("Null")

    def exports(self) -> List[str]:
        """List the exports that may be mounted."""
        return self.session.call("Exports").payload

    def limits(self) -> Record:
        """Get the limits of the session."""
        return self.session.call("Limits").payload

    def statistics(self) -> Record:
        """Get the statistics of the server."""
        return self.session.call("Statistics").payload

    def batch(self, operations: Sequence[BatchOperation], flags: int = 0) -> List[Tuple[Result, bytes]]:
        """Send a batch of inline operations; return the result of each, and what it read."""
        data = b"".join(item.data for item in operations if item.kind)
        reply = self.session.call("Batch", 0, Record(operations=operations, data=data), operations=len(operations),
                                  flags=flags, data=len(data))
        return list(_split_results(operations, reply.payload))

    def set_view(self, view: int, nodes: Sequence[Record], part: int = 0) -> None:
        """Describe a view under a number, in parts of some bytes; 0 for as many as the server takes."""
        description = wire.encode_description(nodes)
        part = part or self.session.connection.peer.recv_payload_max
        for offset in range(0, len(description), part):
            self.session.call("ViewSet", 0, description[offset:offset + part], view=view,
                              description_length=len(description), offset=offset)

    def drop_view(self, view: int) -> None:
        """Give a view back."""
        self.session.call("ViewDrop", 0, view=view)

    def bye(self) -> None:
        """End the session."""
        self.session.bye()


def _split_results(operations: Sequence[BatchOperation], payload: Record) -> Iterator[Tuple[Result, bytes]]:
    """Give each read its data, which stands behind all results ([BATCH-11])."""
    if len(payload.results) != len(operations):
        raise ServerFault(f"{len(payload.results)} results for {len(operations)} operations")
    at = 0
    for item, result in zip(operations, payload.results):
        size = result.count if not item.kind else 0
        yield result, payload.data[at:at + size]
        at += size
