"""Failures that people see. Every one is a `GraphoptError` with an exit code; the CLI prints it as one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

# What `verify` found where both models ran and do not differ (1): BEFORE differs from itself; with --strict, that
# something was not put to the test.
EXIT_RANDOM = 8
EXIT_NOT_COVERED = 9
# An exception that is none of those below: a bug of graphopt, and no difference between two models.
EXIT_INTERNAL = 10
# What `optimize --strict` ends with where OUT was measured to be slower than IN.
EXIT_SLOWER = 11


class GraphoptError(Exception):
    """Base of all failures of graphopt. The message says what was wrong, where, and what to do."""

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
    """A keyword is not an option. Python's own error for it is a TypeError, which this is, too."""


class InvariantError(GraphoptError):
    """A pass broke an invariant of the model. Nothing was written. This is a bug of graphopt."""

    exit_code = 6


class RuntimeMissingError(GraphoptError):
    """ONNX Runtime, or our native library, is needed for this and is not there."""

    exit_code = 7


class VerifyError(GraphoptError):
    """The two models could not be compared (which is not the same as being different)."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests names that are like a misspelt one, as the rest of a message: " (did you mean 'target'?)" or ""."""
    from difflib import get_close_matches

    choices = list(known)
    parts = [choice for choice in choices if len(name) > 2 and name.lower() in choice.lower()]
    alike = dict.fromkeys([*get_close_matches(name, choices, cutoff=0.7), *parts])
    return f" (did you mean {' or '.join(repr(choice) for choice in list(alike)[:3])}?)" if alike else ""


def require_list(name: str, value: object) -> None:
    """Refuses a text where a list of texts is meant, which Python would take for a list of letters.

    Raises:
        OptionError: it is one.
    """
    if isinstance(value, str | bytes):
        raise OptionError(f"{name} is a list: give [{value!r}], not {value!r}")


def one_line(error: Exception) -> str:
    """What another library's exception says, short enough for a table or for a message of ours."""
    return " ".join(str(error).split())[:400]


# What ONNX Runtime puts around what it has to say: its status, the file again, where in its sources it stands.
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |\bLoad model from .*? failed: ?")
_NODE = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: ")
_PLACE = re.compile(r"(?:/\S+/)?\b\w+\.(?:cc|h|cpp|cu|cuh|inl):\d+ ")
_CONDITION = re.compile(r"(?<=^)[^.']{1,200}? was false\. (?=\S)")
_ADVICE = re.compile(r" ?Please fix either the inputs/outputs or the model\.?")


# What both runtimes' arenas, the C++ library and numpy say.
_NO_MEMORY = ("BFCArena", "Failed to allocate memory", "bad_alloc", "Unable to allocate")


def is_out_of_memory(message: str) -> bool:
    """Whether ONNX Runtime says that this machine has no memory for a run."""
    return any(words in message for words in _NO_MEMORY)


def runtime_says(error: Exception) -> str:
    """What ONNX Runtime says against a model or its inputs, without what only those who build it read."""
    text = _STATUS.sub("", " ".join(str(error).split()))
    node = _NODE.match(text)
    text = text[node.end() :] if node else text
    if place := _PLACE.search(text):
        text = text[: place.start()] + _CONDITION.sub("", _behind_signature(text[place.end() :]))
    text = _ADVICE.sub("", text).strip()
    if node:
        text = f"{node[1]} '{node[2]}': {text}" if node[2] else f"{node[1]}: {text}"
    return text[:400]


def _behind_signature(text: str) -> str:
    """What follows `type scope::name(arguments) const [with T = type]`, or a bare name."""
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
def about(name: str) -> Iterator[None]:
    """Puts the name of a model before what is said of its inputs.

    Raises:
        VerifyError: the same with the name before it.
    """
    try:
        yield
    except VerifyError as error:
        raise VerifyError(f"{name}: {error}") from None


@contextmanager
def naming(copies: Mapping[str, str]) -> Iterator[None]:
    """Names the caller's files in errors about copies of them.

    Args:
        copies: path of a temporary copy -> the name of its original; read when an error occurs.

    Raises:
        GraphoptError: the error of the body.
    """
    try:
        yield
    except GraphoptError as error:
        message = str(error)
        for copy, original in copies.items():
            message = message.replace(copy, original)
        raise type(error)(message) from None
