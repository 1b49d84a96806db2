"""benchmarks.bench_servers: whole runs on tiny models, servers that fail, answers that are wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_servers
from benchmarks.bench_servers import Judge
from benchmarks.harness import record
from benchmarks.models import MODELS
from torch_foundry.cli.loading import UserError

CPU = torch.device("cpu")
BROKEN = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'data: {"error": "no such head"}\\n\\n')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STANDIN = """
import http.server, json, sys, gguf
def note(what):
    with open(SEEN, "a") as file: file.write(json.dumps(what) + "\\n")
told = dict(zip(sys.argv[1::1], sys.argv[2::1]))
fields = gguf.GGUFReader(told["--model"]).fields
types, tokens = fields["tokenizer.ggml.token_type"], fields["tokenizer.ggml.tokens"]
note([[types.types[1].name, len(types.data)], tokens.contents()[:2]])
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note(asked)
        self.send_response(200); self.end_headers()
        for _ in range(asked["max_tokens"]):
            self.wfile.write(b'data: {"choices": [{"text": " w3"}]}\\n\\n')
http.server.ThreadingHTTPServer(("127.0.0.1", int(told["--port"])), Handler).serve_forever()
"""


def run(out: Path, *more: str) -> int:
    return bench_servers.main(["--quick", "--device", "cpu", "--out", str(out), "--silent", *more])


def test_bench_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--servers", "torch-foundry", "--formats", "f32") == 0
    rows = list(record.read([tmp_path / "servers.jsonl"]))
    assert [row["shape"]["requests"] for row in rows] == [1, 2] and all(row["valid"] for row in rows)
    assert all(0 < row["extra"]["first_ms"] <= row["extra"]["last_ms"] for row in rows)
    assert "torch-foundry serve" in capsys.readouterr().out


def test_a_server_has_its_rows_before_the_next_one_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut off keeps what it had."""
    absent = lambda folder, fmt, device, port: [sys.executable, "-c", "raise SystemExit('gone')"]  # noqa: E731
    monkeypatch.setitem(bench_servers.SERVERS, bench_servers.STOCK, absent)
    with pytest.raises(UserError, match="does not answer"):
        run(tmp_path, "--servers", f"torch-foundry,{bench_servers.STOCK}", "--formats", "f32")
    rows = list(record.read([tmp_path / "servers.jsonl"]))
    assert [row["shape"]["requests"] for row in rows] == [1, 2] and all(row["valid"] for row in rows)


def test_a_server_that_fails_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = lambda folder, fmt, device, port: [sys.executable, "-c", BROKEN, str(port)]  # noqa: E731
    monkeypatch.setitem(bench_servers.SERVERS, "torch-foundry", broken)
    assert run(tmp_path, "--servers", "torch-foundry") == 0
    assert capsys.readouterr().out.count("skipped: torch-foundry: ") == 2
    assert all("no such head" in row["reason"] for row in record.read([tmp_path / "servers.jsonl"]))


def test_llama_server_is_asked_by_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in notes what it was started with and asked, and answers one word again and again."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / bench_servers.LLAMA
    program.write_text(f"#!{sys.executable}\n" + STANDIN.replace("SEEN", repr(str(seen))))
    program.chmod(0o755)
    assert run(tmp_path, "--servers", bench_servers.LLAMA, "--formats", "q8_0") == 1, "its answers are wrong"
    model, *asked = [json.loads(line) for line in seen.read_text().splitlines()]
    assert model == [["INT32", MODELS["tiny"].vocab_size], ["▁w0", "▁w1"]]
    assert len(asked) == 2 * (1 + 2) and all(each["ignore_eos"] for each in asked)
    assert all(len(each["prompt"]) == bench_servers.QUICK["prompt"] for each in asked)
    assert {type(token) for each in asked for token in each["prompt"]} == {int}
    rows = list(record.read([tmp_path / "servers.jsonl"]))
    assert [row["way"] for row in rows] == [bench_servers.LLAMA] * 2 and not any(row["valid"] for row in rows)


def test_a_server_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = lambda folder, fmt, device, port: ["no-such-program"]  # noqa: E731
    monkeypatch.setitem(bench_servers.SERVERS, bench_servers.LLAMA, absent)
    with pytest.raises(UserError, match="llama-server: there is no no-such-program on the PATH"):
        run(tmp_path, "--servers", bench_servers.LLAMA)


def test_wrong_answers_are_invalid() -> None:
    judge = Judge("tiny", "f32", CPU, 0)
    prompt = torch.arange(1, 9)
    right = judge.network.generate(prompt[None], attention_mask=torch.ones(1, 8), max_new_tokens=4, do_sample=False)
    words = [f"w{token}" for token in right[0, 8:].tolist()]

    def judged(*answer: str) -> Any:
        return judge([(prompt, " ".join(answer))], 4)

    assert judged(*words).ok
    assert not judged(*words[:3], f"w{(int(words[3][1:]) + 1) % 320}").ok
    short = judged(*words[:3])
    assert not short.ok and "1 of other lengths" in short.detail


def test_chunks_of_a_response() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    chunks = b"3\r\nabc\r\nb\r\ndata: x\r\n\r\n\r\n0\r\n\r\n"
    body = bench_servers._content(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert body == b"abcdata: x\r\n\r\n"
    assert bench_servers._content(head + b"Content-Length: 2\r\n\r\nhi") == b"hi"
