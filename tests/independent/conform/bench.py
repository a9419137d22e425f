"""What tests stand on: clients, a directory of their own, raw messages, and how results are kept."""
from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from dafs import wire
from dafs.client import Client, File, Node
from dafs.session import Address, Identity, Key, SessionLost, StatusError
from dafs.tcp import ConnectionEnded, Hello, Immediate, TcpConnection
from dafs.wire import Message, Range


class Failed(Exception):
    """The server did not do what the specification says."""

    def __init__(self, expected: str, came: Any):
        super().__init__(f"expected {expected}; came {came}")


class Skipped(Exception):
    """The test cannot be made here."""


class Test(NamedTuple):
    """A test and the requirements that it tests."""

    name: str
    ids: Tuple[str, ...]
    run: Callable[["Bench"], None]


TESTS: List[Test] = []


def tests(*ids: str) -> Callable[[Callable[["Bench"], None]], Callable[["Bench"], None]]:
    """Register a function as the test of some requirements."""
    def register(run: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
        """Keep the function with its ids."""
        TESTS.append(Test(run.__name__, ids, run))
        return run
    return register


def expect(holds: bool, expected: str, came: Any) -> None:
    """Fail unless something holds."""
    if not holds:
        raise Failed(expected, came)


def same(came: Any, expected: Any, what: str = "") -> None:
    """Fail unless two values are the same."""
    expect(came == expected, f"{what} {_short(expected)}".strip(), _short(came))


def _short(value: Any) -> str:
    """Show a value in few characters."""
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."


def status_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the name of the status that a call ends with."""
    try:
        call(*arguments, **named)
    except StatusError as error:
        return error.name
    return "OK"


def fails(status: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Fail unless a call ends with one status."""
    same(status_of(call, *arguments, **named), status, "the status")


class WatchedConnection(TcpConnection):
    """A connection that keeps what RDMA did, and may hold back answers to reads."""

    def __init__(self, *arguments: Any, **named: Any):
        self.holding = False
        self.held: List[Tuple[int, List[Range]]] = []
        self.responses: List[Tuple[int, int, bytes]] = []
        super().__init__(*arguments, **named)

    def _respond(self, read_id: int, ranges: List[Range]) -> None:
        """Answer a read, or hold the answer back."""
        self.held.append((read_id, ranges))
        if not self.holding:
            self.release()

    def release(self) -> None:
        """Answer all reads that were held back."""
        self.holding = False
        while self.held:
            self.release_one()

    def release_one(self) -> None:
        """Answer the oldest read that was held back."""
        super()._respond(*self.held.pop(0))


class End(NamedTuple):
    """How a connection ended, and what came before."""

    messages: List[Message]
    ended: bool
    notice: Optional[Message]
    why: str

    def __str__(self) -> str:
        replies = [f"{message.name} {wire.status_name(message.header.status)}" for message in self.messages]
        return f"{', '.join(replies) or 'nothing'}, then {self.why}"


def receive(connection: TcpConnection, timeout: float = 20.0) -> Message:
    """Receive and decode one message."""
    delivered = connection.receive(timeout)
    if isinstance(delivered, Immediate):
        raise Failed("a message", f"an immediate {delivered}")
    return wire.decode(delivered.head, delivered.payload)


def receive_reply(connection: TcpConnection, timeout: float = 20.0) -> Message:
    """Receive the next reply; callbacks are passed over."""
    while True:
        message = receive(connection, timeout)
        if message.is_reply:
            return message


def read_to_end(connection: TcpConnection, timeout: float = 5.0) -> End:
    """Receive until the connection ends, or nothing comes."""
    messages: List[Message] = []
    notice = None
    while True:
        try:
            message = receive(connection, timeout)
        except ConnectionEnded as end:
            return End(messages, True, notice, str(end))
        except TimeoutError:
            return End(messages, False, notice, "no end of the connection")
        notice = message if message.name == "Notice" and message.body.kind == 2 else notice
        messages.append(message)


def expect_end(connection: TcpConnection, what: str, timeout: float = 20.0) -> End:
    """Fail unless the connection ends, without a reply to what was wrong."""
    end = read_to_end(connection, timeout)
    replies = [message for message in end.messages if message.is_reply]
    expect(end.ended and not replies, f"the end of the connection for {what}", end)
    return end


def expect_gone(client: Client) -> None:
    """Fail if the session of a client can be resumed."""
    try:
        client.session.resume()
    except SessionLost:
        return
    raise Failed("the end of the session", "a session that was resumed")


def make(name: str, *, slot: int = 11, sequence: int = 1, handle: int = 0, payload: Any = b"", flags: int = 0,
         credits: int = 16, deadline_ms: int = 0, **body: int) -> Message:
    """Make a request with slot and sequence as wanted."""
    header = wire.new_header(name, slot=slot, sequence=sequence, handle=handle, flags=flags, credits=credits,
                             deadline_ms=deadline_ms)
    return Message(header, Record(**body), payload)


def send(client: Client, message: Message) -> None:
    """Send a request past the client's own slots and credits."""
    client.session.connection.send(*wire.encode(message))


def ask(client: Client, message: Message, timeout: float = 20.0) -> Message:
    """Send a request past the client's own slots, and receive its reply."""
    send(client, message)
    reply = receive_reply(client.session.connection, timeout)
    same((reply.header.slot, reply.header.sequence, reply.header.opcode),
         (message.header.slot, message.header.sequence, message.header.opcode), "a reply with the request's")
    return reply


def name_of(reply: Message) -> str:
    """Name the status of a reply."""
    return wire.status_name(reply.header.status)


class Bench:
    """A server under test."""

    def __init__(self, address: str, key: Optional[Key], spec: Path):
        self.address, self.key, self.spec = address, key, spec
        self.place = Address.parse(address)
        self.clients: List[Client] = []
        self.connections: List[TcpConnection] = []
        self.count = self.files = 0
        self.name = b""
        self._keeper()

    def _keeper(self) -> None:
        """Connect the client that makes and removes the tests' directories."""
        self.keeper = Client(self.address, self.key, identity=_identity())
        self.root = self.keeper.mount()

    # A test.

    def begin(self) -> None:
        """Make a directory for a test."""
        self.count += 1
        self.begun = time.monotonic()
        self.name = f"dafs-conform-{os.getpid()}-{self.count}".encode()
        self._with_keeper(lambda: self.root.mkdir(self.name, 0o755))

    def finish(self) -> None:
        """Close what a test has opened, and remove its directory."""
        for client in self.clients:
            client.session.connection.close()
        for connection in self.connections:
            connection.close()
        self.clients, self.connections = [], []
        try:
            self._with_keeper(lambda: _remove_tree(self.root, self.name))
        except StatusError as error:
            print(f"{self.name.decode()} could not be removed: {error}", file=sys.stderr)

    def _with_keeper(self, work: Callable[[], None]) -> None:
        """Do work by the keeper, and once again by a new one where it has lost its connection."""
        try:
            work()
        except (ConnectionEnded, TimeoutError):
            self._keeper()
            work()

    def close(self) -> None:
        """Say goodbye."""
        self.keeper.bye()

    def others_are_served(self) -> None:
        """Fail unless another client is served still, and a new one too."""
        try:
            if time.monotonic() - self.begun < self.keeper.session.welcome.lease_ms / 2000:
                self.keeper.null()
            self.client().null()
        except (ConnectionEnded, TimeoutError, StatusError) as error:
            raise Failed("others served on", error) from error

    # What tests need.

    def client(self, key: Any = "own", identity: Optional[Identity] = None, **options: Any) -> Client:
        """Connect a client, which is closed with the test."""
        options.setdefault("connection_type", WatchedConnection)
        options.setdefault("timeout", 20.0)
        client = Client(self.address, self.key if key == "own" else key, identity or _identity(), **options)
        self.clients.append(client)
        return client

    def dir(self, **options: Any) -> Tuple[Client, Node]:
        """Connect a client and look the test's directory up."""
        client = self.client(**options)
        return client, client.mount().lookup(self.name)

    def file(self, data: bytes = b"", **options: Any) -> Tuple[Client, File]:
        """Connect a client and make a file in the test's directory."""
        client, node = self.dir(**options)
        self.files += 1
        return client, new_file(node, f"file-{self.files}", data)

    def raw(self, hello: Hello = Hello()) -> TcpConnection:
        """Connect without a session."""
        connection = TcpConnection(self.place.host, self.place.port, hello, 8.0)
        self.connections.append(connection)
        return connection

    def read_only_root(self, client: Client) -> Node:
        """Find an export that is read-only, and mount it."""
        for name in client.exports():
            reply = client.session.call("Mount", 0, name.encode())
            if reply.payload.read_only:
                return Node(client.session, reply.header.handle, reply.payload.attributes)
        raise Skipped("no export of this server is read-only")

    def other_export(self, client: Client) -> str:
        """Name an export beside the one under test."""
        names = [name for name in client.exports() if name != self.place.export]
        if not names:
            raise Skipped("this server has one export only")
        return names[0]


def _identity() -> Identity:
    """Claim to be the user that runs the tests."""
    return Identity(uid=os.getuid(), gid=os.getgid(), client_name="dafs-conform")


def new_file(node: Node, name: str, data: bytes = b"", mode: int = 0o644) -> File:
    """Make a file that can be read and written."""
    file = node.open(name, wire.READ | wire.WRITE | wire.CREATE | wire.EXCLUSIVE, mode)
    if data:
        file.write(0, data)
    return file


def _remove_tree(root: Node, path: bytes) -> None:
    """Remove a directory and what is in it."""
    root.setattr(path, follow=False, mode=0o700)
    node = root.lookup(path, follow=False)
    for entry in list(node.readdir(attributes=True)):
        name = path + b"/" + entry.name
        attributes = entry.attributes or root.getattr(name, follow=False)
        if attributes.kind == "Directory":
            _remove_tree(root, name)
        else:
            root.remove(name)
    node.close()
    root.remove(path, directory=True)
