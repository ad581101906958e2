"""tf.train.Example without TensorFlow: the few lines of its wire format that are needed.

Source: https://protobuf.dev/programming-guides/encoding and tensorflow/core/example/*.proto.
Example.features = 1, Features.feature = 1 (a map: key 1, value 2), Feature.bytes_list = 1,
float_list = 2, int64_list = 3, value = 1 in each list.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse_example(content: bytes) -> dict[str, list[Any]]:
    """The features of a serialized Example by name: lists of bytes, floats or ints.

    Raises ValueError for bytes that are no Example.
    """
    example = {}
    for features in _messages(content):
        for entry in _messages(features):
            pair = dict(_fields(entry))
            name, feature = pair.get(1, b""), pair.get(2, b"")
            if not isinstance(name, bytes) or not isinstance(feature, bytes):
                raise ValueError("a feature is no message")
            example[name.decode()] = _values(feature)
    if not example:
        raise ValueError("no features")
    return example


def _messages(content: bytes) -> Iterator[bytes]:
    for number, value in _fields(content):
        if number != 1 or not isinstance(value, bytes):
            raise ValueError(f"field {number} is unexpected")
        yield value


def _values(feature: bytes) -> list[Any]:
    values: list[Any] = []
    for kind, content in _fields(feature):
        if not isinstance(content, bytes) or kind not in (1, 2, 3):
            raise ValueError(f"feature kind {kind} is unknown")
        for _, value in _fields(content):
            values += _unpacked(kind, value)
    return values


def _unpacked(kind: int, value: bytes | int) -> list[Any]:
    """Elements of a bytes (1), float (2) or int64 (3) list; numbers mostly come packed."""
    if kind == 1:
        return [value]
    if isinstance(value, int):
        return [value]
    if kind == 2:
        if len(value) % 4:
            raise ValueError("a list of floats ends too early")
        return list(struct.unpack(f"<{len(value) // 4}f", value))
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number - 2**64 if number >= 2**63 else number)
    return numbers


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of a message: bytes where it has a length, else an integer."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        sizes = {_FIXED64: 8, _FIXED32: 4}
        size, at = _varint(content, at) if kind == _BYTES else (sizes.get(kind, -1), at)
        if size < 0 or at + size > len(content):
            raise ValueError("it ends too early")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, the lowest first, and where it ends."""
    number = shift = 0
    while at < len(content) and shift < 64:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("it ends too early")
