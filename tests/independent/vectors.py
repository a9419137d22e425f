"""Reads the golden messages of the specification (spec/vectors)."""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple


class RefusedVector(NamedTuple):
    """A message that a receiver refuses, or that a server answers INVALID."""

    kind: str
    title: str
    head: bytes
    payload: bytes
    outcome: str


def _is_hex(text: str) -> bool:
    """Tell whether a text is bytes in hexadecimal."""
    digits = text.replace(" ", "")
    return bool(digits) and all(digit in "0123456789abcdef" for digit in digits)


def named_bytes(path: Path) -> List[Tuple[str, bytes]]:
    """Read the lines "name: hex" of a file; everything else is prose."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, colon, text = line.rpartition(": ")
        if colon and _is_hex(text):
            found.append((name, bytes.fromhex(text)))
    return found


def golden_messages(spec: Path) -> Iterator[Tuple[str, bytes, bytes]]:
    """Yield name, head and payload of the golden messages; a payload that is not there is zeros."""
    named = dict(named_bytes(spec / "vectors" / "messages.txt"))
    for name, data in named.items():
        if name.endswith(" payload"):
            continue
        length = int.from_bytes(data[16:20], "little")
        yield name, data, _payload_of(name, named, length)


def _payload_of(name: str, named: Dict[str, bytes], length: int) -> bytes:
    """Find the payload that belongs to a head."""
    for title in (name, name.replace(" request", "")):
        if f"{title} payload" in named:
            return named[f"{title} payload"]
    return bytes(length)


def refused_messages(spec: Path) -> List[RefusedVector]:
    """Read the messages that are refused or answered INVALID."""
    vectors = []
    for paragraph in (spec / "vectors" / "refused.txt").read_text(encoding="utf-8").split("\n\n"):
        lines = paragraph.strip().splitlines()
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        if "head" in fields and ": " in lines[0]:
            first, title = lines[0].split(": ", 1)
            kind = first.rsplit(" ", 1)[1]
            outcome = "refused" if "refused" in fields else "answered"
            vectors.append(RefusedVector(kind, lines[0], bytes.fromhex(fields["head"]),
                                         bytes.fromhex(fields.get("payload", "")), f"{outcome}: {fields[outcome]}"))
    return vectors
