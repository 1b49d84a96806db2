"""Images in requests of all protocols: they reach the model, whatever else is said; bad ones are refused by name."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from PIL import Image

from tests.hf.seeing import model_and_processor, picture_file
from tests.serving.conftest import NAME, Serve, address
from torch_foundry import cli
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.serving.app import Server

TOKENS = 6
Seeing = tuple[Any, Any]


def picture(*args: Any) -> str:
    """An image, as base64."""
    return base64.b64encode(picture_file(*args)).decode()


RED, BLUE = picture((250, 20, 20)), picture((20, 20, 250), (40, 16), "JPEG")


@pytest.fixture(scope="module")
def seeing(demo: Any) -> Seeing:
    """A tiny model that is shown images, patched, and its processor, with the demo's tokenizer."""
    return model_and_processor(demo[1])


@pytest.fixture(scope="module")
def server(serve: Serve, seeing: Seeing) -> Iterator[Server]:
    with serve(seeing=seeing, max_images=2, max_pixels=1000) as found:
        yield found


@pytest.fixture(scope="module")
def raw(server: Server) -> httpx.Client:
    host, port = address(server)
    return httpx.Client(base_url=f"http://{host}:{port}", timeout=60)


def alone(seeing: Seeing, text: str, *images: str) -> tuple[str, int]:
    """The answer to a rendered conversation in an engine, and the number of the prompt's tokens."""
    model, processor = seeing
    shown = [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in images]
    inputs = processor(text=[text], images=shown, add_special_tokens=False, return_tensors="pt")
    stream = Engine(model, processor.tokenizer).submit(inputs, SamplingParams(max_tokens=TOKENS, temperature=0))
    stream.result()
    return stream.text, inputs["input_ids"].shape[1]


SAID = "[user]What is<image>this?[assistant]"


def test_a_chat(server: Server, seeing: Seeing) -> None:
    host, port = address(server)
    ai = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)

    def ask(*contents: Any) -> Any:
        roles = ["user", "assistant"]
        said: Any = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
        return ai.chat.completions.create(model=NAME, messages=said, temperature=0.0, max_tokens=TOKENS)

    def shown(data: str, kind: str) -> list[dict[str, Any]]:
        url = {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}", "detail": "auto"}}
        return [{"type": "text", "text": "What is"}, url, {"type": "text", "text": "this?"}]

    red, blue = ask(shown(RED, "png")), ask(shown(BLUE, "jpeg"))
    for answer, image in ((red, RED), (blue, BLUE)):
        expected, tokens = alone(seeing, SAID, image)
        assert answer.choices[0].message.content == expected
        assert answer.usage.prompt_tokens == tokens > 17
    assert red.choices[0].message.content != blue.choices[0].message.content
    more = ask(shown(RED, "png"), "Red.", shown(BLUE, "jpeg"))
    both = f"{SAID.removesuffix('[assistant]')}[assistant]Red.{SAID}"
    assert more.choices[0].message.content == alone(seeing, both, RED, BLUE)[0]
    longer = ask(shown(RED, "png"), "Red, and what a red it is! " * 3, "Really?")
    assert longer.usage.prompt_tokens_details.cached_tokens == 0  # no block of the first ends behind its image
    again = ask(shown(RED, "png"), "Red, and what a red it is! " * 3, "Really?")
    assert again.usage.prompt_tokens_details.cached_tokens > 17
    assert again.choices[0].message.content == longer.choices[0].message.content
    text = ai.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Hi"}], temperature=0.0, max_tokens=TOKENS
    )
    model, processor = seeing
    ids = processor.tokenizer("[user]Hi[assistant]", add_special_tokens=False)["input_ids"]
    stream = Engine(model, processor.tokenizer).submit(ids, SamplingParams(max_tokens=TOKENS, temperature=0))
    stream.result()
    assert text.choices[0].message.content == stream.text


