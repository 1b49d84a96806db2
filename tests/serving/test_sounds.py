"""Sounds in requests of both protocols that have them: they reach the model as its processor makes them; bad ones are
refused by name."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import transformers

from tests.hf.hearing import RATE, model_and_processor, seeing_and_hearing, sine, sound_file
from tests.hf.seeing import picture_file
from tests.serving.conftest import NAME, Serve, address
from torch_foundry import cli, unpatch
from torch_foundry.engine import Engine
from torch_foundry.serving.app import Server
from torch_foundry.serving.service import ServerConfig, Service
from torch_foundry.text import adopt, showing
from torch_foundry.text.media import heard_by, hears, pixels, samples

TOKENS = 6
Hearing = tuple[Any, Any]
LOW, HIGH = sine(300), sine(2500, 0.8)


def said(data: bytes, format: str = "wav") -> dict[str, Any]:
    """The part of a message."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": format}}


@pytest.fixture(scope="module")
def hearing(demo: Any) -> Hearing:
    """A tiny model that hears sounds, patched, and its processor, with the demo's tokenizer."""
    return model_and_processor(demo[1])


@pytest.fixture(scope="module")
def expected(demo: Any) -> Any:
    """What stock code answers to a rendered conversation with sounds (float32 [n]), and how long the prompt is."""
    model, processor = model_and_processor(demo[1])
    unpatch(model)

    def answer(text: str, *sounds: np.ndarray) -> tuple[str, int]:
        inputs = processor(text=[text], audio=list(sounds), return_tensors="pt", add_special_tokens=False)
        length = inputs["input_ids"].shape[1]
        found = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        return processor.tokenizer.decode(found[0, length:], skip_special_tokens=True), length

    return answer


@pytest.fixture(scope="module")
def server(serve: Serve, hearing: Hearing) -> Iterator[Server]:
    with serve(seeing=hearing, max_sounds=2, max_seconds=0.9) as found:
        yield found


@pytest.fixture(scope="module")
def raw(server: Server) -> httpx.Client:
    return client_of(server)


def client_of(server: Server) -> httpx.Client:
    host, port = address(server)
    return httpx.Client(base_url=f"http://{host}:{port}", timeout=60)


def as_read(samples: np.ndarray) -> np.ndarray:
    """Samples [n] as a file of 16 bits has them, of which 32768 would be 1."""
    return np.frombuffer(sound_file(samples)[-2 * len(samples) :], "<i2").astype(np.float32) / 32768


def test_a_chat(server: Server, expected: Any) -> None:
    host, port = address(server)
    ai = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)

    def ask(*contents: Any) -> Any:
        roles = ["user", "assistant"]
        turns: Any = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
        return ai.chat.completions.create(model=NAME, messages=turns, temperature=0.0, max_tokens=TOKENS)

    def heard(sound: np.ndarray) -> list[dict[str, Any]]:
        data = said(sound_file(sound))
        return [{"type": "text", "text": "What is"}, data, {"type": "text", "text": "this?"}]

    text = "[user]What is<|AUDIO|>this?"
    low, high = as_read(LOW), as_read(HIGH)
    first, other = ask(heard(LOW)), ask(heard(HIGH))
    for answer, sound in ((first, low), (other, high)):
        words, length = expected(f"{text}[assistant]", sound)
        assert (answer.choices[0].message.content, answer.usage.prompt_tokens) == (words, length)
    assert first.choices[0].message.content != other.choices[0].message.content
    two = ask([said(sound_file(HIGH)), said(sound_file(LOW))])
    assert two.choices[0].message.content == expected("[user]<|AUDIO|><|AUDIO|>[assistant]", high, low)[0]
    told = "A low hum, as of an engine. " * 3
    turns = (heard(LOW), told, "Really?")
    longer, again = ask(*turns), ask(*turns)
    assert longer.choices[0].message.content == expected(f"{text}[assistant]{told}[user]Really?[assistant]", low)[0]
    assert again.choices[0].message.content == longer.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 20  # the sound isn't read again
    more = ask(heard(LOW), "A hum.", heard(HIGH))
    assert more.choices[0].message.content == expected(f"{text}[assistant]A hum.{text}[assistant]", low, high)[0]


def test_responses(server: Server, expected: Any) -> None:
    host, port = address(server)
    ai = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    parts: Any = [{"type": "input_text", "text": "What is"}, said(sound_file(LOW)), {"type": "input_text", "text": "?"}]
    told: dict[str, Any] = {"model": NAME, "temperature": 0.0, "max_output_tokens": TOKENS}
    found = ai.responses.create(**told, input=[{"role": "user", "content": parts}])
    assert found.usage is not None
    answer = expected("[user]What is<|AUDIO|>?[assistant]", as_read(LOW))
    assert (found.output_text, found.usage.input_tokens) == answer


