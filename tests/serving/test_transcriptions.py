"""Transcripts: what is said in a file, asked for as the model's processor has it, or in our own words."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.hf.hearing import model_and_processor, sine, sound_file, transcribing
from tests.serving.conftest import NAME, Serve, address
from tests.serving.test_sounds import as_read, client_of
from torch_foundry import unpatch
from torch_foundry.core.load_errors import LoadError
from torch_foundry.serving.app import Server
from torch_foundry.text import adopt
from torch_foundry.text.processor import transcript, transcription

PATH, LIMIT = "/v1/audio/transcriptions", 40
SOUND, FILE = as_read(sine(300)), sound_file(sine(300))


@pytest.fixture(scope="module")
def models(demo: Any) -> dict[str, Any]:
    """Tiny models that hear, and their processors: one whose processor asks for transcripts, and one that chats."""
    return {"asks": transcribing(demo[1]), "chats": model_and_processor(demo[1])}


@pytest.fixture(scope="module")
def servers(serve: Serve, models: Any) -> Iterator[dict[str, Server]]:
    told: dict[str, Any] = {"max_sounds": 1, "max_seconds": 0.9, "max_tokens": LIMIT, "origins": ("http://here",)}
    with serve(seeing=models["asks"], **told) as asks, serve(seeing=models["chats"], **told) as chats:
        yield {"asks": asks, "chats": chats}


@pytest.fixture(scope="module")
def raw(servers: Any) -> httpx.Client:
    return client_of(servers["asks"])


def stock(pair: Any, inputs: Any) -> list[int]:
    """The tokens that stock code answers with."""
    model = unpatch(copy.deepcopy(pair[0]))
    found = model.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)
    return found[0, inputs["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("told", [{}, {"language": "en"}, {"language": "fr", "prompt": "Names: Ada, Bob."}], ids=str)
def test_what_a_processor_asks(servers: Any, models: Any, told: dict[str, str]) -> None:
    host, port = address(servers["asks"])
    ai = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    processor = models["asks"][1]
    asked = processor.apply_transcription_request(audio=[SOUND], tokenize=False, **told)
    inputs = processor(text=asked, audio=[SOUND], add_special_tokens=False)
    expected = processor.decode(stock(models["asks"], inputs), return_format="transcription_only")
    found: Any = ai.audio.transcriptions.create(model=NAME, file=("a.wav", FILE), **told)  # type: ignore[call-overload]
    length = inputs["input_ids"].shape[1]
    assert found.text == expected and len(expected) > 9
    assert (found.usage.input_tokens, found.usage.output_tokens) == (length, LIMIT)
    assert found.usage.total_tokens == length + LIMIT
    text = ai.audio.transcriptions.create(
        model=NAME, file=("a.wav", FILE), response_format="text", temperature=0.0, **told
    )
    assert str(text).strip() == expected


@pytest.mark.parametrize("told", [{}, {"language": "French", "prompt": "Names: Ada, Bob."}], ids=str)
def test_a_model_that_chats_is_asked_in_words(servers: Any, models: Any, told: dict[str, str]) -> None:
    processor = models["chats"][1]
    question = "Write down what is said in this audio, word for word, and nothing else."
    question += " The language is French. What is known of it: Names: Ada, Bob." if told else ""
    text = f"[user]<|AUDIO|>{question}[assistant]"
    inputs = processor(text=[text], audio=[SOUND], return_tensors="pt", add_special_tokens=False)
    expected = processor.tokenizer.decode(stock(models["chats"], inputs), skip_special_tokens=True)
    answer = client_of(servers["chats"]).post(PATH, data={"model": NAME, **told}, files={"file": FILE})
    assert answer.json()["text"] == expected.strip()


def test_what_belongs_to_no_transcript_is_cut(models: Any) -> None:
    processor = models["asks"][1]
    said = processor.tokenizer("language English<asr_text>It is late.", add_special_tokens=False)["input_ids"]
    assert transcript(processor, said) == "It is late."


def test_a_template_has_a_budget(models: Any) -> None:
    processor = copy.copy(models["asks"][1])
    processor.tokenizer = adopt(copy.deepcopy(processor.tokenizer), "folder")
    processor.tokenizer.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(LoadError):
        transcription(processor, SOUND)


BAD: dict[str, tuple[dict[str, Any], bytes, str | None, str]] = {
    "no file of sounds": ({}, b"no sound", "file", "file: expected a file of a format among wav, mp3, flac, ogg"),
    "nothing": ({}, b"", "file", "file: expected a file of a format among"),
    "too long": ({}, sound_file(sine(300, 1.0)), "file", "file: expected 0.1 to 0.9 seconds, got 1"),
    "broken": ({}, FILE[:20], "file", "file: expected a file of the format wav: Error in WAV"),
    "a form": (
        {"response_format": "srt"},
        FILE,
        "response_format",
        "response_format: Input should be 'json' or 'text'",
    ),
    "a field": ({"stream": "true"}, FILE, "stream", "stream: this server knows no such field"),
    "a temperature": ({"temperature": "hot"}, FILE, "temperature", "temperature: Input should be a valid number"),
    "a low temperature": ({"temperature": "-1"}, FILE, "temperature", "temperature: "),
    "a language": ({"language": "Klingon"}, FILE, None, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(raw: httpx.Client, name: str) -> None:
    fields, file, param, message = BAD[name]
    answer = raw.post(PATH, data={"model": NAME, **fields}, files={"file": ("a.wav", file)})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and error["message"].startswith(message)


def test_fields_that_are_missing_or_not_here(raw: httpx.Client, servers: Any) -> None:
    answers = [
        raw.post(PATH, files={"file": FILE}),
        raw.post(PATH, data={"model": NAME}, files={"other": FILE}),
        raw.post(PATH, data={"model": "another"}, files={"file": FILE}),
        raw.post(PATH, content=b"broken", headers={"content-type": "multipart/form-data; boundary=x"}),
        raw.post(PATH, json={"model": NAME}),
        raw.post(PATH, data={"model": NAME}, files={"file": bytes(9 << 20)}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 404, 400, 415, 413]
    assert answers[4].json()["error"]["message"] == (
        "content-type: expected multipart/form-data, got 'application/json'"
    )
    chat = raw.post("/v1/chat/completions", data={"model": NAME}, files={"file": FILE})
    assert chat.status_code == 415  # which only files need


def test_a_form_of_a_strange_page_is_refused(raw: httpx.Client) -> None:
    """A browser asks nobody before it sends a form, but says whose page it is of."""
    codes = []
    for origin in ("http://elsewhere", "null", "http://here"):
        answer = raw.post(PATH, data={"model": NAME}, files={"file": FILE}, headers={"origin": origin})
        codes.append(answer.status_code)
    assert codes == [403, 403, 200]


def test_a_model_that_hears_nothing(serve: Serve) -> None:
    with serve() as deaf, client_of(deaf) as client:
        answer = client.post(PATH, data={"model": NAME}, files={"file": FILE})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "file: this server's model hears no sounds"


def test_an_argument_that_the_processor_does_not_take(models: Any) -> None:
    class Without:
        def apply_transcription_request(self, audio: Any, tokenize: bool = True) -> None: ...

    with pytest.raises(ValueError, match="language: expected none, as Without takes none, got 'en'"):
        transcription(Without(), SOUND, language="en")
