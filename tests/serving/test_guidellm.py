"""A load that nobody here has written: guidellm (as vLLM's users measure servers) on ours. make test-guidellm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Serve, address
from torch_foundry.demo_model import draft_model_path
from torch_foundry.engine import Engine, SamplingParams

COMMAND = Path(__file__).parents[2] / "build" / "guidellm" / "bin" / "guidellm"
pytestmark = [
    pytest.mark.tier("nightly"),
    pytest.mark.skipif(not COMMAND.exists(), reason="guidellm is not installed: make test-guidellm"),
]
PROMPTS = [f"Tell me a story about a {word}." for word in ("kite", "fox", "river", "lamp", "crow", "boat")]
TOKENS = 24


def run(folder: Path, target: str, profile: str, path: str) -> dict[str, Any]:
    """What guidellm says of its only benchmark."""
    lines = (json.dumps({"prompt": prompt, "output_tokens_count": TOKENS}) for prompt in PROMPTS)
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    backend = f"kind=openai_http,target={target},request_format={path},extras.body.temperature=0"
    command = [str(COMMAND), "run", "--backend", backend, "--constraint", f"kind=max_requests,count={len(PROMPTS)}"]
    command += ["--data", f"kind=json_file,path={folder / 'prompts.jsonl'}", "--profile", profile]
    command += ["--tokenizer", f"kind=hf_auto,model={draft_model_path()}", "--disable-console"]
    command += ["--output", f"kind=json,path={folder / 'found.json'}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((folder / "found.json").read_text())["benchmarks"]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "profile", ["kind=concurrent,streams=4", "kind=constant,rate=4", "kind=throughput,max_concurrency=6"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_request_is_answered_as_alone(serve: Serve, demo: Any, tmp_path: Path, profile: str, path: str) -> None:
    model, tokenizer = demo
    engine, expected = Engine(model, tokenizer, requests=1), set()
    for prompt in PROMPTS:
        said: Any = prompt
        if "chat" in path:
            told = [{"role": "user", "content": prompt}]
            said = tokenizer.apply_chat_template(told, add_generation_prompt=True, return_dict=True)["input_ids"]
        stream = engine.submit(said, SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True))
        stream.result()
        expected.add((stream.text, len(stream.sequence.tokens) - TOKENS, TOKENS))
    with serve() as server:
        host, port = address(server)
        found = run(tmp_path, f"http://{host}:{port}", profile, path)
    answers = found["requests"]["successful"]
    assert not found["requests"]["errored"] and not found["requests"]["incomplete"]
    assert len(answers) >= len(PROMPTS)  # what is on its way when the last one ends is answered, too
    sizes = ((answer["input_metrics"]["text_tokens"], answer["output_metrics"]["text_tokens"]) for answer in answers)
    assert {(answer["output"], *size) for answer, size in zip(answers, sizes, strict=True)} == expected
    latency = found["metrics"]["time_to_first_token_ms"]["successful"]
    assert 0 < latency["min"] <= latency["max"]
