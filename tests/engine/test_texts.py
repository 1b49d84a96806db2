"""A request whose text can't be made ends by itself: all others get their answers, whoever steps."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.engine.test_engine import GREEDY, alone, drain, patched, prompts
from tests.engine.test_threads import run
from torch_foundry.core import runtime
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, SamplingParams, Stream
from torch_foundry.text import StreamDecoder

pytestmark = pytest.mark.usefixtures("quiet")


class PanicException(BaseException):
    """As the tokenizers library raises it."""


FAULTS = (ValueError("broken"), PanicException("Retry-limit-in-match over"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_path())


def broken(stream: Stream, error: BaseException, good: int, method: str = "push") -> None:
    """Let the decoder of `stream` raise, after so many good calls."""
    decoder: Any = stream.sequence.text._decoder
    work, calls = getattr(decoder, method), [0]

    def raises(*args: Any) -> str:
        calls[0] += 1
        if calls[0] > good:
            raise error
        return str(work(*args))

    setattr(decoder, method, raises)


def stepped(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [Engine.run, stepped], ids=["run", "step"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_fault_of_a_requests_text_is_its_own(
    error: BaseException, way: Callable[[Engine], Any], ahead: int, tokenizer: Any
) -> None:
    engine = Engine(patched(), tokenizer, requests=3, ahead=ahead)
    streams = [engine.submit(prompt, GREEDY) for prompt in prompts(6)]
    broken(streams[1], error, 0)
    broken(streams[4], error, 5)
    way(engine)
    for i, stream in enumerate(streams):
        expected = alone(engine.model, prompts()[i])
        if i in (1, 4):
            assert stream.finish_reason == "error" and stream.error is not None and stream.error.__cause__ is error
            assert stream.tokens == expected[: 1 if i == 1 else 6]
            for read in (stream.result, lambda stream=stream: list(stream.texts())):
                with pytest.raises(RuntimeError, match=f"can't be made a text: {type(error).__name__}: {error}"):
                    read()
        else:
            assert stream.finish_reason == "length" and stream.result() == expected
            assert stream.text == "".join(stream.texts()) == tokenizer.decode(expected, skip_special_tokens=True)
    drain(engine)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_threads_whose_requests_have_no_fault_see_none(error: BaseException, tokenizer: Any) -> None:
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts()]
    engine = Engine(model, tokenizer, requests=3)
    found: dict[int, list[int]] = {}

    def work(thread: int) -> None:
        with runtime.host_options(threads=1):
            for i in range(thread, 8, 4):
                stream = engine.submit(prompts()[i], GREEDY)
                if i in (2, 5):
                    broken(stream, error, 3)
                    with pytest.raises(RuntimeError, match="can't be made a text"):
                        list(stream)
                    assert stream.finish_reason == "error" and len(stream.tokens) <= 14
                else:
                    found[i] = list(stream)
                engine.run()

    assert run(*[lambda i=i: work(i) for i in range(4)]) == []
    assert found == {i: expected[i] for i in range(8) if i not in (2, 5)}
    drain(engine)


def test_a_fault_at_the_end_of_a_text(tokenizer: Any) -> None:
    engine = Engine(patched(), tokenizer)
    bad, cancelled, good = (engine.submit(prompt, GREEDY) for prompt in prompts(3))
    for stream in (bad, cancelled):
        broken(stream, FAULTS[1], 0, "finish")
    engine.step()
    cancelled.cancel()
    engine.run()
    assert bad.finish_reason == cancelled.finish_reason == "error" and len(bad.tokens) == GREEDY.max_tokens
    assert good.finish_reason == "length" and good.result() == alone(engine.model, prompts()[2])
    drain(engine)


def test_a_fault_at_the_last_token_is_an_error(tokenizer: Any) -> None:
    engine = Engine(patched(), tokenizer)
    stream = engine.submit([5, 6], SamplingParams(max_tokens=4, temperature=0))
    broken(stream, FAULTS[0], 3)
    engine.run()
    assert stream.finish_reason == "error" and len(stream.tokens) == 4
    drain(engine)


def test_ctrl_c_in_a_decoder(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """It comes after the step, and costs no text."""
    engine = Engine(patched(), tokenizer)
    streams = [engine.submit(prompt, GREEDY) for prompt in prompts(2)]
    push, calls = StreamDecoder.push, [0]

    def pressed(self: StreamDecoder, ids: Any) -> str:
        calls[0] += 1
        if calls[0] % 5 == 1:
            signal.raise_signal(signal.SIGINT)
        return push(self, ids)

    monkeypatch.setattr(StreamDecoder, "push", pressed)
    interrupts = 0
    while not engine.idle:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    for stream, prompt in zip(streams, prompts(), strict=False):
        assert stream.result() == alone(engine.model, prompt)
        assert stream.text == tokenizer.decode(stream.tokens, skip_special_tokens=True)
    assert interrupts > 2
    drain(engine)


def test_a_prompt_that_the_tokenizer_panics_at() -> None:
    def tokenizer(text: str) -> Any:
        raise error

    engine = Engine(patched())
    for error in FAULTS:
        engine.tokenizer = tokenizer
        with pytest.raises(ValueError, match=f"prompt: the tokenizer failed: {type(error).__name__}: {error}"):
            engine.submit("a")
    assert engine.idle
