"""Dynamic batching for engines without it, or with batching in which an invalid request fails the whole batch."""

from __future__ import annotations

import asyncio
import contextlib

from graphopt.serving.served import Feeds, Served, rows_of


class Batcher:
    """Merges the requests that arrive before a batch starts.

    One batch runs at a time, in a thread of the event loop's executor. A batch starts when it is full, or `delay_ms`
    after its first request; if that request arrived during the previous batch, `delay_ms` after the end of that batch.
    There is no close method: after an engine has reloaded a model, the old Batcher still answers its pending requests.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._most = served.deployment.max_batch
        self._delay = served.deployment.delay_ms / 1000
        self._waiting: list[tuple[Feeds, asyncio.Future[Feeds]]] = []
        self._enough = asyncio.Event()
        self._runs: asyncio.Task[None] | None = None

    async def run(self, feeds: Feeds) -> Feeds:
        """Returns the outputs of one request.

        Args:
            feeds: input name -> array.

        Returns:
            Output name -> array.

        Raises:
            RequestError: the request does not fit the model, or the runtime rejects its values.
            MemoryError: this machine has not enough memory for it.
        """
        self._served.deployment.check(feeds)
        future: asyncio.Future[Feeds] = asyncio.get_running_loop().create_future()
        self._waiting.append((feeds, future))
        if self._rows() >= self._most:
            self._enough.set()
        if self._runs is None or self._runs.done():
            self._runs = asyncio.create_task(self._run_all())
        return await future

    def _rows(self) -> int:
        return sum(rows_of(feeds) if self._most > 1 else 1 for feeds, _ in self._waiting)

    async def _run_all(self) -> None:
        while self._waiting:
            if self._most > 1 and self._delay and self._rows() < self._most:
                self._enough.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._enough.wait(), self._delay)
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    None, self._served.run_many, [feeds for feeds, _ in batch]
                )
            except Exception as error:  # no request may wait forever
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # the client has disconnected
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
