"""A served model: a session that checks requests and merges them into batches."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphopt import files
from graphopt.errors import GraphoptError, is_out_of_memory
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, Provider, default_providers
from graphopt.runtime.sessions import session
from graphopt.serving.deployment import MODEL, Array, RequestError, read_deployment
from graphopt.serving.shared import FOLDER, load_shared_form, shared_form, weights_folder

Feeds = dict[str, Array]
# The outputs of a request, or its error.
Answer = Feeds | RequestError | MemoryError


class Served:
    """One version of a model in this process.

    Args:
        folder: NAME/VERSION, with `model.onnx` and `serving.json`.
        instance: index of this instance, which selects its GPU; None if the engine does not number instances.

    Raises:
        GraphoptError: the folder or the model cannot be used.
        RuntimeMissingError: no runtime, or no native library.
    """

    def __init__(self, folder: str | os.PathLike[str], instance: int | None = None) -> None:
        self.folder = Path(folder)
        self.deployment = read_deployment(folder)
        providers: list[Provider] | None = None
        self._claim = None
        if devices := self.deployment.devices:
            if instance is None:
                instance, self._claim = _claim_slot(self.folder, self.deployment.instances)
            providers = [(DEVICE_PROVIDER, {"device": devices[instance % len(devices)]}), CPU]
        self._session = self._open(providers)
        self._names = [tensor.name for tensor in self.deployment.outputs]

    def _open(self, providers: list[Provider] | None) -> Any:
        options: dict[str, Any] = {"warm_up": self.deployment.warm_up, "intra_op_num_threads": self.deployment.threads}
        model = self.folder / MODEL
        # Only CPU sessions can share weights; a GPU has its own copy.
        if providers is None and default_providers()[0] == CPU and (shared := weights_folder()):
            os.environ[FOLDER] = str(shared)  # for our library
            if form := shared_form(model, shared):
                with suppress(GraphoptError):  # another process may have evicted it
                    return load_shared_form(form, **options)
        return session(model, providers, **options)

    def run(self, feeds: Feeds) -> Feeds:
        """Runs one request.

        Args:
            feeds: input name -> array.

        Returns:
            Output name -> array.

        Raises:
            RequestError: the request does not fit the model, or the runtime rejects its values.
            MemoryError: this machine has not enough memory for it.
        """
        self.deployment.check(feeds)
        return self._run(feeds)

    def run_many(self, requests: Sequence[Feeds]) -> list[Answer]:
        """Returns the outputs or the error of each request. A failing request does not affect the others.

        If the model supports batches, requests with equal shapes apart from the first axis run together.
        """
        results: list[Answer] = [RequestError("")] * len(requests)
        batches: dict[Any, list[int]] = {}
        for i, feeds in enumerate(requests):
            try:
                self.deployment.check(feeds)
            except RequestError as error:
                results[i] = error
                continue
            alike = tuple((n, a.shape[1:]) for n, a in sorted(feeds.items())) if self.deployment.max_batch > 1 else i
            batches.setdefault(alike, []).append(i)
        for members in batches.values():
            while members:
                count = self._how_many(requests, members)
                for i, result in zip(members[:count], self._run_as_one([requests[i] for i in members[:count]])):
                    results[i] = result
                del members[:count]
        return results

    def _how_many(self, requests: Sequence[Feeds], members: Sequence[int]) -> int:
        """Returns how many requests, from the first of `members` on, fit into one batch; at least one."""
        if self.deployment.max_batch == 1:  # the inputs may be scalars, which have no rows
            return 1
        rows = 0
        for count, i in enumerate(members):
            rows += rows_of(requests[i])
            if count and rows > self.deployment.max_batch:
                return count
        return len(members)

    def _run_as_one(self, requests: Sequence[Feeds]) -> list[Answer]:
        if len(requests) == 1:
            try:
                return [self._run(requests[0])]
            except (RequestError, MemoryError) as error:
                return [error]
        try:
            merged = self._run({name: np.concatenate([r[name] for r in requests]) for name in requests[0]})
        except (RequestError, MemoryError):  # caused by one request, or by the size of the batch
            return [self._run_as_one([request])[0] for request in requests]
        stops = np.cumsum([rows_of(request) for request in requests])
        return [
            {name: array[stop - rows_of(request) : stop] for name, array in merged.items()}
            for request, stop in zip(requests, stops, strict=True)
        ]

    def _run(self, feeds: Feeds) -> Feeds:
        try:
            return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        except Exception as error:  # the runtime's exception classes share no public base
            message = f"{self.deployment.name}: ONNX Runtime: {str(error).strip()}"
            raise (MemoryError if is_out_of_memory(message) else RequestError)(message) from None


def rows_of(feeds: Feeds) -> int:
    """Returns the number of rows of a request: the first axis of each of its inputs."""
    return len(next(iter(feeds.values())))


def _claim_slot(folder: Path, count: int) -> tuple[int, IO[bytes] | None]:
    """Claims the lowest index that no other running process of this user has claimed for this model.

    The operating system releases the lock of a killed process, so a new worker gets the index of the killed one.

    Returns:
        The index, and the locked file, which must stay open; if no index is free, one from the process id, and None.
    """
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    for index in range(count):
        handle = (Path(tempfile.gettempdir()) / f"graphopt-{os.getuid()}-{digest}-{index}.lock").open("ab")
        with suppress(OSError):
            if files.lock(handle, 0):
                return index, handle
        handle.close()
    return os.getpid() % count, None  # more processes than configured instances
