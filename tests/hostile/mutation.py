"""Deterministic damage to serialized models: mutated bytes and mutated fields of small models that reach every pass."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx

from models.scale import SHAPES

SUBGRAPHS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[N, 3] x, bool c, int64 trips) => (float[N, 3] y, float z)
<float[3] w = {1, 2, 3}, int64[2] target = {0, -1}>
{
  a = If (c) <
    then_branch = t () => (float[N, 3] p) { p = Add(x, w) },
    else_branch = e () => (float[N, 3] q) { r = Mul(x, w) q = Relu(r) }
  >
  b = local.twice (a)
  s = Shape(b)
  d = Reshape(b, s)
  y = Identity(d)
  z = ReduceSum<keepdims=0>(y)
}
<domain: "local", opset_import: ["" : 17]>
twice (i) => (o) { t = Add(i, i) o = Identity(t) }
"""


def originals() -> list[bytes]:
    """Returns the serialized small models that are damaged."""
    models = [build(1) for build in SHAPES.values()]
    models.append(onnx.parser.parse_model(SUBGRAPHS))
    return [m.SerializeToString(deterministic=True) for m in models]


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))


def _drop(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 7, 100))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    piece = data[at : at + rng.choice((1, 2, 7, 100))]
    data[at:at] = piece * rng.choice((1, 2, 50))


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    # The largest varint, an empty message, a name with control characters, a protobuf group.
    data[at:at] = rng.choice((b"\xff" * 9 + b"\x01", b"\x00", b"\x0a\x00", b"\n\x04\x1b[m\n", b"\x0b\x0c", bytes(20)))


def _exchange(data: bytearray, rng: random.Random) -> None:
    a, b, n = rng.randrange(len(data)), rng.randrange(len(data)), rng.choice((1, 4, 30))
    data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _set, _drop, _repeat, _insert, _exchange)


def mutated(seed: int, models: list[bytes]) -> bytes:
    """Returns one of the models with one to three mutations of its bytes."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(models))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_MUTATIONS)(data, rng)
    return bytes(data)


# Integers that a reader might use without a check.
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
NAMES = ("", "x", "y", "v0", "w0", "nowhere", "\x1b[31m\nred", "a" * 5000, "\u202e", "/etc/passwd", "../up")


def _fields(message: object, rng: random.Random) -> None:
    """Changes one randomly chosen field of a message or of a message in it."""
    while True:
        fields = message.ListFields()  # type: ignore[attr-defined]
        if not fields:
            return
        field, value = rng.choice(fields)
        if field.message_type is None:
            break
        if not field.is_repeated:
            message = value
        elif rng.random() < 0.15:
            i = rng.randrange(len(value))
            action = rng.randrange(3)
            if action == 0:
                del value[i]
            elif action == 1:
                value.add().CopyFrom(value[i])
            else:
                value[i].CopyFrom(value[rng.randrange(len(value))])
            return
        else:
            message = rng.choice(value)
    new: object
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64, field.CPPTYPE_ENUM):
        new = rng.choice(NUMBERS)
    elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        new = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    elif field.type == field.TYPE_STRING:
        new = rng.choice(NAMES)
    else:
        new = rng.choice((b"", b"\x00", b"\xff" * 64, b"name"))
    try:
        if not field.is_repeated:
            setattr(message, field.name, new)
        elif rng.random() < 0.5:
            value[rng.randrange(len(value))] = new
        else:
            value.append(new)
    except (ValueError, TypeError):  # the field cannot hold this value
        return


def misled(seed: int, models: list[bytes]) -> bytes:
    """Returns one of the models with one to three fields changed: well-formed messages with invalid contents."""
    rng = random.Random(seed)
    model = onnx.ModelProto.FromString(rng.choice(models))
    for _ in range(rng.choice((1, 1, 2, 3))):
        _fields(model, rng)
    data: bytes = model.SerializeToString()
    return data


def damaged(seed: int, models: list[bytes]) -> bytes:
    """Mutates bytes for odd seeds and fields for even ones."""
    return mutated(seed, models) if seed % 2 else misled(seed, models)


__all__ = ["damaged", "originals"]
