"""Images in a chat: files that are attached, shown to the model, taken back, saved, and gone; in the terminal too.

`python -m tests.chat.test_images` draws the screen again.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from textual.events import Paste
from textual.pilot import Pilot
from transformers import AutoTokenizer

import torch_foundry
from tests.chat.conftest import Scripted
from tests.chat.test_app import SCREENS, drawn, drive, idle, screen, send
from tests.chat.test_plain import chat
from tests.hf.seeing import model_and_processor, picture_file
from tests.io.test_mlx_towers import of_mlx
from torch_foundry.chat import pictures
from torch_foundry.chat.commands import Commands
from torch_foundry.chat.conversation import Conversation
from torch_foundry.chat.widgets import Prompt
from torch_foundry.demo_model import demo_model_path
from torch_foundry.text.media import MAX_BYTES

RED, BLUE = picture_file((250, 20, 20)), picture_file((20, 20, 250), (40, 16), "JPEG")
Make = Callable[..., Conversation]


@pytest.fixture(scope="module")
def seeing(tokenizer: Any) -> Any:
    return model_and_processor(tokenizer)


@pytest.fixture
def red(tmp_path: Path) -> Path:
    path = tmp_path / "a red one.png"
    path.write_bytes(RED)
    return path


def talk(seeing: Any, **options: Any) -> Conversation:
    model, processor = seeing
    conversation = Conversation(model, processor.tokenizer, name="tiny", processor=processor, **options)
    conversation.settings["max_new_tokens"] = 6
    return conversation


def unheard(text: str) -> None:
    pass


def said(conversation: Conversation) -> str:
    return str(conversation.messages[-1]["content"])


def test_an_image_is_shown_kept_and_read_once(seeing: Any, red: Path) -> None:
    conversation = talk(seeing)
    conversation.attach(red)
    figures = conversation.ask("What is this?", unheard)
    first, model, processor = said(conversation), *seeing
    image = pictures.Pictures(processor).of([{"content": [pictures.Pictures(processor).add(red)]}])
    inputs = processor(
        text=["[user]<image>What is this?[assistant]"], images=image, add_special_tokens=False, return_tensors="pt"
    )
    whole = model.generate(**{**inputs, "max_new_tokens": 6, "do_sample": False})
    assert first == processor.tokenizer.decode(whole[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert figures.prompt == inputs["input_ids"].shape[1] and not conversation.pictures.attached
    question = conversation.messages[0]["content"]
    assert question[0] | {"sha256": ""} == {
        **{"type": "image", "path": str(red), "sha256": "", "width": 20, "height": 24, "bytes": len(RED)}
    }
    assert conversation.ask("Really?", unheard).reused >= figures.prompt
    red.unlink()  # its pixels are known
    conversation.regenerate(unheard)
    assert conversation.take_back() == "Really?" and not conversation.pictures.attached
    assert conversation.take_back() == "What is this?" and conversation.pictures.attached == question[:1]
    conversation.ask("What is this?", unheard)
    assert said(conversation) == first
    blind = talk(seeing)
    blind.ask("What is this?", unheard)
    assert said(blind) != first


def test_an_exchange_that_fails_leaves_images_attached(seeing: Any, red: Path) -> None:
    conversation = talk(seeing)
    conversation.attach(red, red)
    with pytest.raises(ValueError, match="the model's processor can't read the images"):
        conversation.ask("<image>", unheard)  # of nothing that is shown
    assert len(conversation.pictures.attached) == 2 and not conversation.messages


def test_saved_conversations_name_their_images(seeing: Any, red: Path, tmp_path: Path) -> None:
    conversation = talk(seeing)
    conversation.attach(red)
    conversation.ask("What is this?", unheard)
    before = conversation.messages
    conversation.save(tmp_path / "x")

    def resumed() -> Commands:
        return Commands(talk(seeing), lambda name: (*seeing, "", None))

    commands = resumed()
    assert commands.run(f"/resume {tmp_path / 'x'}").text == f"resumed: {tmp_path / 'x'}"
    assert commands.conversation.messages == before
    assert commands.conversation.ask("Really?", unheard).reused > 17
    red.write_bytes(BLUE)  # another one
    commands = resumed()
    assert f"{red}: an image of this conversation that is gone" in commands.run(f"/resume {tmp_path / 'x'}").text
    outcome = commands.run("Really?")
    with pytest.raises(ValueError, match="put it back, or take its question back with /edit"):
        assert outcome.ask is not None
        outcome.ask(unheard)
    red.write_bytes(RED)
    outcome.ask(unheard)
    assert len(commands.conversation.messages) == 4


def test_a_model_that_sees_nothing_says_so(seeing: Any, scripted: Make, red: Path) -> None:
    conversation = scripted("Hello.", name="blind")
    with pytest.raises(ValueError, match="blind is shown no images: it has no processor of images"):
        conversation.attach(red)
    sees = talk(seeing)
    sees.attach(red)
    sees.ask("What is this?", unheard)
    moved = sees.moved_to(conversation.session.model, conversation.session.tokenizer, "blind", "a reason")
    with pytest.raises(ValueError, match="blind is shown no images: a reason"):
        moved.ask("Really?", unheard)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda path: None, "expected an image, got no such file"),
    "folder": (Path.mkdir, "expected an image, got a folder"),
    "pipe": (_pipe, "expected an image, got a pipe, device or socket"),
    "text": (lambda path: path.write_text("no image"), "expected an image (PNG, JPEG, WEBP, GIF): Unidentified"),
    "cut": (lambda path: path.write_bytes(RED[:60]), "expected an image (PNG, JPEG, WEBP, GIF)"),
    "large": (lambda path: path.write_bytes(bytes(MAX_BYTES + 1)), f"expected at most {MAX_BYTES} bytes"),
    "wide": (lambda path: path.write_bytes(picture_file((0, 0, 0), (3000, 2000))), "expected at most 4194304 pixels"),
    "tiff": (lambda path: path.write_bytes(picture_file((0, 0, 0), (20, 20), "TIFF")), "expected an image"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_by_name(seeing: Any, tmp_path: Path, red: Path, kind: str) -> None:
    make, message = BAD[kind]
    path = tmp_path / f"{kind}.png"
    make(path)
    conversation = talk(seeing)
    with pytest.raises(ValueError) as caught:
        conversation.attach(red, path)
    assert (
        str(caught.value).startswith(f"{path}: ")
        and message in str(caught.value)
        and not conversation.pictures.attached
    )


def test_what_terminals_paste(red: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, no_image = tmp_path / "b.jpeg", tmp_path / "c.txt"
    plain.write_bytes(BLUE)
    no_image.write_text("")
    escaped, url = str(red).replace(" ", "\\ "), red.as_uri()
    for text in (str(red), f"'{red}' ", escaped, url, f"{escaped} {plain}", f"{url}\n{plain.as_uri()}\n"):
        assert pictures.are_dropped(text), text
        assert pictures.files_in(text)[0] == str(red)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pictures.are_dropped("~/b.jpeg")
    for text in (f"look at {plain}", str(no_image), str(tmp_path / "absent.png"), "it's", "", "x\0.png", "a" * 5000):
        assert not pictures.are_dropped(text), text


def scripted_seeing(tokenizer: Any, *answers: str) -> Conversation:
    """A conversation with a model that says what it is told to, whatever it sees."""
    model = Scripted(tokenizer, *answers)

    def processor(text: list[str], **given: Any) -> Any:
        return tokenizer(text, return_tensors="pt")

    conversation = Conversation(model, tokenizer, name="scripted, float32", processor=processor)
    template = "{% for m in messages %}{% for p in m.content %}{{ p.type }} {{ p.text }}{% endfor %}{% endfor %}"
    conversation.session.template = {"chat_template": template}
    conversation.session.generate = lambda ids, shown, **options: model.generate(ids, **options)  # type: ignore
    return conversation


def test_in_the_terminal(tokenizer: Any, red: Path) -> None:
    conversation = scripted_seeing(tokenizer, "A red square.", "A square.", "Red.")
    model: Any = conversation.session.model
    line = "image a red one.png, 20 x 24, 1 KiB"

    async def test(pilot: Pilot[None]) -> None:
        prompt = pilot.app.query_one(Prompt)
        await pilot.press(*"Well")
        pilot.app.post_message(Paste(str(red).replace(" ", "\\ ")))
        await pilot.pause()
        await idle(pilot)
        assert prompt.text == "Well" and line in screen(pilot) and "shown with the next question" in screen(pilot)
        await send(pilot, "What is on it?")
        assert screen(pilot).count(line) == 2 and model.seen[0].endswith("image text What is on it?")
        await pilot.press("ctrl+r")
        await idle(pilot)
        assert screen(pilot).count(line) == 1 and "A square." in screen(pilot)
        await pilot.press("ctrl+p")
        await idle(pilot)
        assert prompt.text == "What is on it?" and line in screen(pilot) and not conversation.messages
        await send(pilot, "/image")
        assert "the next question shows no image" in screen(pilot)
        await send(pilot, "/image nowhere.png")
        assert "nowhere.png: expected an image, got no such file" in screen(pilot)
        prompt.load_text("")
        pilot.app.post_message(Paste("just text"))
        await pilot.pause()
        assert prompt.text == "just text"
        await pilot.press("enter")
        await idle(pilot)
        assert conversation.messages[0]["content"] == "just text"

    drive(conversation, test)


def draw(tokenizer: Any, folder: Path) -> str:
    path = folder / "square.png"
    path.write_bytes(RED)
    conversation = scripted_seeing(tokenizer, "A **red** square.")
    return drawn(conversation, ["What is on it?"], (80, 24), attached=[path])


def test_a_screen(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    kept = SCREENS / "image.svg"
    assert draw(tokenizer, tmp_path) == kept.read_text(encoding="utf-8"), f"{kept}: look at it, and see test_app's top"


def test_a_pipe_and_the_command_line(
    seeing: Any, red: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "tiny"
    for each in seeing:
        each.save_pretrained(folder)
    options = ["--set", "max_new_tokens=6"]
    expected = talk(seeing)
    expected.attach(red)
    expected.ask("What is this?", unheard)
    assert chat(monkeypatch, "What is this?\n", str(folder), "--image", str(red), *options) == 0
    assert capsys.readouterr().out == said(expected) + "\n"
    lines = f"/image '{red}'\nWhat is this?\n/edit\n/image\nWhat is this?\n"
    assert chat(monkeypatch, lines, str(folder), "--json", *options, typed=True) == 0
    out, err = capsys.readouterr()
    first, second = (json.loads(line)["text"] for line in out.splitlines())
    assert first == said(expected) != second
    assert err.count("image a red one.png, 20 x 24, 1 KiB") == 2 and "What is this?" in err
    assert chat(monkeypatch, "What?\n", str(folder), "--image", "nowhere.png") == 2
    assert "--image nowhere.png: expected an image, got no such file" in capsys.readouterr().err
    assert chat(monkeypatch, "What?\n", str(folder), "--no-images", "--image", str(red)) == 2
    assert "is shown no images: it was loaded with --no-images" in capsys.readouterr().err
    assert chat(monkeypatch, "What?\n", "--image", str(red)) == 2
    assert "--image: the demo model is shown no images: it knows letters alone" in capsys.readouterr().err


def test_packed_weights_see(
    seeing: Any, red: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model, processor = seeing
    packed = torch_foundry.patch(copy.deepcopy(model), quantize="q8_0")
    for each in (packed, processor):
        each.save_pretrained(tmp_path)
    expected = talk((packed, processor))
    expected.attach(red)
    expected.ask("What is this?", unheard)
    options = [str(tmp_path), "--image", str(red), "--set", "max_new_tokens=6"]
    assert chat(monkeypatch, "What is this?\n", *options) == 0
    assert capsys.readouterr().out == said(expected) + "\n"


def test_folders_of_mlx_see_if_they_have_a_tower(
    seeing: Any, red: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for each in seeing:
        each.save_pretrained(tmp_path)
    state = {name: tensor.contiguous() for name, tensor in of_mlx(seeing[0]).items()}
    save_file(state, tmp_path / "model.safetensors", {"format": "mlx"})
    expected = talk(seeing)
    expected.attach(red)
    expected.ask("What is this?", unheard)
    options = [str(tmp_path), "--image", str(red), "--set", "max_new_tokens=6"]
    assert chat(monkeypatch, "What is this?\n", *options) == 0
    assert capsys.readouterr().out == said(expected) + "\n"
    decoder = {name: tensor for name, tensor in state.items() if name.startswith("language_model.")}
    save_file(decoder, tmp_path / "model.safetensors", {"format": "mlx"})
    assert chat(monkeypatch, "What?\n", *options) == 2
    assert "mlx wrote its folder, of which only the decoder is loaded" in capsys.readouterr().err


if __name__ == "__main__":  # draws the screen again
    with tempfile.TemporaryDirectory() as made:
        svg = draw(AutoTokenizer.from_pretrained(demo_model_path()), Path(made))
    (SCREENS / "image.svg").write_text(svg, encoding="utf-8")