def test_images_beside_sounds(serve: Serve, demo: Any) -> None:
    model, processor = seeing_and_hearing(demo[1])
    stock = unpatch(copy.deepcopy(model))

    def expected(color: tuple[int, int, int], sound: np.ndarray) -> str:
        prompt, image = "[user]See<|image|>and hear<|audio|>it.[assistant]", pixels(picture_file(color))
        inputs = processor(text=[prompt], images=[image], audio=[sound], return_tensors="pt", add_special_tokens=False)
        found = stock.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        return processor.tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    found = []
    with serve(seeing=(model, processor), max_images=1, max_sounds=1) as server, client_of(server) as client:
        for color, sound in (((250, 20, 20), LOW), ((20, 20, 250), LOW), ((20, 20, 250), HIGH)):
            url = f"data:image/png;base64,{base64.b64encode(picture_file(color)).decode()}"
            shown, heard = {"type": "image_url", "image_url": {"url": url}}, said(sound_file(sound))
            parts = [{"type": "text", "text": "See"}, shown, {"type": "text", "text": "and hear"}, heard]
            turns = [{"role": "user", "content": [*parts, {"type": "text", "text": "it."}]}]
            body = {"model": NAME, "messages": turns, "temperature": 0.0, "max_tokens": TOKENS}
            answer = client.post("/v1/chat/completions", json=body).json()
            found.append(answer["choices"][0]["message"]["content"])
            assert found[-1] == expected(color, as_read(sound))
    assert len(set(found)) == 3


def test_a_stereo_sound_of_another_rate_reaches_the_model_as_one_channel(raw: httpx.Client, expected: Any) -> None:
    sound = np.stack([sine(300, rate=44100), sine(700, rate=44100)], axis=1)
    data = sound_file(sound, "WAV", "FLOAT", 44100)
    body = {"model": NAME, "messages": [{"role": "user", "content": [said(data)]}], "temperature": 0.0}
    answer = raw.post("/v1/chat/completions", json=body | {"max_tokens": TOKENS}).json()
    mono = samples(data, "wav", RATE)
    assert answer["choices"][0]["message"]["content"] == expected("[user]<|AUDIO|>[assistant]", mono)[0]


@pytest.mark.parametrize(
    ("format", "written", "subtype", "error"),
    [
        ("wav", "WAV", "PCM_U8", 1 / 128),
        ("wav", "WAV", "PCM_16", 1 / 32768),
        ("wav", "WAV", "PCM_24", 1e-6),
        ("wav", "WAV", "PCM_32", 1e-7),
        ("wav", "WAV", "FLOAT", 0),
        ("wav", "WAVEX", "PCM_16", 1 / 32768),
        ("flac", "FLAC", "PCM_24", 1e-6),
        ("ogg", "OGG", "VORBIS", 0.05),
        ("mp3", "MP3", None, 0.05),
    ],
)
def test_formats(format: str, written: str, subtype: str | None, error: float) -> None:
    found = samples(sound_file(LOW, written, subtype), format, RATE)
    assert found.dtype == np.float32 and found.shape == LOW.shape
    middle = slice(2000, -2000)  # lossy formats are rough at the ends
    assert np.abs(found[middle] - LOW[middle]).max() <= error * 1.01


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_resampling(rate: int) -> None:
    """Against the same sine at the wanted rate, in float64: it is below half of either rate, so nothing of it is
    lost."""
    found = samples(sound_file(sine(1000, 1.0, rate), "WAV", "FLOAT", rate), "wav", RATE)
    assert found.shape == (RATE,) and found.dtype == np.float32
    exact = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE)
    middle = slice(1000, -1000)
    assert np.abs(found[middle] - exact[middle]).max() < 1e-4
    assert np.argmax(np.abs(np.fft.rfft(found))) == 1000
    if rate > 2 * RATE:  # what is above half of the wanted rate doesn't come back as another tone
        high = samples(sound_file(sine(12000, 1.0, rate), "WAV", "FLOAT", rate), "wav", RATE)
        assert np.abs(high[middle]).max() < 1e-4


def test_channels_are_averaged_and_loud_samples_clipped() -> None:
    both = np.stack([LOW, np.zeros_like(LOW)], axis=1)
    assert np.array_equal(samples(sound_file(both, "WAV", "FLOAT"), "wav", RATE), LOW / 2)
    both = (6e38 * np.stack([LOW, LOW], axis=1).astype(np.float64)).astype(np.float32)
    for rate in (RATE, 48000):
        loud = samples(sound_file(both, "WAV", "FLOAT", rate), "wav", RATE)
        assert np.isfinite(loud).all() and np.abs(loud).max() == 1  # the sum of both would be infinite


