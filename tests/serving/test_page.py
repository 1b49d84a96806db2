"""The page at /docs says what /openapi.json does, and a browser shows it without any other host."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.serving.conftest import address
from torch_foundry.serving.app import Server
from torch_foundry.serving.page import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def test_every_path_and_field_is_there(server: Server) -> None:
    host, port = address(server)
    with httpx.Client(base_url=f"http://{host}:{port}") as client:
        found, schema = client.get("/docs"), client.get("/openapi.json").json()
    assert found.headers["content-type"].startswith("text/html") and "default-src 'none'" in str(found.headers)
    shown = html.unescape(found.text)
    assert all(f"<code>{path}</code>" in shown for path in schema["paths"])
    assert "/v1/messages" in schema["paths"] and "Answer a conversation." in shown
    schemas = schema["components"]["schemas"]
    links = {name for name in schemas if "properties" in schemas[name]}
    assert all(f"<code>{field}</code>" in shown for name in links for field in schemas[name]["properties"])
    assert {*re.findall(r'href="#([^"]*)"', shown)} <= {*re.findall(r'id="([^"]*)"', shown)} == links
    assert "<script" not in shown and "://" not in shown


def test_what_a_schema_says_is_text() -> None:
    odd = {"description": "<img src=x>", "properties": {"<b>": {"enum": ["<i>"]}}}
    made = page({"info": {"title": "<t>", "version": "1"}, "paths": {}, "components": {"schemas": {"A": odd}}})
    assert not re.search("<img|<b>|<i>|<t>", made)


def test_a_browser_renders_it(server: Server, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium here to render the page")
    host, port = address(server)
    offline = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", offline]
    seen = tmp_path / "page.png"
    told = [f"--screenshot={seen}", "--window-size=900,700", "--virtual-time-budget=1000"]
    subprocess.run([browser, *quiet, *told, f"http://{host}:{port}/docs"], check=True, timeout=120, capture_output=True)
    with Image.open(seen) as image:
        assert image.size == (900, 700)
        dark = sum(image.convert("L").point(lambda level: level < 128).histogram()[1:])
    assert dark > 2000, "nothing to read: a blank page has no dark pixels"
    dom = subprocess.run(
        [browser, *quiet, "--dump-dom", f"http://{host}:{port}/docs"],
        check=True, timeout=120, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "<code>/v1/chat/completions</code>" in dom and "<code>temperature</code>" in dom
