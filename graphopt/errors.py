"""Errors for users. Each is a `GraphoptError` with an exit code, which the command line prints as one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

# `verify`: two runs of BEFORE differ.
EXIT_RANDOM = 8
# `verify --strict`: the outputs are equal, but the inputs do not test every part of the model.
EXIT_NOT_COVERED = 9
# An unexpected exception, which is a bug of graphopt.
EXIT_INTERNAL = 10
# Exit code of `optimize --strict` if OUT was measured to be slower than IN.
EXIT_SLOWER = 11


class GraphoptError(Exception):
    """Base class of graphopt's errors. The message says what happened, where, and what to do."""

    exit_code = 2


class ModelLoadError(GraphoptError):
    """The input is missing, unreadable, not ONNX, truncated, or refers to external data that cannot be used."""

    exit_code = 3


class ModelSaveError(GraphoptError):
    """The output cannot be written, or would overwrite the input."""

    exit_code = 4


class OptionError(GraphoptError):
    """An argument is wrong: an unknown pass, target, input name or shape."""

    exit_code = 5


class UnknownOptionError(OptionError, TypeError):
    """A keyword is not an option. This is also a TypeError, as for other unknown keywords in Python."""


class InvariantError(GraphoptError):
    """A pass broke an invariant of the model. Nothing was written. This is a bug of graphopt."""

    exit_code = 6


class RuntimeMissingError(GraphoptError):
    """ONNX Runtime or our native library is required but missing."""

    exit_code = 7


class VerifyError(GraphoptError):
    """The two models could not be compared, so it is unknown whether they differ."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message that suggests similar names, " (did you mean 'target'?)"; "" without such names."""
    from difflib import get_close_matches

    choices = list(known)
    longer = [choice for choice in choices if len(name) > 2 and name.lower() in choice.lower()]
    alike = dict.fromkeys([*get_close_matches(name, choices, cutoff=0.7), *longer])
    return f" (did you mean {' or '.join(repr(choice) for choice in list(alike)[:3])}?)" if alike else ""


def require_list(name: str, value: object) -> None:
    """Rejects a string instead of a list of strings, because Python would iterate over its characters.

    Raises:
        OptionError: the value is a string or bytes.
    """
    if isinstance(value, str | bytes):
        raise OptionError(f"{name} is a list: give [{value!r}], not {value!r}")


def one_line(error: Exception) -> str:
    """Returns the message of another library's exception in one line of at most 400 characters."""
    return " ".join(str(error).split())[:400]


# Parts of ONNX Runtime's messages: status and file, node, source location, failed condition, advice for developers.
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |\bLoad model from .*? failed: ?")
_NODE = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: ")
_SOURCE_LOCATION = re.compile(r"(?:/\S+/)?\b\w+\.(?:cc|h|cpp|cu|cuh|inl):\d+ ")
_CONDITION = re.compile(r"(?<=^)[^.']{1,200}? was false\. (?=\S)")
_ADVICE = re.compile(r" ?Please fix either the inputs/outputs or the model\.?")


# Texts in the out-of-memory messages of ONNX Runtime's arenas, the C++ library and numpy.
_NO_MEMORY = ("BFCArena", "Failed to allocate memory", "bad_alloc", "Unable to allocate")


def is_out_of_memory(message: str) -> bool:
    """Returns whether a message of ONNX Runtime reports insufficient memory."""
    return any(words in message for words in _NO_MEMORY)


def runtime_message(error: Exception) -> str:
    """Returns ONNX Runtime's message about a model or its inputs, without the parts that only its developers need."""
    text = _STATUS.sub("", " ".join(str(error).split()))
    node = _NODE.match(text)
    text = text[node.end() :] if node else text
    if location := _SOURCE_LOCATION.search(text):
        text = text[: location.start()] + _CONDITION.sub("", _without_signature(text[location.end() :]))
    text = _ADVICE.sub("", text).strip()
    if node:
        text = f"{node[1]} '{node[2]}': {text}" if node[2] else f"{node[1]}: {text}"
    return text[:400]


def _without_signature(text: str) -> str:
    """Removes `type scope::name(arguments) const [with T = type]`, or a bare name, from the start of a message."""
    name = re.match(r"[\w:<>*&~, ]*?::[\w:<>~ ]*(?=\()", text.replace("(anonymous namespace)", "_" * 21))
    if name is None:
        return re.sub(r"^\w+ ", "", text)
    depth = 0
    for i, letter in enumerate(text[name.end() :], name.end()):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return re.sub(r"^ ?(?:const ?)?(?:\[with [^\]]*\] ?)?", "", text[i + 1 :])
    return text


@contextmanager
def naming_model(name: str) -> Iterator[None]:
    """Adds the name of a model to a VerifyError of the block.

    Raises:
        VerifyError: the error of the block, with the name before its message.
    """
    try:
        yield
    except VerifyError as error:
        raise VerifyError(f"{name}: {error}") from None


@contextmanager
def naming_originals(copies: Mapping[str, str]) -> Iterator[None]:
    """Replaces the paths of temporary copies in an error of the block by the caller's names.

    Args:
        copies: path of a temporary copy -> the name of its original; read only if an error occurs.

    Raises:
        GraphoptError: the error of the block, with the original names.
    """
    try:
        yield
    except GraphoptError as error:
        message = str(error)
        for copy, original in copies.items():
            message = message.replace(copy, original)
        raise type(error)(message) from None
