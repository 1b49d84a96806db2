"""Updates of requests on their way from the engine's thread to the event loop's."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from torch_foundry.serving.engine_thread import Update


class Mailbox:
    """Of one event loop. What was sent until it looks comes with one wake-up, which costs more than a token does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sent: deque[tuple[News, int, Update]] = deque()
        self._woken = False

    def send(self, news: News, number: int, update: Update) -> None:
        """From any thread. RuntimeError: the loop is closed."""
        self._sent.append((news, number, update))
        if not self._woken:
            self._woken = True  # before it is: the loop may look at once
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._woken = False  # the next one is told, too
                raise

    def _deliver(self) -> None:
        self._woken = False  # before the first is taken: what is sent from now on wakes again
        while self._sent:
            news, number, update = self._sent.popleft()
            news.put(number, update)


class News:
    """What has come of a request's answers and was not taken yet. Its methods are for the event loop's thread.

    What a reader that is behind has missed of an answer is one update: so many tokens cost it no more than one.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[tuple[int, bool], list[Update]] = defaultdict(list)
        self._any = asyncio.Event()
        self._late = False

    def put(self, number: int, update: Update) -> None:
        """An update of the answer of that number."""
        self._waiting[number, update.error is not None].append(update)  # an error is not one with the text before it
        self._any.set()

    def expire(self) -> None:
        """End the waiting of whoever takes."""
        self._late = True
        self._any.set()

    async def take(self) -> list[tuple[int, Update]]:
        """All that has come, at least one. TimeoutError: it has expired."""
        await self._any.wait()
        if self._late:
            raise TimeoutError
        self._any.clear()
        waiting, self._waiting = self._waiting, defaultdict(list)
        return [(number, Update.joined(updates)) for (number, _), updates in waiting.items()]
