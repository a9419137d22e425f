"""Sessions (session.md): handshake, slots, credits, callbacks, resuming."""
from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type

from . import wire
from .tcp import PORT, ConnectionEnded, Delivered, Hello, Regions, TcpConnection
from .wire import Message

SEQUENCE_MAX = 2**32 - 1


class StatusError(Exception):
    """The server answered with a status other than OK."""

    def __init__(self, message: Message):
        self.status = message.header.status
        self.name = wire.status_name(self.status)
        super().__init__(f"{message.name}: {self.name} {message.payload or ''}".strip())


class ServerFault(Exception):
    """The server broke the protocol."""


class SessionLost(Exception):
    """The server does not know the session any more; what was unanswered is in doubt."""


class Key(NamedTuple):
    """A key: what client and server prove to each other."""

    name: str
    secret: bytes

    @staticmethod
    def from_file(path: Path) -> "Key":
        """Take the first key of a file of lines `name:secret`, as `dafs-server keygen` prints them."""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.strip().startswith("#"):
                name, secret = line.strip().split(":")[:2]
                return Key(name, _decode_secret(secret))
        raise ValueError(f"{path} has no key")

    def proof(self, side: bytes, nonces: bytes, hello: bytes) -> bytes:
        """Compute the proof of one side ([SESS-2], [SESS-82])."""
        return hmac.new(self.secret, b"dafs " + side + nonces + hello, hashlib.sha256).digest()


def _decode_secret(text: str) -> bytes:
    """Decode hexadecimal, else base64 with optional padding."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


class Address(NamedTuple):
    """dafs+tcp://HOST[:PORT]/EXPORT[/PATH]."""

    host: str
    port: int
    export: str
    path: str

    @staticmethod
    def parse(text: str) -> "Address":
        """Take an address apart; nothing is unescaped ([PROV-77], [PROV-78], [PROV-79])."""
        scheme, separator, rest = text.partition("://")
        if scheme not in ("dafs+tcp", "tcp") or not separator:
            raise ValueError(f"{text!r} is no dafs+tcp:// address")
        place, _, names = rest.partition("/")
        export, _, path = names.partition("/")
        host, port = _parse_place(place)
        return Address(host, port, export, path.lstrip("/"))


def _parse_place(place: str) -> Tuple[str, int]:
    """Take host and port apart; an IPv6 address stands in brackets."""
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.lstrip(":")
    else:
        host, _, port = place.partition(":")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65_536)):
        raise ValueError(f"{place!r} is no host and port")
    return host, int(port) if port else PORT


@dataclass
class Identity:
    """Whom a client claims to act as, and how it names itself."""

    uid: int = 65_534
    gid: int = 65_534
    groups: List[int] = field(default_factory=list)
    client_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    client_name: str = "independent"


class Request(NamedTuple):
    """What to ask: the name of the operation, its handle, body and payload."""

    name: str
    handle: int = 0
    body: Record = Record()
    payload: Any = b""
    flags: int = 0
    deadline_ms: int = 0


@dataclass
class Pending:
    """A request that was sent, and its reply when it is here."""

    message: Message
    reply: Optional[Message] = None


