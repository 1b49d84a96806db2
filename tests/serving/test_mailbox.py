"""Updates between the engine's thread and the event loop's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from torch_foundry.serving.engine_thread import Update
from torch_foundry.serving.mailbox import Mailbox, News


def test_one_wake_up_brings_all_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop, wakes = asyncio.get_running_loop(), 0
        call = loop.call_soon_threadsafe

        def counted(*args: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return call(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        mail, first, second = Mailbox(loop), News(), News()
        for _ in range(2):
            for token in range(3):
                mail.send(first, 0, Update(str(token), [token]))
                mail.send(second, 1, Update("x", [7]))
            assert await first.take() == [(0, Update("012", (0, 1, 2)))]
            assert await second.take() == [(1, Update("xxx", (7, 7, 7)))]
        assert wakes == 2

    asyncio.run(run())


def test_what_was_missed_is_one_update_of_each_answer() -> None:
    async def run() -> None:
        news, fault = News(), ValueError("no")
        news.put(1, Update("a", [1], cached=4))
        news.put(0, Update("b", [2]))
        news.put(1, Update("c", [3, 4], finish_reason="stop", stop="!", cached=4))
        news.put(0, Update(finish_reason="error", error=fault))
        found = await news.take()
        assert found[0] == (1, Update("ac", (1, 3, 4), finish_reason="stop", stop="!", cached=4))
        assert found[1:] == [(0, Update("b", [2])), (0, Update(finish_reason="error", error=fault))]
        news.put(1, Update("d", [5]))
        assert await news.take() == [(1, Update("d", [5]))]
        asyncio.get_running_loop().call_later(0.01, news.expire)
        with pytest.raises(TimeoutError):
            await news.take()

    asyncio.run(run())


def test_nothing_is_lost_between_threads() -> None:
    async def run() -> None:
        mail, news, count = Mailbox(asyncio.get_running_loop()), News(), 20_000

        def send() -> None:
            for token in range(count):
                mail.send(news, 0, Update("", [token]))

        thread = threading.Thread(target=send)
        thread.start()
        tokens: list[int] = []
        while len(tokens) < count:
            tokens += [token for _, update in await news.take() for token in update.tokens]
        thread.join()
        assert tokens == list(range(count))

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_closed_loop_is_told() -> None:
    loop = asyncio.new_event_loop()
    mail = Mailbox(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            mail.send(None, 0, Update())  # type: ignore[arg-type]