def test_responses_and_messages(server: Server, seeing: Seeing) -> None:
    (host, port), expected = address(server), alone(seeing, SAID, RED)
    ai = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    parts: Any = [
        {"type": "input_text", "text": "What is"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{RED}", "detail": "auto"},
        {"type": "input_text", "text": "this?"},
    ]
    told: dict[str, Any] = {"model": NAME, "temperature": 0.0}
    found = ai.responses.create(**told, input=[{"role": "user", "content": parts}], max_output_tokens=TOKENS)
    assert (found.output_text, found.usage and found.usage.input_tokens) == expected
    claude = anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="none", max_retries=0)
    blocks: Any = [
        {"type": "text", "text": "What is"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED}},
        {"type": "text", "text": "this?"},
    ]
    said: Any = [{"role": "user", "content": blocks}]
    answer = claude.messages.create(model=NAME, messages=said, max_tokens=TOKENS, extra_body={"temperature": 0.0})
    assert answer.content[0].text == expected[0]  # type: ignore[union-attr]
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == expected[1]
    assert claude.messages.count_tokens(model=NAME, messages=said).input_tokens == expected[1]


def _bomb() -> str:
    """A PNG of a few bytes that says to have 20000 x 20000 pixels."""
    head = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


PNG = "data:image/png;base64,"
BAD = {
    "http://localhost/a.png": "no address is followed",
    "file:///etc/passwd": "no address is followed",
    "data:text/html;base64,AAAA": "no address is followed",
    f"{PNG}!!!": "expected base64",
    f"{PNG}{base64.b64encode(b'no image at all').decode()}": "expected an image (PNG, JPEG, WEBP, GIF): Unidentified",
    f"{PNG}{RED[:60]}": "expected an image (PNG, JPEG, WEBP, GIF)",
    f"{PNG}{_bomb()}": "expected an image (PNG, JPEG, WEBP, GIF): DecompressionBombError",
    f"{PNG}{picture((0, 0, 0), (40, 30))}": "expected at most 1000 pixels, got 40 x 30",
    f"{PNG}{picture((0, 0, 0), (20, 20), 'TIFF')}": "expected an image",
}


@pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
def test_bad_images_are_refused_by_name(raw: httpx.Client, url: str) -> None:
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = raw.post("/v1/chat/completions", json={"model": NAME, "messages": [{"role": "user", "content": parts}]})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "messages[0].content[1]" and BAD[url] in error["message"]


def test_limits_and_other_places(raw: httpx.Client, serve: Serve) -> None:
    image = {"type": "image_url", "image_url": {"url": PNG + RED}}

    def ask(client: httpx.Client, role: str, *parts: Any) -> str:
        said = {"model": NAME, "messages": [{"role": role, "content": [*parts]}]}
        answer = client.post("/v1/chat/completions", json=said)
        assert answer.status_code == 400
        return answer.json()["error"]["message"]  # type: ignore[no-any-return]

    assert ask(raw, "user", image, image, image) == "messages: expected at most 2 images, got 3"
    assert "expected a part of the type text, got 'image_url'" in ask(raw, "assistant", image)
    assert "expected a part of the type text or image_url or input_audio" in ask(raw, "user", {"type": "file"})
    mark = {"type": "text", "text": "<image>"}  # of nothing that is shown
    assert "the model's processor can't read the images" in ask(raw, "user", image, mark, mark)
    with serve() as blind:
        host, port = address(blind)
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as client:
            assert ask(client, "user", image) == "messages[0].content[0]: this server's model is shown no images"


def test_the_command_loads_a_model_with_its_processor(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture
) -> None:
    served: list[Server] = []
    monkeypatch.setattr(Server, "run", lambda self: served.append(self))
    for each in seeing:
        each.save_pretrained(tmp_path)
    given = ["serve", str(tmp_path), "--device", "cpu", "--images", "3", "--blocks", "64"]
    assert cli.main(given) == 0
    service = served[0].service
    assert service.config.max_images == 3 and type(service.engine.model).__name__ == "LlavaForConditionalGeneration"
    assert type(service.processor).__name__ == "LlavaProcessor" and service.processor.tokenizer is service.tokenizer
    service.thread.close()
    service.thread.join(60)
    assert cli.main(["serve", "--device", "cpu", "--images", "1"]) == 2
    assert "--images: expected the folder of a model that is shown images" in capsys.readouterr().err
