"""Sessions: every turn has the tokens of a whole recomputation, whatever the cache went through before."""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import torch_foundry
from tests.hf.tiny_cases import FAMILIES
from tests.hf.tiny_models import ids, shared
from tests.interrupt import Interrupt
from torch_foundry import LoadError, Session
from torch_foundry.demo_model import demo_model_path

pytestmark = pytest.mark.usefixtures("quiet")
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False}


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(getattr(request, "param", "llama"))))


def again(model: Any, text: torch.Tensor, **options: Any) -> list[list[int]]:
    """Without anything that was read before."""
    options = {"attention_mask": torch.ones_like(text), **OPTIONS, **options}
    return model.generate(text, **options).tolist()


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_eight_turns(model: Any) -> None:
    """Turns of one to thirty tokens; some take back a part of the answer before, as templates do."""
    session, text, kept = Session(model, **OPTIONS), ids(1, 9), 0
    for turn in range(8):
        answered = session.generate(text)
        assert answered.tolist() == again(model, text), f"turn {turn}"
        assert session.tokens == answered[0, :-1].tolist()
        assert session.reused == kept, f"turn {turn}"
        taken = (0, 1, 4)[turn % 3]
        kept = answered.shape[1] - max(taken, 1)
        new = ids(1, (1, 30, 7)[turn % 3], seed=turn)
        if taken:
            new[0, 0] = answered[0, -taken] % 100 + 4  # another one
        text = torch.cat([answered[:, : answered.shape[1] - taken], new], dim=1)


@pytest.mark.parametrize("model", ["llama", "gemma3"], indirect=True)
def test_left_padding(model: Any) -> None:
    session = Session(model, **OPTIONS)
    text, mask = torch.cat([torch.zeros(1, 6, dtype=torch.long), ids(1, 9)], 1), torch.tensor([[0] * 6 + [1] * 9])
    for turn in range(8):
        answered = session.generate(text, mask)
        assert answered.tolist() == again(model, text, attention_mask=mask), f"turn {turn}"
        assert answered[0, 6:].tolist() == again(model, text[:, 6:])[0], f"turn {turn}"
        assert turn == 0 or session.reused == text.shape[1] - 6
        text = torch.cat([answered, ids(1, 5, seed=turn)], 1)
        mask = torch.cat([mask, torch.ones(1, 15, dtype=torch.long)], 1)
    session.generate(text)  # another mask: nothing of it can be used
    assert session.reused == 0


@pytest.mark.parametrize("model", ["llama", "mistral"], indirect=True)
def test_going_back_a_long_way(model: Any) -> None:
    """A sliding window has forgotten what came before the newest turn, and reads it again."""
    session, first = Session(model, **OPTIONS), ids(1, 40)
    second = torch.cat([session.generate(first), ids(1, 5)], 1)
    session.generate(second)
    edited = torch.cat([first[:, :30], ids(1, 4, seed=5)], 1)
    assert session.generate(edited).tolist() == again(model, edited)
    assert session.reused == (0 if model.config.model_type == "mistral" else 30)
    assert session.generate(first[:, :12]).tolist() == again(model, first[:, :12]), "a part of what is there"
    assert session.generate(first[:, :12]).tolist() == again(model, first[:, :12]), "the same once more"
    assert session.generate(ids(1, 6, seed=9)).tolist() == again(model, ids(1, 6, seed=9)), "something else"


@pytest.mark.parametrize("model", ["llama", "gemma3"], indirect=True)
def test_an_exception_leaves_a_session_that_goes_on(model: Any) -> None:
    class Fails:
        def __init__(self, after: int) -> None:
            self.left = after

        def put(self, value: torch.Tensor) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        def end(self) -> None:
            pass

    session, text = Session(model, **OPTIONS), ids(1, 20)
    for after in (0, 1, 5):
        with pytest.raises(KeyboardInterrupt):
            session.generate(text, streamer=Fails(after))
        assert session.cache.get_seq_length() == len(session.tokens) <= text.shape[1]
        assert session.generate(text).tolist() == again(model, text), str(after)
        text = torch.cat([text, ids(1, 3, seed=after)], 1)


@pytest.mark.parametrize("model", ["mistral"], indirect=True)
def test_a_window_stays_small(model: Any) -> None:
    session, text, window = Session(model, **OPTIONS), ids(1, 10), model.config.sliding_window
    for turn in range(5):
        before = len(session.tokens)
        text = torch.cat([session.generate(text), ids(1, 40, seed=turn)], 1)
        assert session.cache.layers[0].stored[1] <= window + len(session.tokens) - before


