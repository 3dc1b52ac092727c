"""Failures that people see. Every one is a `GraphoptError` with an exit code; the CLI prints it as one line."""

from __future__ import annotations

# What `verify` found where both models ran and do not differ (1): BEFORE differs from itself; with --strict, that
# something was not put to the test.
EXIT_RANDOM = 8
EXIT_NOT_COVERED = 9


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


class InvariantError(GraphoptError):
    """A pass broke an invariant of the model. Nothing was written. This is a bug of graphopt."""

    exit_code = 6


class RuntimeMissingError(GraphoptError):
    """ONNX Runtime, or our native library, is needed for this and is not there."""

    exit_code = 7


class VerifyError(GraphoptError):
    """The two models could not be compared (which is not the same as being different)."""

    exit_code = 2


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
