"""Replays a golden session (spec/vectors) to a server, and compares what the server says with what stands there."""
from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any, Dict, List, NamedTuple, Optional

import vectors
from dafs import wire
from dafs.tcp import FRAME_SIZE, HELLO_SIZE, SEND, Frame, Hello

# What is compared of a payload that depends on the server and the time; of others all is.
COMPARED = {
    "Hello": ("version", "key_required"),
    "Welcome": ("resumed", "features", "slots", "credits", "slot_reports"),
    "Attributes": ("kind", "size", "links"),
}


class Step(NamedTuple):
    """A hello, or a frame: who sends it, its name, and its bytes."""

    side: str
    name: str
    data: bytes


def steps(path: Path) -> List[Step]:
    """Read the hellos and frames of a session in order."""
    found: List[Step] = []
    for name, data in vectors.named_bytes(path):
        side, _, rest = name.partition(" ")
        step, _, part = rest.rpartition(" ")
        if part in ("hello", "frame"):
            found.append(Step(side, step if part == "frame" else rest, data))
        else:
            found[-1] = found[-1]._replace(data=found[-1].data + data)
    return found


def _message(data: bytes) -> wire.Message:
    """Decode the message of a SEND frame."""
    frame, body = Frame.decode(data[:FRAME_SIZE]), data[FRAME_SIZE:]
    return wire.decode(body[:frame.head_len], body[frame.head_len:])


def _send(message: wire.Message) -> bytes:
    """Encode a message as a SEND frame."""
    head, payload = wire.encode(message)
    return Frame(SEND, head_len=len(head), len=len(payload)).encode() + head + payload


def _some(value: Any, names: Optional[tuple]) -> Dict[str, Any]:
    """Take the fields that are compared."""
    return {name: field for name, field in vars(value).items() if names is None or name in names}


def comparable(message: wire.Message) -> Dict[str, Any]:
    """Take of a message what every server says."""
    header = dict(vars(message.header), payload_len=0)
    body = {name: field for name, field in vars(message.body).items() if name != "verifier"}
    payload = message.payload
    if message.name == "Hello":
        payload = _some(payload, COMPARED["Hello"])
    elif message.name == "Authenticate":
        payload = (payload.proof, _some(payload.welcome, COMPARED["Welcome"]))
    elif message.name in ("Mount", "Open"):
        payload = _some(getattr(payload, "attributes", payload), COMPARED["Attributes"])
        if message.name == "Mount":
            # A directory has the size and the links that its file system gives it.
            payload = payload["kind"]
    return dict(header=header, body=body, payload=payload)


class Replay:
    """A golden session on the way: the connection, and the session that the server made."""

    def __init__(self, path: Path, host: str, port: int, timeout: float = 10.0):
        self.steps, self.place, self.timeout = steps(path), (host, port), timeout
        self.sock: Optional[socket.socket] = None
        self.welcome: Optional[Record] = None

    def run(self) -> int:
        """Send the client's side and compare the server's; count what was compared."""
        compared = 0
        try:
            for index, step in enumerate(self.steps):
                if step.side == "client":
                    self._send_step(index, step)
                    continue
                self._compare(step, self._receive(step.name.endswith("hello")))
                compared += 1
        finally:
            if self.sock:
                self.sock.close()
        return compared

    def _send_step(self, index: int, step: Step) -> None:
        """Send a hello, on a new connection, or a frame."""
        if step.name.endswith("hello"):
            if self.sock:
                self._lose_reply(self.steps[index - 1])
            self.sock = socket.create_connection(self.place, self.timeout)
        data = step.data
        if step.name == "second Hello":
            message = _message(data)
            message.payload.resume = Record(session=self.welcome.session, secret=self.welcome.secret)
            data = _send(message)
        self.sock.sendall(data)

    def _lose_reply(self, request: Step) -> None:
        """Break the connection when the reply to a request is on its way: the one that comes again later."""
        answer = next(step for step in self.steps if (step.side, step.name) == ("server", f"repeated {request.name}"))
        self._compare(answer, self._receive(False))
        self.sock.close()

    def _receive(self, is_hello: bool) -> bytes:
        """Receive a hello or a frame."""
        if is_hello:
            return self._take(HELLO_SIZE)
        header = self._take(FRAME_SIZE)
        return header + self._take(Frame.decode(header).body_len)

    def _take(self, count: int) -> bytes:
        """Receive so many bytes."""
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            if not part:
                raise AssertionError(f"the server closed after {len(data)} of {count} bytes")
            data += part
        return data

    def _compare(self, step: Step, found: bytes) -> None:
        """Hold what the server said against a step."""
        if step.name.endswith("hello"):
            Hello.decode(found)
            return
        if Frame.decode(step.data[:FRAME_SIZE]).kind != SEND or found[0] != SEND:
            _same(step, found.hex(), step.data.hex())
            return
        message = _message(found)
        _same(step, comparable(message), comparable(_message(step.data)))
        if message.name == "Authenticate":
            welcome = message.payload.welcome
            if self.welcome:
                _same(step, (welcome.session, welcome.secret, welcome.server_epoch),
                      (self.welcome.session, self.welcome.secret, self.welcome.server_epoch))
            self.welcome = welcome


def _same(step: Step, found: Any, expected: Any) -> None:
    """Fail where both differ."""
    if found != expected:
        raise AssertionError(f"{step.name}: {found}, expected {expected}")