@pytest.mark.parametrize("model", ["llama", "gemma3"], indirect=True)
def test_an_interrupt_at_any_line(model: Any) -> None:
    chance, interrupts = random.Random(0), 0
    session, text = Session(model, **OPTIONS), ids(1, 20)
    for turn in range(30):
        before = sys.gettrace()
        sys.settrace(Interrupt(chance.randrange(1, 2500), ("/session", "/kvcache/", "/generation/")))
        try:
            session.generate(text)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.settrace(before)
        text = torch.cat([text[:, : chance.randrange(5, 60)], ids(1, chance.randrange(1, 9), seed=turn)], 1)
        assert session.generate(text).tolist() == again(model, text), f"turn {turn}"
    assert interrupts > 10


def test_other_ways_to_generate(model: Any) -> None:
    session, text = Session(model, **OPTIONS), ids(1, 6).repeat(1, 3)
    for options in (
        {"prompt_lookup_num_tokens": 4},
        {"sync_every": 0},
        {"max_new_tokens": 1},
        {"num_beams": 3},
        {"generation_config": GenerationConfig(num_beams=3, pad_token_id=0)},
        {"use_cache": False},
    ):
        answered = session.generate(text, **options)
        assert answered.tolist() == again(model, text, **options), str(options)
        text = torch.cat([answered, ids(1, 3)], 1)


def test_wrong_arguments(model: Any) -> None:
    session = Session(model)
    for wrong in (ids(2, 5), ids(1, 5)[0], ids(1, 5)[:, :0]):
        with pytest.raises(ValueError, match="input_ids: expected"):
            session.generate(wrong)
    with pytest.raises(ValueError, match=r"attention_mask: expected \[1, 5\], got \[1, 4\]"):
        session.generate(ids(1, 5), torch.ones(1, 4))
    with pytest.raises(ValueError, match="tokenizer: expected one with a chat template"):
        session.send("Hello")


# ---------------------------------------------------------------------------------------------------------------- chats


@pytest.fixture(scope="module")
def demo() -> tuple[Any, Any]:
    path = demo_model_path()
    return torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path)), AutoTokenizer.from_pretrained(path)