class Session:
    """A session with a server, over one connection at a time."""

    def __init__(self, address: Address, key: Optional[Key] = None, identity: Optional[Identity] = None,
                 slots: int = 16, hello: Hello = Hello(), timeout: float = 10.0,
                 features: int = wire.FEATURES_ALL, connection_type: Type[TcpConnection] = TcpConnection):
        self.address, self.key, self.timeout = address, key, timeout
        self.features, self.connection_type = features, connection_type
        self.identity = identity or Identity()
        self.slots_wanted, self.hello = slots, hello
        self.regions = Regions()
        self.connection: TcpConnection
        self.welcome: Record = None
        self.server_name = ""
        self._connect(None)
        self._begin()

    # The handshake.

    def _connect(self, resume: Optional[Record]) -> None:
        """Connect and shake hands: `Hello`, then `Authenticate` ([SESS-1])."""
        self.connection = self.connection_type(self.address.host, self.address.port, self.hello, self.timeout)
        try:
            self.welcome = self._authenticate(resume)
        except BaseException:
            self.connection.close()
            raise
        self.connection.regions = self.regions
        self.callbacks: List[Message] = []
        self.limit = self.welcome.credits

    def _authenticate(self, resume: Optional[Record]) -> Record:
        """Exchange proofs and return the checked `Welcome`."""
        nonce = secrets.token_bytes(32)
        hello = self._make_hello(nonce, resume)
        reply = self._handshake_request("Hello", hello)
        if len(reply.server_name.encode()) > wire.NAME_MAX:
            raise ServerFault(f"a server's name of {len(reply.server_name)} characters")
        nonces = nonce + reply.nonce
        self.server_name = reply.server_name
        packed = wire.encode_structure(wire.HELLO, hello)
        proof = self.key.proof(b"client", nonces, packed) if self.key else b""
        answer = self._handshake_request("Authenticate", Record(proof=proof))
        expected = self.key.proof(b"server", nonces, packed) if self.key else b""
        if not hmac.compare_digest(answer.proof, expected):
            raise ServerFault("the server has not proven the key")
        return _check_welcome(answer.welcome, self.slots_wanted)

    def _make_hello(self, nonce: bytes, resume: Optional[Record]) -> Record:
        """Make the first message."""
        return Record(version_min=1, version_max=1, features=self.features, nonce=nonce,
                      key_name=self.key.name if self.key else "", slots=self.slots_wanted, resume=resume,
                      **vars(self.identity))

    def _handshake_request(self, name: str, payload: Record) -> Record:
        """Send a message of the handshake and return the payload of the reply."""
        message = Message(wire.new_header(name), Record(), payload)
        self.connection.send(*wire.encode(message))
        reply = self._receive_message()
        self._check_reply(message, reply)
        if reply.header.status:
            raise StatusError(reply)
        return reply.payload

    def _begin(self) -> None:
        """Begin a new session: its slots are unused."""
        self.sequences = [0] * self.welcome.slots
        self.outstanding: Dict[int, Pending] = {}

    # Requests.

    def call(self, name: str, handle: int = 0, payload: Any = b"", **body: int) -> Message:
        """Send a request, and return its reply; raise `StatusError` for a failure."""
        return self.finish(self.submit(Request(name, handle, Record(**body), payload)))

    def finish(self, pending: Pending) -> Message:
        """Return the reply to a request; raise `StatusError` for a failure."""
        reply = self.wait(pending)
        if reply.header.status:
            raise StatusError(reply)
        return reply

    def submit(self, request: Request) -> Pending:
        """Send a request when a credit and a slot are free."""
        while len(self.outstanding) >= self.limit:
            self._receive_one()
        slot = next(slot for slot in range(self.welcome.slots) if slot not in self.outstanding)
        header = wire.new_header(request.name, slot=slot, sequence=self.sequences[slot] % SEQUENCE_MAX + 1,
                                 credits=self.welcome.slots, handle=request.handle, flags=request.flags,
                                 deadline_ms=request.deadline_ms)
        pending = Pending(Message(header, request.body, request.payload))
        data = wire.encode(pending.message)
        self.sequences[slot] = header.sequence
        self.outstanding[slot] = pending
        self.connection.send(*data)
        return pending

    def wait(self, pending: Pending) -> Message:
        """Receive until a request is answered."""
        while pending.reply is None:
            self._receive_one()
        return pending.reply

    def chain(self, requests: List[Request]) -> List[Message]:
        """Send the links of a chain together, and return all replies (session.md, "Chains")."""
        if len(requests) > self.welcome.slots:
            raise ValueError("a chain has no more links than the session has slots")
        links = []
        for place, request in enumerate(requests):
            flags = wire.CHAIN_BACK if place else 0
            flags |= wire.CHAIN_FORWARD if place < len(requests) - 1 else 0
            links.append(self.submit(request._replace(flags=request.flags | flags)))
        return [self.wait(link) for link in links]

    # What arrives.

    def _receive_message(self) -> Message:
        """Receive and decode one message."""
        delivered = self.connection.receive(self.timeout)
        if not isinstance(delivered, Delivered):
            raise ServerFault("an immediate, where no eager buffer is")
        try:
            return wire.decode(delivered.head, delivered.payload)
        except (wire.Refused, wire.Invalid) as error:
            raise ServerFault(f"the server sent what is refused: {error}") from error

    def _receive_one(self) -> None:
        """Receive one message: a reply, or a callback."""
        message = self._receive_message()
        if message.header.flags & wire.CALLBACK:
            self._take_callback(message)
            return
        pending = self.outstanding.get(message.header.slot)
        if pending is None:
            raise ServerFault(f"a reply in slot {message.header.slot}, where no request is")
        self._check_reply(pending.message, message)
        del self.outstanding[message.header.slot]
        self.limit = min(self.welcome.slots, max(1, self.limit - 1, message.header.credits))
        pending.reply = message

    def _check_reply(self, request: Message, reply: Message) -> None:
        """See that a reply fits its request."""
        for name in ("opcode", "slot", "sequence"):
            if getattr(request.header, name) != getattr(reply.header, name):
                raise ServerFault(f"a reply with another {name}")
        if not reply.is_reply:
            raise ServerFault("a request from the server")

    def _take_callback(self, message: Message) -> None:
        """Keep a callback; `CreditTarget` raises the limit ([SESS-40], [SESS-41])."""
        if message.header.sequence != len(self.callbacks) + 1:
            raise ServerFault(f"the callback {message.header.sequence} after {len(self.callbacks)}")
        self.callbacks.append(message)
        if message.name == "CreditTarget":
            self.limit = max(self.limit, min(self.welcome.slots, message.header.credits))

    def callback(self, name: str, number: int = 1) -> Message:
        """Receive until so many callbacks of a name have come by this connection, and return the last of these."""
        while True:
            found = [message for message in self.callbacks if message.name == name]
            if len(found) >= number:
                return found[number - 1]
            self._receive_one()

    # The end, and what outlives a connection.

    def resume(self) -> None:
        """Connect again, take up the session, and send unanswered requests again ([SESS-51])."""
        before = self.welcome
        self.connection.close()
        self._connect(Record(session=before.session, secret=before.secret))
        unanswered = list(self.outstanding.values())
        if not self.welcome.resumed:
            self._begin()
            raise SessionLost(f"{len(unanswered)} requests are in doubt")
        for pending in unanswered:
            pending.message.header.flags |= wire.REPLAY
            self.connection.send(*wire.encode(pending.message))

    def bye(self) -> None:
        """End the session, and read until the connection ends."""
        self.call("Bye")
        try:
            while True:
                self._receive_one()
        except ConnectionEnded:
            self.connection.close()


def _check_welcome(welcome: Record, slots_wanted: int) -> Record:
    """Refuse a `Welcome` that grants nothing, or more than was asked for ([SESS-5], [SESS-119])."""
    if not (welcome.slots and welcome.credits and welcome.transfer_size_max):
        raise ServerFault("a welcome that grants nothing")
    if welcome.slots > slots_wanted:
        raise ServerFault(f"{welcome.slots} slots, where {slots_wanted} were asked for")
    return welcome
