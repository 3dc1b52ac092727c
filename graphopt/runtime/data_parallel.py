"""Data parallelism: one model on several devices, each with a session, and every batch split between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ops.schema import Array
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, Provider, discrete_devices, why_cpu
from graphopt.runtime.sessions import session


class DataParallel:
    """Splits the first axis of its inputs over several sessions, runs them concurrently and concatenates the outputs.

    The model must process each item of a batch independently. Inputs without the batch axis are passed unsplit to
    every session.

    Attributes:
        sessions: one for each device.
        batch: the symbol of the first axis, which is split.
    """

    def __init__(
        self,
        model: Any,
        providers: Sequence[Sequence[Provider]] | None = None,
        **options: Any,
    ) -> None:
        """Creates the sessions.

        Args:
            model: as for `session`.
            providers: the argument of `session` for each session. None selects all devices of our provider; integrated
                GPUs only if there are no discrete ones.
            options: as for `session`.

        Raises:
            RuntimeMissingError: no runtime, or no native library.
            GraphoptError: there is no device, the runtime rejects the model, no input has a batch axis, or an output
                has none.
        """
        if providers is None:
            providers = [[(DEVICE_PROVIDER, {"device": i}), CPU] for i in discrete_devices()]
        if not providers:
            reason = why_cpu()
            why = "" if reason is None else f": {reason}"
            raise GraphoptError(f"{DEVICE_PROVIDER} has no devices here{why}")
        self.sessions = [session(model, list(chosen), **options) for chosen in providers]
        self._inputs = {i.name: i.shape for i in self.sessions[0].get_inputs()}
        outputs = {o.name: o.shape for o in self.sessions[0].get_outputs()}
        firsts = [shape[0] for shape in self._inputs.values() if shape and isinstance(shape[0], str)]
        if not firsts:
            raise GraphoptError("no input has a symbolic first axis to split: export the model with one")
        self.batch: str = firsts[0]
        whole = [name for name, shape in outputs.items() if not shape or shape[0] != self.batch]
        if whole:
            raise GraphoptError(f"the first axis of output {whole[0]} is not {self.batch}, the batch of the inputs")
        self._threads = ThreadPoolExecutor(len(self.sessions), thread_name_prefix="graphopt")

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """Runs the model like `InferenceSession.run`; a batch of n items uses at most n sessions.

        Raises:
            GraphoptError: no input has the batch axis, or the inputs have different batch sizes.
        """
        split = {name: x for name, x in feeds.items() if self._inputs[name][:1] == [self.batch]}
        sizes = {name: len(x) for name, x in split.items()}
        if not split:
            raise GraphoptError(f"no input with the batch axis {self.batch} is given")
        if len(set(sizes.values())) != 1:
            raise GraphoptError(f"the inputs have different batch sizes: {sizes}")
        count = min(len(self.sessions), max(1, next(iter(sizes.values()))))
        parts = {name: np.array_split(x, count) for name, x in split.items()}
        runs = [
            self._threads.submit(s.run, output_names, {**feeds, **{name: parts[name][i] for name in split}})
            for i, s in enumerate(self.sessions[:count])
        ]
        results = [r.result() for r in runs]
        return [np.concatenate(pieces) for pieces in zip(*results, strict=True)]
