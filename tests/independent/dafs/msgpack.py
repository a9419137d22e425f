"""MessagePack, as much of it as wire.md needs ("MessagePack bodies")."""
from __future__ import annotations

import struct
from typing import Any, List, Tuple

DEPTH_MAX = 16


class MsgpackError(ValueError):
    """The bytes are no MessagePack, or none that the protocol uses."""


class Left(MsgpackError):
    """Bytes follow the value."""


def pack(value: Any) -> bytes:
    """Encode a value in its shortest form."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, str):
        text = value.encode()
        return _pack_length(len(text), 0xA0, 31, 0xD9) + text
    if isinstance(value, (bytes, bytearray)):
        return _pack_length(len(value), None, -1, 0xC4) + bytes(value)
    if isinstance(value, dict):
        return _pack_pair(value)
    return _pack_array(value)


def _pack_int(number: int) -> bytes:
    """Encode an integer: fixed forms first, then 1, 2, 4 or 8 bytes."""
    if -32 <= number <= 127:
        return struct.pack(">b", number)
    codes = b"\xcc\xcd\xce\xcf" if number >= 0 else b"\xd0\xd1\xd2\xd3"
    forms = "BHIQ" if number >= 0 else "bhiq"
    for code, form in zip(codes, forms):
        try:
            return bytes([code]) + struct.pack(">" + form, number)
        except struct.error:
            continue
    raise MsgpackError(f"{number} has more than 64 bits")


def _pack_length(length: int, fix: Any, fix_max: int, code8: int) -> bytes:
    """Encode the length in front of a string or a binary."""
    if length <= fix_max:
        return bytes([fix | length])
    if length < 1 << 8:
        return struct.pack(">BB", code8, length)
    if length < 1 << 16:
        return struct.pack(">BH", code8 + 1, length)
    return struct.pack(">BI", code8 + 2, length)


def _pack_array(values: Any) -> bytes:
    """Encode a list or tuple."""
    count = len(values)
    if count < 16:
        start = bytes([0x90 | count])
    elif count < 1 << 16:
        start = struct.pack(">BH", 0xDC, count)
    else:
        start = struct.pack(">BI", 0xDD, count)
    return start + b"".join(pack(value) for value in values)


def _pack_pair(value: dict) -> bytes:
    """Encode an enumeration that carries something: a map of one pair."""
    ((name, content),) = value.items()
    return b"\x81" + pack(name) + pack(content)


def unpack(data: bytes) -> Any:
    """Decode one value that fills the bytes."""
    value, end = _value(memoryview(data), 0, 0)
    if end != len(data):
        raise Left(f"{len(data) - end} bytes behind the value")
    return value


def _take(data: memoryview, at: int, count: int) -> bytes:
    """Return bytes that must be there."""
    if count > len(data) - at:
        raise MsgpackError("the value ends too early")
    return bytes(data[at:at + count])


_NUMBERS = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
_LENGTHS = {
    0xC4: ("B", bytes), 0xC5: ("H", bytes), 0xC6: ("I", bytes),
    0xD9: ("B", str), 0xDA: ("H", str), 0xDB: ("I", str),
    0xDC: ("H", list), 0xDD: ("I", list),
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _value(data: memoryview, at: int, depth: int) -> Tuple[Any, int]:
    """Decode the value at an offset; return it and where it ends."""
    if depth > DEPTH_MAX:
        raise MsgpackError("nested too deeply")
    code = _take(data, at, 1)[0]
    at += 1
    if code <= 0x7F:
        return code, at
    if code >= 0xE0:
        return code - 256, at
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        return _number(data, at, _NUMBERS[code])
    if code == 0x81:
        return _pair(data, at, depth)
    if 0x90 <= code <= 0x9F:
        return _array(data, at, code & 15, depth)
    if 0xA0 <= code <= 0xBF:
        return _text(data, at, code & 31)
    if code in _LENGTHS:
        form, kind = _LENGTHS[code]
        length, at = _number(data, at, form)
        if kind is bytes:
            return _take(data, at, length), at + length
        return _text(data, at, length) if kind is str else _array(data, at, length, depth)
    raise MsgpackError(f"the protocol has no values that begin with {code:#x}")


def _number(data: memoryview, at: int, form: str) -> Tuple[int, int]:
    """Decode a number of a fixed size."""
    size = struct.calcsize(">" + form)
    return struct.unpack(">" + form, _take(data, at, size))[0], at + size


def _text(data: memoryview, at: int, length: int) -> Tuple[str, int]:
    """Decode the UTF-8 of a string."""
    try:
        return _take(data, at, length).decode(), at + length
    except UnicodeDecodeError as error:
        raise MsgpackError("a string is not UTF-8") from error


def _array(data: memoryview, at: int, count: int, depth: int) -> Tuple[List[Any], int]:
    """Decode the elements of an array; each has a byte at least."""
    if count > len(data) - at:
        raise MsgpackError("the array ends too early")
    values = []
    for _ in range(count):
        value, at = _value(data, at, depth + 1)
        values.append(value)
    return values, at


def _pair(data: memoryview, at: int, depth: int) -> Tuple[dict, int]:
    """Decode a map of one pair."""
    name, at = _value(data, at, depth + 1)
    content, at = _value(data, at, depth + 1)
    if not isinstance(name, str):
        raise MsgpackError("the name of an enumeration is no string")
    return {name: content}, at