def test_a_chat(demo: tuple[Any, Any]) -> None:
    model, tokenizer = demo
    session = Session(model, tokenizer, max_new_tokens=24, do_sample=False)
    for turn, said in enumerate(("Hello!", "Tell me a story.", "And then?")):
        answer = session.send(said)
        inputs = tokenizer.apply_chat_template(
            session.messages[:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        whole = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(whole, skip_special_tokens=True) and answer
        assert session.messages[-1] == {"role": "assistant", "content": answer}
        assert turn == 0 or session.reused > 10
    before = copy.deepcopy(session.messages)
    with pytest.raises(ValueError):
        session.send("Once more", max_new_tokens=-1)
    assert session.messages == before
    session.messages[-1]["content"] = "Something else."
    assert session.send("Why?")


def test_an_answer_ends_where_the_model_ends_it(demo: tuple[Any, Any]) -> None:
    model, tokenizer = demo
    session, said = Session(model, tokenizer, do_sample=False), "Tell me a story about a kite."
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    whole = model.generate(**inputs, max_new_tokens=400, do_sample=False)[0]
    assert int(whole[-1]) == tokenizer.eos_token_id
    assert session.send(said) == tokenizer.decode(whole[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    for options in ({"max_new_tokens": 3}, {"generation_config": GenerationConfig(max_new_tokens=3, eos_token_id=2)}):
        assert len(tokenizer(Session(model, tokenizer, **options).send(said))["input_ids"]) <= 5, options


def test_what_turns_are_told(demo: tuple[Any, Any]) -> None:
    """Options of the template; stop strings, for which generate() needs the tokenizer; a text that is too long."""
    model, tokenizer = demo
    tokenizer = copy.deepcopy(tokenizer)
    told = "{% for tool in tools or [] %}{{ tool['name'] }}{% endfor %}"
    tokenizer.chat_template = told + tokenizer.chat_template
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    plain, tools = (Session(model, tokenizer, template=t, **options) for t in (None, {"tools": [{"name": "kite"}]}))
    answer = plain.send("Tell me a story.")
    assert len(tools.tokens) == 0 and tools.send("Tell me a story.") and len(tools.tokens) > len(plain.tokens)
    word = answer[20:26]
    stopped = Session(model, tokenizer, **options).send("Tell me a story.", stop_strings=[word])
    assert answer.startswith(stopped) and word in stopped and len(stopped) < len(answer)
    before = copy.deepcopy(plain.messages)
    del plain.options["max_new_tokens"]
    with pytest.raises(ValueError, match=r"the conversation has \d{5} tokens, and the model's context 1024"):
        plain.send("Tell me a story. " * 2000)
    with pytest.raises(ValueError, match="the model's context 1024"):
        plain.send("Hello! " * 9000, max_new_tokens=3)
    assert plain.messages == before and plain.send("Hello!", max_new_tokens=3)
    plain.send("Hello!", max_new_tokens=10**12)  # what can't be used isn't asked for
    assert len(plain.tokens) < 1024


def test_a_system_message(demo: tuple[Any, Any]) -> None:
    session = Session(*demo, system="Be brief.", max_new_tokens=4)
    assert session.messages == [{"role": "system", "content": "Be brief."}]


# -------------------------------------------------------------------------------------------------------- save, restore


@pytest.mark.parametrize("model", ["llama", "gemma3", "mistral"], indirect=True)
def test_saved_and_restored(model: Any, tmp_path: Path) -> None:
    session, path = Session(model, **OPTIONS), tmp_path / "session.safetensors"
    text = torch.cat([session.generate(ids(1, 30)), ids(1, 3)], 1)
    session.messages = [{"role": "user", "content": "é"}]
    for _ in range(2):  # over the file that is there
        session.save(path)
    other = Session.restore(path, model, **OPTIONS)
    assert (other.tokens, other.messages) == (session.tokens, session.messages)
    for each in (other, session):
        assert each.generate(text).tolist() == again(model, text) and each.reused == 39
    assert [entry.name for entry in tmp_path.iterdir()] == ["session.safetensors"]
    with safe_open(path, "pt") as file:  # as the format's own library reads it
        assert (
            torch.equal(file.get_tensor("0.keys"), load_file(path)["0.keys"])
            and "messages" in file.metadata()["session"]
        )
    empty = Session(model)
    empty.save(path)
    assert Session.restore(path, model).tokens == []


def test_what_is_no_session_of_the_model(model: Any, tmp_path: Path) -> None:
    session, path = Session(model, **OPTIONS), tmp_path / "session.safetensors"
    session.generate(ids(1, 12))
    session.save(path)

    other = copy.deepcopy(shared("llama"))
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    with pytest.raises(LoadError, match="expected the model that it was saved with, found another"):
        Session.restore(path, other)

    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    kept = [name for name in tensors if name[0].isdigit()]

    def half_as_large(heads: torch.Tensor) -> torch.Tensor:
        """Twice the heads of half the size."""
        return torch.cat(heads.chunk(2, dim=3), dim=1)

    fits = r"(keys|values): expected f32 \[1, 2, 21, 32\], found"
    changes: list[tuple[dict[str, Any], dict[str, str], str]] = [
        ({"1.keys": None}, {}, "1.keys: expected a tensor"),
        ({"mask": None}, {}, "mask: expected a tensor"),
        ({"1.keys": tensors["1.keys"].repeat(2, 1, 1, 1)}, {}, fits),
        ({"1.keys": tensors["1.keys"].int(), "1.values": tensors["1.values"].int()}, {}, fits),
        ({"1.keys": tensors["1.keys"][:, :, :5].clone()}, {}, fits),
        ({"tokens": tensors["tokens"][:5].clone()}, {}, r"expected i64 \[21\], as in the cache, found i64 \[5\]"),
        ({}, {"format": "x"}, "expected format"),
        ({}, {"session": "[]"}, "a session's description"),
        ({}, {"session": "{"}, "a session's description"),
        ({}, {"session": about["session"].replace('"seen": [', '"seen": [true, -1, ')}, "a session's description"),
        ({}, {"session": about["session"].replace('"seen": [', '"seen": [21, ')}, "for each of 2 layers"),
        ({}, {"session": about["session"].replace('"seen": [21, 21]', '"seen": [21, 0]')}, "for each of 2 layers"),
        ({"0.keys": tensors["0.keys"] * float("nan")}, {}, "NONFINITE"),
        ({name: half_as_large(tensors[name]) for name in kept}, {}, fits),
        ({name: tensors[name][..., :8].clone() for name in kept}, {}, fits),
        ({name: tensors[name].reshape(1, -1, 21 * 16) for name in kept}, {}, fits),
        *(
            ({}, {"session": about["session"].replace('"messages": []', f'"messages": {json.dumps(messages)}')},
             "a session's description")
            for messages in ([1], ["a"], [None], [{"content": "a"}], [{"role": 1, "content": "a"}],
                             [{"role": "user", "content": 7}], [{"role": "user", "content": [1]}], {"role": "user"})
        ),
    ]  # fmt: skip
    for changed, words, message in changes:
        new = {name: value for name, value in {**tensors, **changed}.items() if value is not None}
        save_file(new, path, metadata={**about, **words})
        with pytest.raises(LoadError, match=message):
            Session.restore(path, model)
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(LoadError):
        Session.restore(path, model)
    with pytest.raises(LoadError, match="ABSENT"):
        Session.restore(tmp_path / "none", model)


def test_saving_that_fails_leaves_the_old_file(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, path = Session(model, **OPTIONS), tmp_path / "session.safetensors"
    session.save(path)
    old = path.read_bytes()

    def full(file: Any, *_: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("torch_foundry.io.session.write_tensors", full)
    with pytest.raises(OSError, match="no space left"):
        session.save(path)
    assert path.read_bytes() == old and len(list(tmp_path.iterdir())) == 1
