"""`torch-foundry serve`: its options reach the server, and what can't be met is one line."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from torch_foundry import cli
from torch_foundry.demo_model import draft_model_path
from torch_foundry.serving.app import Server


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[Server] = []
    frozen: list[int] = []
    monkeypatch.setattr(Server, "run", lambda self: (served.append(self), frozen.append(gc.get_freeze_count())))
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    options = ["--name", "a", "--name", "b", "--max-tokens", "7", "--requests", "3", "--api-keys", str(keys)]
    options += ["--cache-memory", "3", "--snapshot-format", "q8_0"]
    given = ["serve", str(draft_model_path()), "--device", "cpu", "--port", "1234", "--timeout", "2.5"]
    assert cli.main([*given, *options]) == 0
    (server,) = served
    assert frozen[0] > 100_000 and not gc.get_freeze_count(), "what was there before, while it served"
    config = server.service.config
    assert (config.names, config.api_keys, config.max_tokens) == (("a", "b"), ("one", "two"), 7)
    assert (config.timeout, config.max_prompt, server.service.engine.config.requests) == (2.5, None, 3)
    own = server.service.engine.config
    assert (own.cache_bytes, own.snapshot_format, own.use_mtp) == (3 << 20, "q8_0", False)
    assert (server.config.host, server.config.port) == ("127.0.0.1", 1234)
    server.service.thread.close()
    server.service.thread.join(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-tokens", "0"], "max_tokens: expected a positive number, got 0"),
        (["--api-keys", "nowhere"], "nowhere: cannot be read"),
        (["--quantize", "q99"], "--quantize q99"),
        (["--mtp"], "expected weights of an MTP head, found none"),
        (["--cache-memory", "0"], "cache_bytes: expected a whole number from 1 on, got 0"),
        (["--blocks", f"{2**60}"], f"no room for {2**60} blocks of 16 tokens"),
        (["--requests", f"{2**62}", "--blocks", "64"], "no room for so large a cache: expected fewer --requests"),
        (["--port", "65536"], "--port 65536: expected 0 to 65535"),
        (["--timeout", "nan"], "timeout: expected a positive number, got nan"),
        (["--port", "-1"], "--port -1: expected 0 to 65535"),
        (["nowhere"], "nowhere: no such model directory"),
    ],
    ids=str,
)
def test_what_cannot_be_met(options: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["serve", "--device", "cpu", *options]) == 2
    assert said in capsys.readouterr().err


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delitem(sys.modules, "torch_foundry.serving.app")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve"]) == 2
    assert "no module uvicorn: pip install 'torch_foundry[serve]'" in capsys.readouterr().err
