"""One model on several devices: a session on each, and every run splits its batch between them."""

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
    """Splits the first axis of its inputs over several sessions, runs them at once, and joins the outputs.

    For models that treat each item of a batch on its own, as inference does. Inputs whose first axis is not the batch
    go whole to every session.

    Attributes:
        sessions: one for each device.
        batch: the symbol of the first axis that is split.

    """

    def __init__(
        self,
        model: Any,
        providers: Sequence[Sequence[Provider]] | None = None,
        **options: Any,
    ) -> None:
        """Opens the sessions.

        Args:
            model: as for `session`.
            providers: what `session` takes, once for each session; None for one on each device of our own provider,
                without GPUs that are part of a processor where there are others.
            options: as for `session`.

        Raises:
            RuntimeMissingError: no runtime, or no native library.
            GraphoptError: there is no device, the runtime refuses the model, or an input or output has no batch axis.

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
        """As `InferenceSession.run`; batches smaller than the number of sessions use as many as they have items.

        Raises:
            GraphoptError: inputs whose batches differ.

        """
        split = {name: x for name, x in feeds.items() if self._inputs[name][:1] == [self.batch]}
        sizes = {name: len(x) for name, x in split.items()}
        if len(set(sizes.values())) != 1:
            raise GraphoptError(f"the inputs have different batches: {sizes}")
        count = min(len(self.sessions), max(1, next(iter(sizes.values()))))
        parts = {name: np.array_split(x, count) for name, x in split.items()}
        runs = [
            self._threads.submit(s.run, output_names, {**feeds, **{name: parts[name][i] for name in split}})
            for i, s in enumerate(self.sessions[:count])
        ]
        results = [r.result() for r in runs]
        return [np.concatenate(pieces) for pieces in zip(*results, strict=True)]
