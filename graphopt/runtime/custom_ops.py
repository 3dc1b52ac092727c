"""The user's operator libraries: registration in graphopt's sessions, and error messages for unknown operators."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import onnx

from graphopt.errors import OptionError, RuntimeMissingError, require_list, runtime_message
from graphopt.ops.schema import DOMAIN
from graphopt.runtime.discovery import import_onnxruntime, runtime_name

P = ParamSpec("P")
R = TypeVar("R")


_custom_ops: ContextVar[tuple[str, ...]] = ContextVar("custom_ops", default=())


@contextmanager
def registered_custom_ops(libraries: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Registers the user's operator libraries in every session that graphopt creates in the block.

    This also applies to processes that graphopt starts in the block. An inner block adds its libraries to the outer
    block's.

    Raises:
        OptionError: a file does not exist, or the runtime cannot load it.
    """
    require_list("custom_ops", libraries)
    paths = [os.path.abspath(library) for library in libraries]
    for path in paths:
        if not os.path.isfile(path):
            raise OptionError(f"--custom-ops {path}: no such file; give a library that exports RegisterCustomOps")
    token = _custom_ops.set(tuple(dict.fromkeys([*_custom_ops.get(), *paths])))
    try:
        if paths:
            with suppress(RuntimeMissingError):
                session_options()  # reports a wrong file even if no session follows
        yield
    finally:
        _custom_ops.reset(token)


def registering_custom_ops(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function to register the libraries of its argument `custom_ops` while it runs."""

    @functools.wraps(function)
    def registering(*args: P.args, **kwargs: P.kwargs) -> R:
        with registered_custom_ops(cast("Sequence[str]", kwargs.get("custom_ops", ()))):
            return function(*args, **kwargs)

    return registering


def custom_op_libraries() -> tuple[str, ...]:
    """Returns the paths of the user's libraries that new sessions register."""
    return _custom_ops.get()


def session_options() -> Any:
    """Creates `SessionOptions` and registers the user's operator libraries.

    Raises:
        OptionError: the runtime cannot load a library.
    """
    options = import_onnxruntime().SessionOptions()
    for path in custom_op_libraries():
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # the runtime's exception classes share no public base
            raise OptionError(
                f"--custom-ops {path}: {runtime_name()} cannot load it: {runtime_message(error)}"
            ) from None
    return options


# ONNX Runtime's messages about an unknown operator in a custom domain and in ONNX's domain.
_UNKNOWN = re.compile(r"(\S+?):(\S+)\(-?\d+\) is not a registered function/op")
_UNKNOWN_IN_ONNX = re.compile(r"No Op registered for (\S+) with domain_version")
_DOMAINS_OF_RUNTIMES = ("ai.onnx.ml", "com.microsoft", DOMAIN)


def operator_of_user(error: Exception) -> str:
    """Returns a custom operator that no library registers; "" for other errors, and if a newer runtime may have it."""
    if (found := _UNKNOWN.search(str(error))) and found[1] not in _DOMAINS_OF_RUNTIMES:
        return f"{found[1]}:{found[2]}"
    if (found := _UNKNOWN_IN_ONNX.search(str(error))) and not onnx.defs.has(found[1]):
        return found[1]
    return ""


def cannot_load(model: str, error: Exception, provider: str = "") -> str:
    """Returns the message for a model that the runtime rejects: the reason and the remedy."""
    if unknown := operator_of_user(error):
        return (
            f"{model}: {runtime_name()} has no operator {unknown}: give the library that registers it with "
            "--custom-ops LIB (custom_ops= in Python)"
        )
    on = f" on {provider}" if provider else ""
    return (
        f"{model}: {runtime_name()} cannot load it{on}: {runtime_message(error)}; use a runtime that can, or export "
        "the model for this one (opset, IR version, types)"
    )
