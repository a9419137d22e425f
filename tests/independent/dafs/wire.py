"""Every byte of every message (wire.md): header, bodies, payloads, MessagePack structures.

A message is a head, that is header and body, and a payload. Tables say what each operation has;
`encode` and `decode` follow the tables.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import SimpleNamespace as Record
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import msgpack

HEADER_SIZE = 40
HEAD_MAX = 112
CHAIN_HANDLE = 2**64 - 1
NO_END = 2**64 - 1
FILE_END_MAX = 2**63 - 1
ID_NONE = 2**32 - 1
# Bytes of a name in the handshake.
NAME_MAX = 256

# Flags of the header.
REPLY, CHAIN_FORWARD, CHAIN_BACK, SAVE_HANDLE, CALLBACK, REPLAY = 1, 2, 4, 8, 16, 32
# Features.
CHAINS, CALLBACKS, RESUME, EAGER_BUFFERS, LISTS, BATCHES, TOKENS, LOCKS, VIEWS, EXPLAINS, LOCAL_FILES = (
    1 << bit for bit in range(11))
FEATURES_ALL = 0x7FF
# Methods and stabilities.
INLINE, DIRECT, EAGER, CLIENT_INITIATED = range(4)
UNSTABLE, DATA_SYNC, FILE_SYNC = range(3)
# Flags of an open, of a share and of a batch.
READ, WRITE, CREATE, EXCLUSIVE, TRUNCATE, NO_FOLLOW, DIRECTORY, DIRECT_IO, DENY_READ, DENY_WRITE, UNNAMED = (
    1 << bit for bit in range(11))
NOTIFY, EXPEDITE = 1, 2
# Of a list or a view: what lies between its extents, and its flags.
SIEVE_AUTO, SIEVE_ON, SIEVE_OFF = range(3)
EXPLAIN = 1
# What a verify compares, and how.
CHANGE, SIZE, MTIME, IDENTITY = 1, 2, 4, 8
DIFFER, FOLLOW = 1, 2
# Kinds of a lock, the last of a test's reply alone, and flags of one.
SHARED_LOCK, EXCLUSIVE_LOCK, BROKEN_LOCK = 1, 2, 3
WAIT, MANDATORY, RECLAIM, NOTIFY_LOCK, CANCEL, PERSISTENT, REPAIR, LAST = (1 << bit for bit in range(8))

STATUSES = {
    "OK": 0, "PERMISSION": 1, "NOT_FOUND": 2, "IO": 5, "NO_DEVICE": 6, "BAD_HANDLE": 9, "AGAIN": 11,
    "NO_MEMORY": 12, "ACCESS": 13, "BUSY": 16, "EXISTS": 17, "CROSS_DEVICE": 18, "NOT_DIRECTORY": 20,
    "IS_DIRECTORY": 21, "INVALID": 22, "TOO_MANY_OPEN": 24, "FILE_BUSY": 26, "TOO_LARGE": 27, "NO_SPACE": 28,
    "READ_ONLY": 30, "TOO_MANY_LINKS": 31, "RANGE": 34, "NAME_TOO_LONG": 36, "NOT_EMPTY": 39, "LOOP": 40,
    "NO_DATA": 61, "NOT_SUPPORTED": 95, "TIMED_OUT": 110, "STALE": 116, "QUOTA": 122, "CANCELLED": 125,
    "CHAIN_ABORTED": 0x1001, "FENCED": 0x1002, "NO_EXPORT": 0x1003, "FALSE_RETRY": 0x1004, "NO_SESSION": 0x1005,
    "AUTH_FAILED": 0x1006, "AUTH_REQUIRED": 0x1007, "VERSION": 0x1008, "SERVER_FULL": 0x1009, "DRAINING": 0x100A,
    "REMOTE_ACCESS": 0x100B, "NO_TOKEN": 0x100C, "NOT_SAME": 0x1020, "SAME": 0x1021,
    "SHARE_DENIED": 0x1022, "DEADLOCK": 35, "TOO_MANY_LOCKS": 37, "LOCKED": 0x1010, "WAITING": 0x1011,
    "LOCK_BROKEN": 0x1012, "GRACE": 0x1013, "NO_RECLAIM": 0x1014, "NO_VIEW": 0x1030, "TOO_MANY_VIEWS": 0x1031,
}
STATUS_NAMES = {number: name for name, number in STATUSES.items()}


def status_name(status: int) -> str:
    """Name a status; one that is not known is its number ([ERR-4])."""
    return STATUS_NAMES.get(status, f"status {status:#x}")


class Refused(Exception):
    """The message is a protocol fault: the receiver ends connection and session."""


class EndsTooEarly(Refused):
    """Bytes of a field are missing."""


class LeftOver(Refused):
    """Something follows the last field."""


class BeyondLimit(Refused):
    """A count or length is larger than its table allows."""


class NotZero(Refused):
    """A reserved byte that is not zero."""


class NotAllowed(Refused):
    """A value that its table does not list. In the body of a request it is only wrong: see `Invalid`."""


class NotTheStructure(Refused):
    """MessagePack that is not the structure of its table."""


class Invalid(Exception):
    """The request is wrong: a server answers it with INVALID, and the session goes on ([WIRE-138])."""


class TooLongAName(Exception):
    """A name or path longer than any: of a request a server answers it with NAME_TOO_LONG ([WIRE-142])."""


def need(holds: bool, error: type, words: str) -> None:
    """Raise the error unless the condition holds."""
    if not holds:
        raise error(words)


class Reader:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """Take bytes that must be there."""
        need(count <= len(self.data) - self.at, EndsTooEarly, f"{count} bytes wanted at {self.at}")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, form: str) -> int:
        """Take a little-endian number."""
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def rest(self) -> bytes:
        """Take all that is left."""
        return self.take(len(self.data) - self.at)

    def end(self) -> None:
        """Refuse what is left over."""
        need(self.at == len(self.data), LeftOver, f"{len(self.data) - self.at} bytes left over")


# Fixed layouts.

class Field(NamedTuple):
    """A field of a body: its name ("-" is reserved), struct form, and what it may be."""

    name: str
    form: str
    allowed: Optional[Sequence[int]] = None
    limit: Optional[int] = None


class Layout:
    """A fixed layout: fields without gaps, little-endian ([WIRE-1])."""

    def __init__(self, *fields: Field):
        self.fields = fields
        self.struct = struct.Struct("<" + "".join(item.form for item in fields))

    def encode(self, body: Record) -> bytes:
        """Encode a body; fields that it does not name are 0."""
        return self.struct.pack(*(_field_value(item, body) for item in self.fields))

    def decode(self, data: bytes) -> Record:
        """Decode a body, and check each field."""
        need(len(data) >= self.struct.size, EndsTooEarly, f"a body of {len(data)} bytes, not {self.struct.size}")
        need(len(data) == self.struct.size, LeftOver, f"a body of {len(data)} bytes, not {self.struct.size}")
        body = Record()
        for item, value in zip(self.fields, self.struct.unpack(data)):
            _check_field(item, value)
            if item.name != "-":
                setattr(body, item.name, value)
        return body


def _field_value(item: Field, body: Record) -> Any:
    """Find what to encode for a field."""
    return getattr(body, item.name, b"" if "s" in item.form else 0)


def _check_field(item: Field, value: Any) -> None:
    """Refuse a value that the table of a field does not list."""
    if item.name == "-":
        need(value == 0 or value == bytes(struct.calcsize(item.form)), NotZero, "a reserved byte")
    if item.allowed is not None:
        need(value in item.allowed, NotAllowed, f"{item.name} {value}")
    if item.limit is not None:
        need(value <= item.limit, BeyondLimit, f"{item.name} {value} is beyond {item.limit}")


U8, U16, U32, U64 = "B", "H", "I", "Q"
BOOLEAN = (0, 1)
ZERO = (0,)
STABILITIES = (UNSTABLE, DATA_SYNC, FILE_SYNC)
SIEVES = (SIEVE_AUTO, SIEVE_ON, SIEVE_OFF)
MODES = range(0o10000)

HEADER = Layout(
    Field("opcode", U16), Field("flags", U16, range(0x40)), Field("slot", U32), Field("sequence", U32),
    Field("credits", U16, range(1, 1 << 16)), Field("head_len", U16), Field("payload_len", U32), Field("status", U32),
    Field("handle", U64), Field("deadline_ms", U32), Field("-", U32))
NOTHING = Layout()
RANGE_FIELDS = (Field("key", U64), Field("range_offset", U64), Field("range_length", U64))
READ_REQUEST = Layout(
    Field("offset", U64), Field("length", U32), Field("method", U8, range(4)), Field("-", U8),
    Field("ranges", U16, range(257)), *RANGE_FIELDS)
READ_REPLY = Layout(Field("count", U32), Field("end_of_file", U32, BOOLEAN))
WRITE_REQUEST = Layout(
    Field("offset", U64), Field("length", U32), Field("method", U8, range(4)), Field("stability", U8, STABILITIES),
    Field("ranges", U16, range(257)), *RANGE_FIELDS)
WRITE_REPLY = Layout(
    Field("offset", U64), Field("count", U32), Field("stability", U8, STABILITIES), Field("-", "3s"),
    Field("verifier", U64))
LIST_REQUEST = Layout(
    Field("length", U32), Field("method", U8, range(4)), Field("stability", U8, STABILITIES),
    Field("sieve", U8, SIEVES), Field("flags", U8, range(2)), Field("extents", U32), Field("ranges", U32))
LIST_READ_REQUEST = Layout(
    Field("length", U32), Field("method", U8, range(4)), Field("stability", U8, ZERO),
    Field("sieve", U8, SIEVES), Field("flags", U8, range(2)), Field("extents", U32), Field("ranges", U32))
LIST_READ_REPLY = Layout(Field("count", U32), Field("end_of_file", U32, BOOLEAN), Field("end", U64))
EXPLANATION = Layout(
    Field("parts", U32), Field("copied", U32), Field("calls", U32), Field("windows", U32), Field("waited", U32),
    Field("gap_max", U32), Field("call_ns", U32), Field("byte_ps", U32), Field("window_bytes", U64),
    Field("predicted_ns", U64), Field("apart_ns", U64), Field("measured_ns", U64))
VIEW_SET_REQUEST = Layout(Field("view", U32), Field("description_length", U32), Field("offset", U32), Field("-", U32))
VIEW_DROP_REQUEST = Layout(Field("view", U32), Field("-", U32))


def _view_request(stabilities: Sequence[int]) -> Layout:
    """Lay out a request of a view; a read has no stability."""
    return Layout(
        Field("displacement", U64), Field("place", U64), Field("group", U64), Field("group_size", U32),
        Field("view", U32), Field("length", U32), Field("method", U8, range(4)), Field("stability", U8, stabilities),
        Field("sieve", U8, SIEVES), Field("flags", U8, range(2)), Field("ranges", U32), Field("-", U32))


VIEW_REQUEST, VIEW_READ_REQUEST = _view_request(STABILITIES), _view_request(ZERO)
BATCH_REQUEST = Layout(
    Field("operations", U32), Field("flags", U32, range(4)), Field("window_us", U32), Field("completions", U32),
    Field("data", U32), Field("-", U32))
BATCH_REPLY = Layout(Field("operations", U32), Field("data", U32))
BATCH_NOTICE = Layout(Field("slot", U32), Field("sequence", U32), Field("results", U32), Field("-", U32))
COMMIT_REQUEST = Layout(
    Field("offset", U64), Field("length", U64), Field("stability", U8, (DATA_SYNC, FILE_SYNC)), Field("-", "7s"))
COMMIT_REPLY = Layout(Field("verifier", U64))
RANGE_REQUEST = Layout(Field("offset", U64), Field("length", U64))
TRUNCATE_REQUEST = Layout(Field("offset", U64), Field("length", U64, ZERO))
SEEK_REQUEST = Layout(Field("offset", U64), Field("what", U32, BOOLEAN), Field("-", U32))
SEEK_REPLY = Layout(Field("offset", U64))
COPY_REQUEST = Layout(Field("source", U64), Field("source_offset", U64), Field("offset", U64), Field("length", U64))
COPY_REPLY = Layout(Field("count", U64), Field("verifier", U64), Field("end", U32, BOOLEAN), Field("-", U32))
HINT_REQUEST = Layout(Field("offset", U64), Field("length", U64), Field("pattern", U32), Field("likelihood", U32, range(101)))
READDIR_REQUEST = Layout(
    Field("cookie", U64), Field("length", U32), Field("attributes", U32, BOOLEAN), *RANGE_FIELDS)
READDIR_REPLY = Layout(Field("count", U32), Field("end", U32, BOOLEAN), Field("cookie", U64))
OPEN_REQUEST = Layout(Field("flags", U32, range(0x800)), Field("mode", U32, MODES))
LOCK_REQUEST = Layout(
    Field("offset", U64), Field("length", U64), Field("owner", U64), Field("kind", U16, range(1, 3)),
    Field("flags", U16, range(0x100)), Field("-", U32))
UNLOCK_REQUEST = Layout(Field("offset", U64), Field("length", U64), Field("owner", U64))
LOCK_TEST_REPLY = Layout(
    Field("conflicts", U32, BOOLEAN), Field("kind", U32, range(4)), Field("offset", U64), Field("length", U64),
    Field("owner", U64), Field("client_id", "16s"))
RECALL = Layout(Field("handle", U64))
LOCK_TURN = Layout(Field("handle", U64), Field("offset", U64), Field("length", U64), Field("owner", U64))
SHARE_REQUEST = Layout(Field("rights", U32, range(4)), Field("ttl_ms", U32))
SHARE_REPLY = Layout(Field("ttl_ms", U32), Field("-", U32))
EAGER_TERMS = Layout(
    Field("count", U16, range(33)), Field("reads", U16, BOOLEAN), Field("size", U32, range(1_044_481)))
NAME_REQUEST = Layout(Field("follow", U32, BOOLEAN), Field("mode", U32, ZERO))
ACCESS_REQUEST = Layout(Field("follow", U32, BOOLEAN), Field("mode", U32, MODES))
MKDIR_REQUEST = Layout(Field("follow", U32, ZERO), Field("mode", U32, MODES))
MKNOD_REQUEST = Layout(Field("kind", U32, range(4)), Field("mode", U32, MODES), Field("device", U64))
PLAIN_NAME_REQUEST = Layout(Field("follow", U32, ZERO), Field("mode", U32, ZERO))
XATTR_WRITE_REQUEST = Layout(Field("follow", U32, ZERO), Field("mode", U32, range(3)))
VERIFY_REQUEST = Layout(
    Field("mask", U32, range(1, 0x10)), Field("flags", U32, range(4)), Field("change", U64), Field("size", U64),
    Field("mtime_seconds", U64), Field("mtime_nanoseconds", U32, range(10**9)), Field("-", U32), Field("file_id", U64),
    Field("generation", U64))
REMOVE_REQUEST = Layout(Field("directory", U32, BOOLEAN), Field("-", U32))
RENAME_REQUEST = Layout(Field("second_handle", U64), Field("replace", U32, range(3)), Field("-", U32))
LINK_REQUEST = Layout(Field("second_handle", U64), Field("replace", U32, BOOLEAN), Field("-", U32))
NOTICE = Layout(Field("kind", U32))


# MessagePack structures. A type is a function that takes a decoded value and returns what it
# stands for, or refuses it; `plain` is the way back.

class Type:
    """A type of a field in MessagePack."""

    def check(self, value: Any) -> Any:
        """Return what a decoded value stands for, or refuse it."""
        raise NotImplementedError

    def plain(self, value: Any) -> Any:
        """Return what to encode for a value."""
        return value


class Number(Type):
    """An integer from least to most ([WIRE-44])."""

    def __init__(self, most: int, least: int = 0):
        self.least, self.most = least, most

    def check(self, value: Any) -> int:
        """Refuse what is no number, or beyond the type."""
        is_number = isinstance(value, int) and not isinstance(value, bool)
        need(is_number and self.least <= value <= self.most, NotTheStructure, f"{value!r} is no such number")
        return value


class Plain(Type):
    """A bool, string or binary."""

    def __init__(self, kind: type):
        self.kind = kind

    def check(self, value: Any) -> Any:
        """Refuse another kind."""
        need(isinstance(value, self.kind), NotTheStructure, f"{value!r} is no {self.kind.__name__}")
        return value


class ByteArray(Type):
    """bytes[N]: an array of N integers."""

    def __init__(self, size: int):
        self.size = size

    def check(self, value: Any) -> bytes:
        """Make bytes of the array."""
        right = isinstance(value, list) and len(value) == self.size
        need(right, NotTheStructure, f"no array of {self.size} numbers")
        return bytes(Number(255).check(number) for number in value)

    def plain(self, value: bytes) -> List[int]:
        """Make an array of the bytes."""
        return list(value)


class Array(Type):
    """T[]: an array of any length, or of a fixed one."""

    def __init__(self, element: Type, count: Optional[int] = None):
        self.element, self.count = element, count

    def check(self, value: Any) -> List[Any]:
        """Check each element."""
        need(isinstance(value, list), NotTheStructure, f"{value!r} is no array")
        need(self.count in (None, len(value)), NotTheStructure, f"an array of {len(value)} elements")
        return [self.element.check(item) for item in value]

    def plain(self, value: Sequence[Any]) -> List[Any]:
        """Make plain values of all elements."""
        return [self.element.plain(item) for item in value]


class OrNil(Type):
    """T or nil."""

    def __init__(self, inner: Type):
        self.inner = inner

    def check(self, value: Any) -> Any:
        """Let nil pass."""
        return None if value is None else self.inner.check(value)

    def plain(self, value: Any) -> Any:
        """Let None pass."""
        return None if value is None else self.inner.plain(value)


class Names(Type):
    """An enumeration of names alone."""

    def __init__(self, *names: str):
        self.names = names

    def check(self, value: Any) -> str:
        """Refuse another name."""
        need(isinstance(value, str) and value in self.names, NotTheStructure, f"{value!r} is none of {self.names}")
        return value


class SetTime(Type):
    """"Now", or "At" with a timestamp: here ("At", timestamp)."""

    def check(self, value: Any) -> Any:
        """Take "Now" or a pair."""
        if value == "Now":
            return value
        need(isinstance(value, dict) and list(value) == ["At"], NotTheStructure, f"{value!r} is no SetTime")
        return ("At", TIMESTAMP.check(value["At"]))

    def plain(self, value: Any) -> Any:
        """Make "Now" or a map of one pair."""
        return value if value == "Now" else {"At": TIMESTAMP.plain(value[1])}


class Structure(Type):
    """An array of fields in the order of their table ([WIRE-37], [WIRE-34])."""

    def __init__(self, fields: Dict[str, Type], may_be_absent: int = 0):
        self.fields, self.may_be_absent = fields, may_be_absent

    def check(self, value: Any) -> Record:
        """Make a record of the array; absent fields are None."""
        need(isinstance(value, list), NotTheStructure, f"{value!r} is no structure")
        least = len(self.fields) - self.may_be_absent
        need(least <= len(value) <= len(self.fields), NotTheStructure, f"a structure of {len(value)} fields")
        record = Record(**{name: None for name in self.fields})
        for (name, kind), item in zip(self.fields.items(), value):
            setattr(record, name, kind.check(item))
        return record

    def plain(self, value: Record) -> List[Any]:
        """Make an array of the record, without absent fields at the end."""
        present = [(name, kind) for name, kind in self.fields.items()]
        while self.may_be_absent and len(present) > len(self.fields) - self.may_be_absent \
                and getattr(value, present[-1][0], None) is None:
            present.pop()
        return [kind.plain(getattr(value, name)) for name, kind in present]


M16, M32, M64 = Number(2**16 - 1), Number(2**32 - 1), Number(2**64 - 1)
BOOL, STRING, BINARY = Plain(bool), Plain(str), Plain(bytes)
PAIR = Array(M64, 2)


class Count(Type):
    """A pair of a name and a number."""

    def check(self, value: Any) -> Tuple[str, int]:
        """Take an array of string and u64."""
        need(isinstance(value, list) and len(value) == 2, NotTheStructure, f"{value!r} is no pair")
        return (STRING.check(value[0]), M64.check(value[1]))


RESUME_BODY = Structure({"session": M64, "secret": ByteArray(16)})
HELLO = Structure({
    "version_min": M16, "version_max": M16, "features": M64, "nonce": ByteArray(32), "key_name": STRING,
    "client_id": ByteArray(16), "client_name": STRING, "uid": M32, "gid": M32, "groups": Array(M32), "slots": M16,
    "resume": OrNil(RESUME_BODY)})
HELLO_REPLY = Structure({"version": M16, "nonce": ByteArray(32), "key_required": BOOL, "server_name": STRING})
AUTHENTICATE = Structure({"proof": BINARY})
CROSSOVERS = Structure({
    "read_registered": M32, "read_unregistered": M32, "write_registered": M32, "write_unregistered": M32})
THRESHOLDS = Structure({"read_inline_max": M32, "write_inline_max": M32, "crossovers": CROSSOVERS})
SLOT_REPORT = Structure({"slot": M32, "sequence": M32, "executed": BOOL})
OUTCOME_REPLY = Structure({"status": M32, "offset": M64, "payload": BINARY})
SLOT_OUTCOME = Structure({"slot": M32, "sequence": M32, "reply": OrNil(OUTCOME_REPLY)})
CLUSTER_TERMS = Structure({"term_ms": M32, "servers": Array(STRING), "outcomes": OrNil(Array(SLOT_OUTCOME))})
WELCOME = Structure({
    "session": M64, "secret": ByteArray(16), "resumed": BOOL, "server_epoch": M64, "features": M64, "slots": M16,
    "credits": M16, "keep_alive_ms": M32, "lease_ms": M32, "thresholds": THRESHOLDS, "transfer_size_max": M32,
    "handles_max": M32, "slot_reports": Array(SLOT_REPORT), "gather": OrNil(CROSSOVERS),
    "cluster": OrNil(CLUSTER_TERMS)}, may_be_absent=2)
AUTHENTICATE_REPLY = Structure({"proof": BINARY, "welcome": WELCOME})
LIMITS_REPLY = Structure({
    "thresholds": THRESHOLDS, "transfer_size_max": M32, "handles_max": M32, "slots": M16, "credits": M16,
    "uid": M32, "gid": M32})
EXPORT_STATISTICS = Structure({"name": STRING, "bytes_read": M64, "bytes_written": M64})
CLIENT_STATISTICS = Structure({
    "client_id": ByteArray(16), "name": STRING, "address": STRING, "key": STRING, "sessions": M64})
ZONE_STATISTICS = Structure({
    "size": M64, "total": M64, "free": M64, "lent": M64, "lent_from_bigger": M64, "chops": M64, "waits": M64})
PIPELINE_STATISTICS = Structure({
    "listener": STRING, "chunk_size": M64, "depth": M64, "overlaps": M64, "chunks": M64})
STATISTICS = Structure({
    "uptime_ms": M64, "sessions": M64, "connections": M64, "in_flight": M64, "handles": M64,
    "operations": Array(Count()), "bytes_read": PAIR, "bytes_written": PAIR, "replies_replayed": M64,
    "protocol_errors": M64, "storage_waits": M64, "exports": Array(EXPORT_STATISTICS), "bytes_eager": PAIR,
    "bytes_client_initiated": PAIR, "eager_buffers_size": M64, "zones": Array(ZONE_STATISTICS),
    "pipelines": Array(PIPELINE_STATISTICS), "clients": Array(CLIENT_STATISTICS),
    "sieved_windows": M64}, may_be_absent=7)
EXPORT_NAMES = Array(STRING)
TIMESTAMP = Structure({"seconds": Number(2**63 - 1, -2**63), "nanoseconds": Number(10**9 - 1)})
ATTRIBUTES = Structure({
    "kind": Names("File", "Directory", "Symlink", "BlockDevice", "CharDevice", "Fifo", "Socket"),
    "mode": M32, "links": M32, "uid": M32, "gid": M32, "size": M64, "allocated": M64, "file_id": M64, "fs_id": M64,
    "atime": TIMESTAMP, "mtime": TIMESTAMP, "ctime": TIMESTAMP, "device": M64, "generation": M64,
    "change": M64})
MOUNT_REPLY = Structure({"read_only": BOOL, "attributes": ATTRIBUTES})
SET_ATTRIBUTES = Structure({
    "mode": OrNil(M32), "uid": OrNil(M32), "gid": OrNil(M32), "atime": OrNil(SetTime()), "mtime": OrNil(SetTime())})
FS_STATISTICS = Structure({
    "block_size": M64, "blocks": M64, "blocks_free": M64, "blocks_available": M64, "files": M64, "files_free": M64,
    "name_size_max": M32})
FENCE_FIELDS = {
    "mode": Names("Deny", "Allow"), "clients": Array(ByteArray(16)), "keys": Array(STRING), "addresses": Array(STRING)}
FENCE_LIST = Structure(FENCE_FIELDS)
FENCE_CHANGE = Structure({**FENCE_FIELDS, "before": ByteArray(32)}, may_be_absent=1)


def encode_structure(kind: Type, value: Any) -> bytes:
    """Encode a structure as MessagePack."""
    return msgpack.pack(kind.plain(value))


def decode_structure(kind: Type, data: bytes) -> Any:
    """Decode a structure that fills the bytes."""
    try:
        return kind.check(msgpack.unpack(data))
    except msgpack.Left as error:
        raise LeftOver(str(error)) from error
    except msgpack.MsgpackError as error:
        raise NotTheStructure(str(error)) from error


# Payloads. Each has `encode(value, body)` and `decode(data, body)`; the body has counts and method.

class Payload:
    """Bytes that need no decoding: data, a path, a name."""

    def encode(self, value: Any, body: Record) -> bytes:
        """Encode the value."""
        return bytes(value or b"")

    def decode(self, data: bytes, body: Record) -> Any:
        """Decode the bytes."""
        return data


class Empty(Payload):
    """No payload."""

    def decode(self, data: bytes, body: Record) -> None:
        """Refuse any byte."""
        Reader(data).end()


class Packed(Payload):
    """A structure in MessagePack."""

    def __init__(self, kind: Type):
        self.kind = kind

    def encode(self, value: Any, body: Record) -> bytes:
        """Encode the structure."""
        return encode_structure(self.kind, value)

    def decode(self, data: bytes, body: Record) -> Any:
        """Decode the structure."""
        return decode_structure(self.kind, data)


class Token(Payload):
    """32 bytes ([WIRE-12])."""

    def decode(self, data: bytes, body: Record) -> bytes:
        """Refuse any other number of bytes."""
        reader = Reader(data)
        token = reader.take(32)
        reader.end()
        return token


def _counted(data: bytes) -> bytes:
    """Encode bytes with their length in front."""
    return struct.pack("<H", len(data)) + data


def _take_counted(reader: Reader, limit: int) -> bytes:
    """Take bytes with their length in front ([WIRE-142])."""
    length = reader.number(U16)
    need(length <= limit, TooLongAName, f"a length of {length}")
    return reader.take(length)


PATH_MAX, ATTRIBUTE_NAME_MAX, ENTRY_NAME_MAX = 4096, 255, 255


class PathAndAttributes(Payload):
    """A path, and what to set."""

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode path and attributes."""
        return _counted(value.path) + encode_structure(SET_ATTRIBUTES, value.attributes)

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode path and attributes."""
        reader = Reader(data)
        path = _take_counted(reader, PATH_MAX)
        return Record(path=path, attributes=decode_structure(SET_ATTRIBUTES, reader.rest()))


class TwoNames(Payload):
    """Two paths, or the target of a symbolic link and its path."""

    def encode(self, value: Tuple[bytes, bytes], body: Record) -> bytes:
        """Encode both."""
        return _counted(value[0]) + _counted(value[1])

    def decode(self, data: bytes, body: Record) -> Tuple[bytes, bytes]:
        """Decode both."""
        reader = Reader(data)
        names = (_take_counted(reader, PATH_MAX), _take_counted(reader, PATH_MAX))
        reader.end()
        return names


class AttributeNames(Payload):
    """A path, the name of an extended attribute, and for XattrWrite its value."""

    def __init__(self, has_value: bool):
        self.has_value = has_value

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode path, name and value."""
        return _counted(value.path) + _counted(value.name) + value.value

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode path, name and value."""
        reader = Reader(data)
        names = Record(path=_take_counted(reader, PATH_MAX), name=_take_counted(reader, ATTRIBUTE_NAME_MAX), value=b"")
        if self.has_value:
            names.value = reader.rest()
        reader.end()
        return names


class Range(NamedTuple):
    """Bytes of registered memory."""

    key: int
    offset: int
    length: int


class Extent(NamedTuple):
    """Bytes of a file."""

    offset: int
    length: int


def encode_ranges(ranges: Sequence[Range]) -> bytes:
    """Encode ranges, 24 bytes each."""
    return b"".join(struct.pack("<QQQ", *item) for item in ranges)


def encode_extents(extents: Sequence[Extent]) -> bytes:
    """Encode extents, 12 bytes each."""
    return b"".join(struct.pack("<QI", *item) for item in extents)


def take_ranges(reader: Reader, count: int) -> List[Range]:
    """Take ranges."""
    return [Range(*struct.unpack("<QQQ", reader.take(24))) for _ in range(count)]


def take_extents(reader: Reader, count: int) -> List[Extent]:
    """Take extents."""
    return [Extent(*struct.unpack("<QI", reader.take(12))) for _ in range(count)]


def total(parts: Sequence[Any]) -> int:
    """Add the lengths of extents or ranges."""
    return sum(part.length for part in parts)


class Transfer(Payload):
    """Of a read or write: data of an inline write, or ranges when there is more than one."""

    def __init__(self, has_data: bool):
        self.has_data = has_data

    def encode(self, value: Any, body: Record) -> bytes:
        """Encode data, or ranges."""
        return encode_ranges(value) if getattr(body, "ranges", 0) > 1 else bytes(value or b"")

    def decode(self, data: bytes, body: Record) -> Any:
        """Decode data or ranges, and check the method against both ([WIRE-138], [WIRE-7])."""
        need((body.ranges > 0) == (body.method == DIRECT), NotAllowed, f"method {body.method}, {body.ranges} ranges")
        _check_body_range(body)
        if body.method == INLINE and self.has_data:
            need(len(data) >= body.length, EndsTooEarly, f"{len(data)} bytes of data for {body.length}")
            need(len(data) == body.length, LeftOver, f"{len(data)} bytes of data for {body.length}")
            return data
        reader = Reader(data)
        ranges = take_ranges(reader, body.ranges) if body.ranges > 1 else []
        reader.end()
        return ranges


def _check_body_range(body: Record) -> None:
    """Check the range in the body of a read or write: the only one, an eager buffer, or zeros."""
    if body.ranges != 1:
        key = 0 if body.method in (EAGER, CLIENT_INITIATED) else body.key
        need(not (key or body.range_offset or body.range_length), NotAllowed, "a range in the body")


EXTENTS_MAX, RANGES_MAX, OPERATIONS_MAX = 4096, 4096, 1024


def check_extents(extents: Sequence[Extent]) -> None:
    """Answer INVALID to an extent beyond what a file may have ([LIST-19])."""
    for extent in extents:
        need(extent.offset + extent.length <= FILE_END_MAX, Invalid, f"an extent at {extent.offset}")


def check_total(what: str, parts: Sequence[Any], length: int) -> None:
    """Answer INVALID to parts that do not add up to the length ([LIST-1])."""
    need(total(parts) == length, Invalid, f"{what} of {total(parts)} bytes in all, where the request says {length}")


class Lists(Payload):
    """Extents, ranges, and the data of an inline WriteList ([WIRE-10])."""

    def __init__(self, has_data: bool):
        self.has_data = has_data

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode extents, ranges and data."""
        return encode_extents(value.extents) + encode_ranges(value.ranges) + value.data

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode a list; what contradicts itself is answered INVALID ([LIST-7])."""
        need(body.method in (INLINE, DIRECT), Invalid, f"method {body.method}")
        need(body.extents <= EXTENTS_MAX and body.ranges <= RANGES_MAX, Invalid, "too many extents or ranges")
        need((body.ranges > 0) == (body.method == DIRECT), Invalid, f"method {body.method}, {body.ranges} ranges")
        inline = body.length if self.has_data and body.method == INLINE else 0
        need(len(data) == 12 * body.extents + 24 * body.ranges + inline, Invalid, f"a payload of {len(data)} bytes")
        reader = Reader(data)
        lists = Record(extents=take_extents(reader, body.extents), ranges=take_ranges(reader, body.ranges))
        lists.data = reader.rest()
        check_extents(lists.extents)
        check_total("extents", lists.extents, body.length)
        if lists.ranges:
            check_total("ranges", lists.ranges, body.length)
        return lists


def split_explanation(payload: bytes, length: int) -> Tuple[bytes, Optional[Record]]:
    """Take what explains a list from behind its data; without exactly its bytes there is none ([LIST-48])."""
    if len(payload) != length + EXPLANATION.struct.size:
        return payload, None
    return payload[:length], EXPLANATION.decode(payload[length:])


class ViewTransfer(Payload):
    """Of a ReadView or WriteView: ranges of memory, and the data of an inline write."""

    def __init__(self, has_data: bool):
        self.has_data = has_data

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode ranges and data."""
        return encode_ranges(value.ranges) + value.data

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode ranges and data; what contradicts itself is answered INVALID ([VIEW-12], [LIST-7])."""
        need(body.method in (INLINE, DIRECT), Invalid, f"method {body.method}")
        need(body.ranges <= RANGES_MAX, Invalid, "too many ranges")
        need((body.ranges > 0) == (body.method == DIRECT), Invalid, f"method {body.method}, {body.ranges} ranges")
        inline = body.length if self.has_data and body.method == INLINE else 0
        need(len(data) == 24 * body.ranges + inline, Invalid, f"a payload of {len(data)} bytes")
        reader = Reader(data)
        ranges = take_ranges(reader, body.ranges)
        if ranges:
            check_total("ranges", ranges, body.length)
        return Record(ranges=ranges, data=reader.rest())


NODES_MAX, ENTRIES_MAX, DIMENSIONS_MAX, DESCRIPTION_MAX = 4096, 65_536, 32, 2 << 20
(BYTES_NODE, CONTIGUOUS, VECTOR, HVECTOR, INDEXED, HINDEXED, INDEXED_BLOCK, HINDEXED_BLOCK, STRUCT, SUBARRAY, DARRAY,
 RESIZED) = range(12)
ORDER_C, ORDER_FORTRAN = range(2)
NOT_DEALT, BLOCK, CYCLIC = range(3)

I64 = "q"
_COUNTED_BLOCKS = (("count", U64), ("block_length", U64), ("stride", I64))
_BLOCKS = (("block_length", U64), ("displacement", I64))
NODE_FIELDS: Dict[int, Tuple[Tuple[str, str], ...]] = {
    BYTES_NODE: (("length", U64),), CONTIGUOUS: (("count", U64),), VECTOR: _COUNTED_BLOCKS, HVECTOR: _COUNTED_BLOCKS,
    INDEXED_BLOCK: (("block_length", U64),), HINDEXED_BLOCK: (("block_length", U64),),
    DARRAY: (("processes", U32), ("process", U32)), RESIZED: (("lower", I64), ("extent", I64)),
}
ENTRY_FIELDS: Dict[int, Tuple[Tuple[str, str], ...]] = {
    INDEXED: _BLOCKS, HINDEXED: _BLOCKS, INDEXED_BLOCK: (("displacement", I64),),
    HINDEXED_BLOCK: (("displacement", I64),), STRUCT: _BLOCKS + (("of", U32), ("-", U32)),
    SUBARRAY: (("size", U64), ("subsize", U64), ("start", U64)),
    DARRAY: (("size", U64), ("block", U64), ("distribution", U32), ("grid_processes", U32)),
}


def node(kind: int, of: int = 0, entries: Sequence[Sequence[int]] = (), order: int = ORDER_C, **fields: int) -> Record:
    """Make a node of a description; an entry has its fields in the order of their table."""
    names = [name for name, _ in ENTRY_FIELDS.get(kind, ()) if name != "-"]
    return Record(kind=kind, order=order, of=of, entries=[Record(**dict(zip(names, entry))) for entry in entries],
                  **fields)


def _pack_fields(fields: Sequence[Tuple[str, str]], value: Record) -> bytes:
    """Encode fields without gaps; a reserved one is 0."""
    return b"".join(struct.pack("<" + form, getattr(value, name, 0)) for name, form in fields)


def encode_description(nodes: Sequence[Record]) -> bytes:
    """Encode the description of a view."""
    parts = [struct.pack("<II", len(nodes), 0)]
    for item in nodes:
        parts.append(struct.pack("<BBHIII", item.kind, item.order, 0, item.of, len(item.entries), 0))
        parts.append(_pack_fields(NODE_FIELDS.get(item.kind, ()), item))
        parts += [_pack_fields(ENTRY_FIELDS[item.kind], entry) for entry in item.entries]
    return b"".join(parts)


def decode_description(data: bytes) -> List[Record]:
    """Decode the description of a view; what is wrong with it is answered INVALID ([VIEW-4])."""
    reader = Reader(data)
    try:
        count, reserved = reader.number(U32), reader.number(U32)
        need(1 <= count <= NODES_MAX and reserved == 0, Invalid, f"{count} nodes, or a reserved byte")
        nodes = [_take_node(reader, number) for number in range(count)]
        reader.end()
    except Refused as error:
        raise Invalid(str(error)) from error
    entries = sum(len(item.entries) for item in nodes)
    need(entries <= ENTRIES_MAX, Invalid, f"{entries} entries of all nodes")
    return nodes


def _take_fields(reader: Reader, fields: Sequence[Tuple[str, str]]) -> Record:
    """Take fields without gaps."""
    value = Record()
    for name, form in fields:
        number = reader.number(form)
        need(name != "-" or number == 0, Invalid, "a reserved byte")
        if name != "-":
            setattr(value, name, number)
    return value


def _take_node(reader: Reader, number: int) -> Record:
    """Take a node, and check what it says of itself and of those before it."""
    kind, order, reserved, of, count, reserved_too = struct.unpack("<BBHIII", reader.take(16))
    need(kind <= RESIZED and not (reserved or reserved_too), Invalid, f"kind {kind}, or a reserved byte")
    need(order <= (kind in (SUBARRAY, DARRAY)), Invalid, f"order {order} of kind {kind}")
    need(of < number if kind not in (BYTES_NODE, STRUCT) else of == 0, Invalid, f"node {number} is of {of}")
    entry_fields = ENTRY_FIELDS.get(kind, ())
    need(count == 0 or bool(entry_fields), Invalid, f"{count} entries of kind {kind}")
    item = _take_fields(reader, NODE_FIELDS.get(kind, ()))
    size = struct.calcsize("<" + "".join(form for _, form in entry_fields))
    need(count * size <= len(reader.data) - reader.at, Invalid, f"{count} entries that are not there")
    item.entries = [_take_fields(reader, entry_fields) for _ in range(count)]
    item.kind, item.order, item.of = kind, order, of
    _check_entries(item, number)
    return item


def _check_entries(item: Record, number: int) -> None:
    """Check the entries of a node against each other."""
    if item.kind == STRUCT:
        need(all(entry.of < number for entry in item.entries), Invalid, f"a block of node {number}")
    if item.kind in (SUBARRAY, DARRAY):
        need(1 <= len(item.entries) <= DIMENSIONS_MAX, Invalid, f"{len(item.entries)} dimensions")
    if item.kind == SUBARRAY:
        need(all(entry.start + entry.subsize <= entry.size for entry in item.entries), Invalid, "a part of an array")
    if item.kind == DARRAY:
        _check_grid(item)


def _check_grid(item: Record) -> None:
    """Check how an array is dealt out."""
    grid = 1
    for entry in item.entries:
        grid *= entry.grid_processes
        need(entry.distribution <= CYCLIC, Invalid, f"distribution {entry.distribution}")
        if entry.distribution == NOT_DEALT:
            need(entry.grid_processes == 1 and entry.block == 0, Invalid, "a dimension that is not dealt out")
        if entry.distribution == BLOCK and entry.block:
            need(entry.block * entry.grid_processes >= entry.size, Invalid, "blocks that do not cover a dimension")
    need(item.process < item.processes == grid, Invalid, f"process {item.process} of {item.processes} in {grid}")


class DescriptionPart(Payload):
    """A description of a view: a list of nodes where all of it is here, else bytes."""

    def encode(self, value: Any, body: Record) -> bytes:
        """Encode the nodes, or take the bytes."""
        return value if isinstance(value, bytes) else encode_description(value)

    def decode(self, data: bytes, body: Record) -> Any:
        """Decode a description, or check a part of one ([VIEW-7])."""
        need(1 <= body.description_length <= DESCRIPTION_MAX, Invalid, f"{body.description_length} bytes")
        need(0 < len(data) <= body.description_length - body.offset, Invalid, f"{len(data)} bytes at {body.offset}")
        return decode_description(data) if len(data) == body.description_length else data


_OPERATION = struct.Struct("<QBBBBIII")


class BatchOperations(Payload):
    """Operations, and the data of inline writes behind them ([BATCH-10])."""

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode operations and data."""
        return b"".join(map(self._encode_operation, value.operations)) + value.data

    def _encode_operation(self, item: Record) -> bytes:
        """Encode one operation."""
        head = _OPERATION.pack(item.handle, item.kind, item.stability, item.method, 0, item.length,
                               len(item.extents), len(item.ranges))
        return head + encode_extents(item.extents) + encode_ranges(item.ranges)

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode a batch; what contradicts itself is answered INVALID ([BATCH-2])."""
        need(body.flags & NOTIFY or not (body.window_us or body.completions), NotAllowed, "hints without NOTIFY")
        need(body.operations <= OPERATIONS_MAX, Invalid, f"{body.operations} operations")
        reader = Reader(data)
        try:
            operations = [self._take_operation(reader) for _ in range(body.operations)]
        except EndsTooEarly as error:
            raise Invalid(str(error)) from error
        inline = sum(item.length for item in operations if item.kind == 1 and item.method == INLINE)
        rest = reader.rest()
        need(len(rest) == body.data == inline, Invalid, f"data of {len(rest)} bytes for writes of {inline}")
        return Record(operations=operations, data=rest)

    def _take_operation(self, reader: Reader) -> Record:
        """Take one operation and check it ([WIRE-11])."""
        fields = _OPERATION.unpack(reader.take(_OPERATION.size))
        handle, kind, stability, method, reserved, length, extents, ranges = fields
        need(kind in BOOLEAN and method in (INLINE, DIRECT) and reserved == 0, Invalid, "kind, method or reserved")
        need(stability in (STABILITIES if kind else (0,)), Invalid, f"stability {stability}")
        need((ranges > 0) == (method == DIRECT), Invalid, f"method {method}, {ranges} ranges")
        need(extents <= EXTENTS_MAX and ranges <= RANGES_MAX, Invalid, "too many extents or ranges")
        item = Record(handle=handle, kind=kind, stability=stability, method=method, length=length,
                      extents=take_extents(reader, extents), ranges=take_ranges(reader, ranges))
        check_extents(item.extents)
        check_total("extents", item.extents, length)
        if ranges:
            check_total("ranges", item.ranges, length)
        return item


class Result(NamedTuple):
    """What became of an operation of a batch."""

    status: int
    count: int
    value: int


_RESULT = struct.Struct("<IIQ")


def take_result(reader: Reader) -> Result:
    """Take a result, and refuse one that failed and has a count or value ([WIRE-43])."""
    result = Result(*_RESULT.unpack(reader.take(_RESULT.size)))
    need(result.status == 0 or not (result.count or result.value), NotAllowed, "a failed result with a count")
    return result


class BatchResults(Payload):
    """Results, and the data of inline reads behind them ([BATCH-11])."""

    def encode(self, value: Record, body: Record) -> bytes:
        """Encode results and data."""
        return b"".join(_RESULT.pack(*result) for result in value.results) + value.data

    def decode(self, data: bytes, body: Record) -> Record:
        """Decode results and data."""
        reader = Reader(data)
        results = [take_result(reader) for _ in range(body.operations)]
        rest = reader.take(body.data)
        reader.end()
        return Record(results=results, data=rest)


class NoticedResults(Payload):
    """Results with their places."""

    def encode(self, value: Sequence[Tuple[int, Result]], body: Record) -> bytes:
        """Encode places and results."""
        return b"".join(struct.pack("<II", place, 0) + _RESULT.pack(*result) for place, result in value)

    def decode(self, data: bytes, body: Record) -> List[Tuple[int, Result]]:
        """Decode places and results."""
        reader = Reader(data)
        noticed = []
        for _ in range(body.results):
            place, reserved = reader.number(U32), reader.number(U32)
            need(reserved == 0, NotZero, "a reserved byte")
            noticed.append((place, take_result(reader)))
        reader.end()
        return noticed


class Entry(NamedTuple):
    """An entry of a directory."""

    cookie: int
    name: bytes
    attributes: Optional[Record]


class DirectoryEntries(Payload):
    """Entries, one behind the other; no bytes where the server wrote them into a range."""

    def encode(self, value: Sequence[Entry], body: Record) -> bytes:
        """Encode the entries."""
        return b"".join(map(self._encode_entry, value))

    def _encode_entry(self, entry: Entry) -> bytes:
        """Encode one entry."""
        attributes = encode_structure(ATTRIBUTES, entry.attributes) if entry.attributes else b""
        return struct.pack("<Q", entry.cookie) + _counted(entry.name) + _counted(attributes)

    def decode(self, data: bytes, body: Record) -> List[Entry]:
        """Decode the entries."""
        need(len(data) in (0, body.count), NotAllowed, f"{len(data)} bytes of entries, not {body.count}")
        reader, entries = Reader(data), []
        while reader.at < len(data):
            cookie, name = reader.number(U64), _take_counted(reader, ENTRY_NAME_MAX)
            need(name and b"/" not in name, NotAllowed, f"the name {name!r}")
            packed = _take_counted(reader, 512)
            entries.append(Entry(cookie, name, decode_structure(ATTRIBUTES, packed) if packed else None))
        return entries


class EagerRanges(Payload):
    """One range for each eager buffer."""

    def encode(self, value: Sequence[Range], body: Record) -> bytes:
        """Encode the ranges."""
        return encode_ranges(value)

    def decode(self, data: bytes, body: Record) -> List[Range]:
        """Decode the ranges."""
        reader = Reader(data)
        ranges = take_ranges(reader, body.count)
        reader.end()
        return ranges


class Words(Payload):
    """An explanation in words, for people."""

    def encode(self, value: str, body: Record) -> bytes:
        """Encode the words."""
        return value.encode()

    def decode(self, data: bytes, body: Record) -> str:
        """Decode the words, which may be cut within a character."""
        return data.decode(errors="replace")


# Operations.

@dataclass(frozen=True)
class Operation:
    """What an opcode has, in requests (callbacks count as such) and in replies."""

    name: str
    request_body: Layout = NOTHING
    request_payload: Payload = field(default_factory=Empty)
    reply_body: Layout = NOTHING
    reply_payload: Payload = field(default_factory=Empty)


BYTES = Payload()
_ATTRIBUTES = Packed(ATTRIBUTES)
OPERATIONS: Dict[int, Operation] = {
    0x0000: Operation("Null"),
    0x0001: Operation("Hello", request_payload=Packed(HELLO), reply_payload=Packed(HELLO_REPLY)),
    0x0002: Operation("Authenticate", request_payload=Packed(AUTHENTICATE), reply_payload=Packed(AUTHENTICATE_REPLY)),
    0x0003: Operation("Bye"),
    0x0004: Operation("Limits", reply_payload=Packed(LIMITS_REPLY)),
    0x0005: Operation("Statistics", reply_payload=Packed(STATISTICS)),
    0x0006: Operation("Exports", reply_payload=Packed(EXPORT_NAMES)),
    0x0007: Operation("EagerBuffers", EAGER_TERMS, EagerRanges(), EAGER_TERMS, EagerRanges()),
    0x0008: Operation("Publish", request_payload=Packed(CROSSOVERS)),
    0x0010: Operation("Mount", NOTHING, BYTES, NOTHING, Packed(MOUNT_REPLY)),
    0x0011: Operation("Lookup", NAME_REQUEST, BYTES, NOTHING, _ATTRIBUTES),
    0x0012: Operation("Open", OPEN_REQUEST, BYTES, NOTHING, _ATTRIBUTES),
    0x0013: Operation("Close"),
    0x0014: Operation("Getattr", NAME_REQUEST, BYTES, NOTHING, _ATTRIBUTES),
    0x0015: Operation("Setattr", NAME_REQUEST, PathAndAttributes(), NOTHING, _ATTRIBUTES),
    0x0016: Operation("Share", SHARE_REQUEST, Empty(), SHARE_REPLY, Token()),
    0x0017: Operation("OpenToken", NOTHING, Token(), NOTHING, _ATTRIBUTES),
    0x0018: Operation("HandOver"),
    0x0020: Operation("Read", READ_REQUEST, Transfer(False), READ_REPLY, BYTES),
    0x0021: Operation("Write", WRITE_REQUEST, Transfer(True), WRITE_REPLY),
    0x0022: Operation("Append", WRITE_REQUEST, Transfer(True), WRITE_REPLY),
    0x0023: Operation("Commit", COMMIT_REQUEST, Empty(), COMMIT_REPLY),
    0x0024: Operation("Truncate", TRUNCATE_REQUEST),
    0x0025: Operation("Allocate", RANGE_REQUEST),
    0x0026: Operation("Punch", RANGE_REQUEST),
    0x0027: Operation("Seek", SEEK_REQUEST, Empty(), SEEK_REPLY),
    0x0028: Operation("Hint", HINT_REQUEST),
    0x0029: Operation("ReadList", LIST_READ_REQUEST, Lists(False), LIST_READ_REPLY, BYTES),
    0x002A: Operation("WriteList", LIST_REQUEST, Lists(True), WRITE_REPLY, BYTES),
    0x002B: Operation("Batch", BATCH_REQUEST, BatchOperations(), BATCH_REPLY, BatchResults()),
    0x002C: Operation("CopyRange", COPY_REQUEST, Empty(), COPY_REPLY),
    0x002D: Operation("ReadView", VIEW_READ_REQUEST, ViewTransfer(False), LIST_READ_REPLY, BYTES),
    0x002E: Operation("WriteView", VIEW_REQUEST, ViewTransfer(True), WRITE_REPLY, BYTES),
    0x0030: Operation("Readdir", READDIR_REQUEST, Empty(), READDIR_REPLY, DirectoryEntries()),
    0x0031: Operation("Mkdir", MKDIR_REQUEST, BYTES, NOTHING, _ATTRIBUTES),
    0x0032: Operation("Remove", REMOVE_REQUEST, BYTES),
    0x0033: Operation("Rename", RENAME_REQUEST, TwoNames()),
    0x0034: Operation("Link", LINK_REQUEST, TwoNames(), NOTHING, _ATTRIBUTES),
    0x0035: Operation("Symlink", PLAIN_NAME_REQUEST, TwoNames(), NOTHING, _ATTRIBUTES),
    0x0036: Operation("Readlink", PLAIN_NAME_REQUEST, BYTES, NOTHING, BYTES),
    0x0037: Operation("AccessCheck", ACCESS_REQUEST, BYTES),
    0x0038: Operation("Verify", VERIFY_REQUEST, BYTES),
    0x0039: Operation("Mknod", MKNOD_REQUEST, BYTES, NOTHING, _ATTRIBUTES),
    0x0040: Operation("XattrRead", PLAIN_NAME_REQUEST, AttributeNames(False), NOTHING, BYTES),
    0x0041: Operation("XattrWrite", XATTR_WRITE_REQUEST, AttributeNames(True)),
    0x0042: Operation("XattrList", PLAIN_NAME_REQUEST, AttributeNames(False), NOTHING, BYTES),
    0x0043: Operation("XattrRemove", PLAIN_NAME_REQUEST, AttributeNames(False)),
    0x0044: Operation("Statfs", NAME_REQUEST, BYTES, NOTHING, Packed(FS_STATISTICS)),
    0x0050: Operation("FenceWrite", NOTHING, Packed(FENCE_CHANGE)),
    0x0051: Operation("FenceRead", NOTHING, Empty(), NOTHING, Packed(FENCE_LIST)),
    0x0060: Operation("Lock", LOCK_REQUEST),
    0x0061: Operation("Unlock", UNLOCK_REQUEST),
    0x0062: Operation("LockTest", LOCK_REQUEST, Empty(), LOCK_TEST_REPLY),
    0x0070: Operation("ViewSet", VIEW_SET_REQUEST, DescriptionPart()),
    0x0071: Operation("ViewDrop", VIEW_DROP_REQUEST),
    0x8001: Operation("Notice", NOTICE, Words()),
    0x8002: Operation("CreditTarget"),
    0x8003: Operation("BatchDone", BATCH_NOTICE, NoticedResults()),
    0x8004: Operation("LockTurn", LOCK_TURN),
    0x8005: Operation("Recall", RECALL),
}
OPCODES = {operation.name: opcode for opcode, operation in OPERATIONS.items()}
CALLBACK_BIT = 0x8000


@dataclass
class Message:
    """A message: its header, its body, and its payload as its table has it."""

    header: Record
    body: Record
    payload: Any

    @property
    def name(self) -> str:
        """Name the operation."""
        return OPERATIONS[self.header.opcode].name

    @property
    def is_reply(self) -> bool:
        """Tell whether it is a reply."""
        return bool(self.header.flags & REPLY)


def new_header(name: str, **fields: int) -> Record:
    """Make a header; what is not given is 0, credits 1."""
    header = Record(opcode=OPCODES[name], flags=0, slot=0, sequence=0, credits=1, status=0, handle=0, deadline_ms=0)
    vars(header).update(fields)
    return header


def _tables(header: Record) -> Tuple[Layout, Payload]:
    """Find layout and payload of a message; a reply that failed has words alone."""
    operation = OPERATIONS[header.opcode]
    if not header.flags & REPLY:
        return operation.request_body, operation.request_payload
    if header.status:
        return NOTHING, Words()
    return operation.reply_body, operation.reply_payload


def encode(message: Message) -> Tuple[bytes, bytes]:
    """Encode a message: its head and its payload."""
    layout, kind = _tables(message.header)
    payload = kind.encode(message.payload, message.body)
    message.header.head_len = HEADER_SIZE + layout.struct.size
    message.header.payload_len = len(payload)
    return HEADER.encode(message.header) + layout.encode(message.body), payload


def decode_header(head: bytes, payload: bytes) -> Record:
    """Decode the header, and check it against what the provider delivered ([WIRE-3])."""
    need(len(head) >= HEADER_SIZE, EndsTooEarly, f"a head of {len(head)} bytes")
    header = HEADER.decode(head[:HEADER_SIZE])
    need(header.head_len == len(head) <= HEAD_MAX, NotAllowed, f"head_len {header.head_len} of {len(head)}")
    need(header.payload_len == len(payload), NotAllowed, f"payload_len {header.payload_len} of {len(payload)}")
    need(header.opcode in OPERATIONS, NotAllowed, f"opcode {header.opcode:#x}")
    is_callback = bool(header.opcode & CALLBACK_BIT)
    need(is_callback == bool(header.flags & CALLBACK), NotAllowed, "the flag CALLBACK does not fit the opcode")
    need(not (is_callback and header.flags & REPLY), NotAllowed, "a callback with the flag REPLY")
    need(header.flags & REPLY or header.status == 0, NotAllowed, f"status {header.status}")
    return header


def decode(head: bytes, payload: bytes) -> Message:
    """Decode a message; raise `Refused` or `Invalid` for one that is at fault."""
    header = decode_header(head, payload)
    try:
        return _decode_rest(header, head, payload)
    except (NotAllowed, TooLongAName) as error:
        if header.flags & (REPLY | CALLBACK):
            raise NotAllowed(str(error)) from error
        raise Invalid(str(error)) from error


def _decode_rest(header: Record, head: bytes, payload: bytes) -> Message:
    """Decode the body and the payload of a message."""
    layout, kind = _tables(header)
    body = layout.decode(head[HEADER_SIZE:])
    check = _CHECKS.get((OPERATIONS[header.opcode].name, header.flags & REPLY))
    if check and not header.status:
        check(body)
    return Message(header, body, kind.decode(payload, body))


def _check_verify(body: Record) -> None:
    """Take no attributes that the mask does not name ([WIRE-138])."""
    for bit, values in ((CHANGE, (body.change,)), (SIZE, (body.size,)),
                        (MTIME, (body.mtime_seconds, body.mtime_nanoseconds)),
                        (IDENTITY, (body.file_id, body.generation))):
        need(body.mask & bit or not any(values), NotAllowed, "an attribute that is not compared")




def _check_lock_range(body: Record) -> None:
    """Take no range that ends beyond the offsets ([WIRE-138])."""
    need(body.offset + body.length < 2**64, NotAllowed, "a range that ends beyond the offsets")


def _check_lock(body: Record) -> None:
    """Take no flags that do not go together ([WIRE-138])."""
    _check_lock_range(body)
    for flag, needed in ((NOTIFY_LOCK, WAIT), (REPAIR, PERSISTENT), (LAST, RECLAIM)):
        need(not body.flags & flag or body.flags & needed, NotAllowed, f"flags {body.flags:#x}")
    need(not body.flags & PERSISTENT or body.kind == EXCLUSIVE_LOCK, NotAllowed, "a shared lock that is persistent")


def _check_append(body: Record) -> None:
    """Take no append with an offset ([WIRE-138])."""
    need(body.offset == 0, NotAllowed, f"an append at {body.offset}")


def _check_list_reply(body: Record) -> None:
    """Refuse an end without the end of the file."""
    need(body.end_of_file or not body.end, NotAllowed, "an end without end of file")


_CHECKS: Dict[Tuple[str, int], Callable[[Record], None]] = {
    ("Verify", 0): _check_verify,
    ("Append", 0): _check_append,
    ("Lock", 0): _check_lock,
    ("LockTest", 0): _check_lock,
    ("Unlock", 0): _check_lock_range,
    ("LockTurn", 0): _check_lock_range,
    ("ReadList", REPLY): _check_list_reply,
    ("ReadView", REPLY): _check_list_reply,
}