def _changed(data: bytes, at: int, to: bytes) -> bytes:
    return data[:at] + to + data[at + len(to) :]


WAV, FLAC = sound_file(LOW), sound_file(LOW, "FLAC")
NAN = sound_file(np.where(np.arange(len(LOW)) == 99, np.nan, LOW).astype(np.float32), "WAV", "FLOAT")
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no data": ({"type": "input_audio"}, "", "expected input_audio"),
    "an address": (
        {"type": "input_audio", "input_audio": {"data": "http://localhost/a.wav", "format": "wav"}},
        "",
        "expected base64 (no address is followed)",
    ),
    "a url": ({"type": "input_audio", "input_audio": {"url": "http://localhost/a.wav"}}, "", "expected input_audio"),
    "no format": (
        {"type": "input_audio", "input_audio": {"data": ""}},
        ".input_audio.format",
        "expected one of wav, mp3, flac, ogg, got None",
    ),
    "a format that isn't known": (said(WAV, "aac"), ".input_audio.format", "expected one of wav, mp3, flac, ogg, got"),
    "nothing": (said(b""), "", "expected a file of the format wav, got one that begins with b''"),
    "no sound": (said(b"no sound at all"), "", "expected a file of the format wav, got one that begins with b'no s'"),
    "another format": (said(FLAC), "", "expected a file of the format wav, got one that begins with b'fLaC'"),
    "a broken header": (said(WAV[:20]), "", "expected a file of the format wav: Error in WAV"),
    "half a flac": (said(FLAC[: len(FLAC) // 2], "flac"), "", "expected a file of the format flac: Error : flac"),
    "half an mp3": (
        said(sound_file(LOW, "MP3")[:1000], "mp3"),
        "",
        "expected 8000 samples, as its header says, got",
    ),
    "no samples": (said(sound_file(LOW[:0])), "", "expected 0.1 to 0.9 seconds, got 0"),
    "too short": (said(sound_file(LOW[:1599])), "", "expected 0.1 to 0.9 seconds, got 0.0999375"),
    "too long": (said(sound_file(sine(300, 0.91))), "", "expected 0.1 to 0.9 seconds, got 0.91"),
    "a long one in few bytes": (
        said(sound_file(np.zeros(RATE * 3600, np.float32), "FLAC", rate=RATE), "flac"),
        "",
        "expected 0.1 to 0.9 seconds, got 3600",
    ),
    "no length": (said(_changed(FLAC, 22, bytes(4)), "flac"), "", "expected 0.1 to 0.9 seconds, got 5.76461e+14"),
    "NaN": (said(NAN), "", "expected finite samples, got NaN or an infinity"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sounds_are_refused_by_name(raw: httpx.Client, name: str) -> None:
    part, place, why = BAD[name]
    parts = [{"type": "text", "text": "What?"}, part]
    answer = raw.post("/v1/chat/completions", json={"model": NAME, "messages": [{"role": "user", "content": parts}]})
    error = answer.json()["error"]
    where = f"messages[0].content[1]{place}"
    assert answer.status_code == 400 and error["param"] == where and error["message"].startswith(f"{where}: {why}")


def test_nothing_is_decoded_that_has_too_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_foundry.text.media.MAX_SAMPLES", 20000)
    monkeypatch.setattr("soundfile.SoundFile.read", lambda *args, **kwargs: pytest.fail("it was decoded"))
    sound = np.zeros((8000, 3), np.float32)
    with pytest.raises(ValueError, match="expected at most 20000 samples, got 8000 in 3 channels"):
        samples(sound_file(sound), "wav", RATE)
    with pytest.raises(ValueError, match=r"expected 0\.1 to 0\.4 seconds, got 0\.5"):
        samples(sound_file(LOW), "wav", RATE, 0.4)


def test_limits_and_other_places(raw: httpx.Client, serve: Serve, hearing: Hearing) -> None:
    sound = said(WAV)

    def ask(client: httpx.Client, role: str, *parts: Any) -> str:
        body = {"model": NAME, "messages": [{"role": role, "content": [*parts]}]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        return answer.json()["error"]["message"]  # type: ignore[no-any-return]

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert ask(raw, "user", sound, sound, sound) == "messages: expected at most 2 sounds, got 3"
    assert ask(raw, "user", image) == "messages[0].content[0]: this server's model is shown no images"
    assert "expected a part of the type text, got 'input_audio'" in ask(raw, "assistant", sound)
    mark = {"type": "text", "text": "<|AUDIO|>"}  # of nothing that is heard
    assert "the model's processor can't read the sounds" in ask(raw, "user", sound, mark)
    for options in ({}, {"seeing": hearing}):
        with serve(**options) as deaf, client_of(deaf) as client:
            assert ask(client, "user", sound) == "messages[0].content[0]: this server's model hears no sounds"
    block = {"model": NAME, "max_tokens": 2, "messages": [{"role": "user", "content": [sound]}]}
    answer = raw.post("/v1/messages", json=block)  # a protocol without sounds
    assert answer.status_code == 400 and "got 'input_audio'" in answer.json()["error"]["message"]
    with pytest.raises(ValueError, match="max_sounds: expected a positive number"):
        ServerConfig((NAME,), max_sounds=-1)


def test_a_sound_that_the_processor_would_cut_off_is_refused(serve: Serve, hearing: Hearing) -> None:
    assert heard_by(hearing[1]) == (RATE, 1.0)
    with serve(seeing=hearing, max_sounds=1) as server, client_of(server) as client:
        parts = [said(sound_file(sine(300, 1.01)))]
        answer = client.post(
            "/v1/chat/completions", json={"model": NAME, "messages": [{"role": "user", "content": parts}]}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "messages[0].content[0]: expected 0.1 to 1 seconds, got 1.01"


PROCESSORS = {
    **{"AudioFlamingo3Processor": True, "Gemma3nProcessor": True, "GlmAsrProcessor": True, "Qwen3ASRProcessor": True},
    **{"LlavaProcessor": False, "VoxtralProcessor": False},  # Voxtral's takes sounds in apply_chat_template alone
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_which_processors_take_sounds(name: str) -> None:
    processor = object.__new__(getattr(transformers, name))
    processor.feature_extractor = transformers.WhisperFeatureExtractor() if name != "LlavaProcessor" else None
    assert hears(processor) == PROCESSORS[name]


def test_a_processor_that_takes_no_sounds_is_refused_by_name(hearing: Hearing, demo: Any) -> None:
    voxtral = object.__new__(transformers.VoxtralProcessor)
    engine = Engine(*demo, blocks=64)
    with pytest.raises(ValueError, match="max_sounds: expected a processor that takes sounds, got VoxtralProcessor"):
        Service(engine, ServerConfig((NAME,), max_sounds=1), voxtral)


def test_how_long_processors_hear() -> None:
    def heard(name: str, extractor: Any, **settings: Any) -> tuple[int, float]:
        processor = object.__new__(getattr(transformers, name))
        vars(processor).update(feature_extractor=extractor, **settings)
        return heard_by(processor)

    whisper = transformers.WhisperFeatureExtractor()
    assert heard("Qwen2AudioProcessor", whisper) == (RATE, 30)
    assert heard("GlmAsrProcessor", whisper, max_audio_len=655) == (RATE, 630)  # whole windows of 30 seconds
    assert heard("Gemma3nProcessor", transformers.Gemma3nAudioFeatureExtractor()) == (RATE, 30)
    assert heard("Qwen3ASRProcessor", transformers.Qwen3ASRFeatureExtractor()) == (RATE, math.inf)


def test_a_template_that_knows_texts_alone_gets_the_token_of_a_sound(hearing: Hearing) -> None:
    tokenizer = adopt(copy.deepcopy(hearing[1].tokenizer), "")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content + '.' }}{% endfor %}"
    tokenizer.chat_template = showing(tokenizer, "<|AUDIO|>", "audio")
    parts = [{"type": "audio"}, {"type": "text", "text": "What?"}]
    text = tokenizer.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    assert text == "user: <|AUDIO|>What?."
    tokenizer.chat_template = hearing[1].chat_template  # which knows them
    assert showing(tokenizer, "<|AUDIO|>", "audio") == tokenizer.chat_template


def test_the_command_loads_a_model_with_its_processor(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture
) -> None:
    served: list[Server] = []
    monkeypatch.setattr(Server, "run", lambda self: served.append(self))
    for each in hearing:
        each.save_pretrained(tmp_path)
    given = ["serve", str(tmp_path), "--device", "cpu", "--blocks", "64"]
    assert cli.main([*given, "--sounds", "3"]) == 0
    service = served[0].service
    assert (service.config.max_sounds, service.config.max_images) == (3, 0)
    assert type(service.engine.model).__name__ == "Qwen2AudioForConditionalGeneration"
    assert (
        type(service.processor).__name__ == "Qwen2AudioProcessor" and service.processor.tokenizer is service.tokenizer
    )
    service.thread.close()
    service.thread.join(60)
    assert cli.main([*given, "--images", "1"]) == 2
    assert "it has no processor of images" in capsys.readouterr().err
    assert cli.main(["serve", "--device", "cpu", "--sounds", "1"]) == 2
    assert "--sounds: expected the folder of a model that hears sounds" in capsys.readouterr().err
