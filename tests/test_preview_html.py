"""Pages of previews in headless Chromium: they render, their pictures load, nothing runs, hostile text stays text.

Each test loads a page of its own making that holds what is tested: the saved page in a frame, the notebook form put in by `innerHTML`
(as notebooks do, where the page's own policy does not help). Its script looks around and leaves what it saw as JSON.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

import dataio

from .conftest import encoded
from .test_preview import wave

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="chromium is not installed (apt-get install chromium)"),
    pytest.mark.usefixtures("no_leftovers"),
]

HOSTILE = [
    "<script>top.hacked = parent.hacked = window.hacked = 1</script>",
    "<img src=x onerror='top.hacked=1;window.hacked=1'>",
    "\"><svg onload='top.hacked=1;window.hacked=1'>",
    "' onmouseover='top.hacked=1' x='",
    "</style><script>window.hacked=1</script>",
    "</title></td></table><iframe src='javascript:top.hacked=1'></iframe>",
    "<!-- <b>&lt;script&gt;",
    "javascript:window.hacked=1",
    "a\u202eb\u2028c\x00\ud800",
]
LOOK = """
function seen(root, view) {
  const pictures = [...root.querySelectorAll('img')];
  const wide = root.documentElement || root;
  return {
    pictures: pictures.length,
    loaded: pictures.filter(p => p.complete && p.naturalWidth > 0 && p.naturalWidth == p.width && p.naturalHeight == p.height).length,
    sources: pictures.filter(p => !p.src.startsWith('data:image/png;base64,')).length,
    scripts: root.querySelectorAll('script, iframe, object, embed, link, base, form').length,
    handlers: [...root.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on') || /^javascript:/i.test(a.value))).length,
    hacked: !!(window.hacked || view.hacked),
    text: (root.body || root).innerText,
    title: root.title || '',
    svg: root.querySelectorAll('svg').length,
    bars: [...root.querySelectorAll('svg rect')].filter(r => r.getBoundingClientRect().width > 0).length,
    tall: wide.scrollHeight,
  };
}
function tell(found) {
  const out = document.createElement('pre');
  out.id = 'told';
  out.textContent = JSON.stringify(found);
  document.body.appendChild(out);
}
"""


def chromium(folder: Path, page: str, *options: str) -> tuple[str, str]:
    """The page's DOM once its scripts have run, and what the browser logged."""
    assert CHROMIUM is not None, "chromium is not installed"
    path = folder / "harness.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr", "--no-first-run",
         f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", "--window-size=1300,1000", *options, "--dump-dom", path.as_uri()],
        capture_output=True, timeout=100, check=True,
    )  # fmt: skip
    shutil.rmtree(folder / "profile", ignore_errors=True)
    return done.stdout.decode(), done.stderr.decode(errors="replace")


def told(folder: Path, page: str) -> dict[str, Any]:
    dom, log = chromium(folder, page)
    assert "CONSOLE" not in log, log
    found = re.search(r'<pre id="told">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, dom[-2000:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


def page_in_a_frame(folder: Path, page: str) -> dict[str, Any]:
    frame = f'<iframe id="frame" style="width:1200px;height:900px" srcdoc="{escape(page, quote=True)}"></iframe>'
    script = "frame = document.getElementById('frame'); frame.onload = () => setTimeout(() => tell(seen(frame.contentDocument, frame.contentWindow)), 300);"
    return told(folder, f"<!DOCTYPE html><meta charset=utf-8><body>{frame}<script>{LOOK}{script}</script></body>")


def fragment_in_a_notebook(folder: Path, fragment: str) -> dict[str, Any]:
    data = json.dumps(fragment).replace("<", "\\u003c")
    script = f"cell = document.getElementById('cell'); cell.innerHTML = {data}; setTimeout(() => tell(seen(cell, window)), 500);"
    return told(folder, f"<!DOCTYPE html><meta charset=utf-8><body><div id=cell></div><script>{LOOK}{script}</script></body>")


def check(found: dict[str, Any], pictures: int) -> None:
    assert found["pictures"] == found["loaded"] == pictures
    assert (found["sources"], found["scripts"], found["handlers"], found["hacked"]) == (0, 0, 0, False)
    assert found["tall"] > 100


def hostile_query() -> Any:
    rows = [{"key": text, text: text, "image": encoded(30, 40, seed=i), "bytes": text.encode("utf-8", "surrogatepass"), "n": i} for i, text in enumerate(HOSTILE)]
    rows[1]["image"] = encoded(30, 40)[:100] + HOSTILE[0].encode()
    return dataio.scan(rows)


def hostile_pipeline() -> Any:
    def picky(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] == 2:
            raise ValueError(HOSTILE[1] + record["text"])
        return record

    pipe = dataio.pipeline(dataio.map(picky), dataio.slot("image").decode_image(mode="rgb").resize(h=24, w=24), dataio.slot("text").passthrough(), dataio.batch(2))
    rows = [{"key": text, "text": text, "image": encoded(30, 40, seed=i), "n": i} for i, text in enumerate(HOSTILE)]
    return pipe.preview(rows, len(rows))


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("what", ["query", "pipeline", "glance", "describe"])
def test_hostile_text_stays_text(tmp_path: Path, what: str, form: str) -> None:
    query = hostile_query()
    shown: Any = {"query": query.preview, "pipeline": hostile_pipeline, "describe": lambda: dataio.scan(pl.DataFrame({"key": HOSTILE[:-1] * 2, HOSTILE[0]: 1})).describe(), "glance": lambda: query}[what]()
    if form == "page":
        if what == "glance":
            pytest.skip("a query is no page")
        shown.save(tmp_path / "page.html")
        found = page_in_a_frame(tmp_path, (tmp_path / "page.html").read_text())
    else:
        found = fragment_in_a_notebook(tmp_path, shown._repr_html_())
    pictures = {"query": len(HOSTILE), "pipeline": 2 * (len(HOSTILE) - 1), "describe": 0, "glance": 5}[what]
    check(found, pictures)
    assert "<script>" in found["text"]
    assert "\u202e" not in found["text"]
    assert "<img src=x oner" in found["text"]


def test_a_page_with_everything(tmp_path: Path) -> None:
    rows = [
        {"key": f"k{i}", "image": encoded(60 + i, 80), "sound": wave(np.arange(4000) * i), "matrix": np.random.default_rng(i).random((20, 30)), "caption": "words " * i, "score": i / 3}
        for i in range(6)
    ]
    shown = dataio.scan(rows).preview()
    shown.save(tmp_path / "page.html")
    found = page_in_a_frame(tmp_path, (tmp_path / "page.html").read_text())
    check(found, 18)
    for text in ("0 · k0", "jpeg 80 x 60", "0.50 s, 8 kHz, mono", "float64[20, 30]", "score 1", "0 to 255"):
        assert text in found["text"]


def test_histograms_are_drawn(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": np.random.default_rng(0).normal(size=500), "label": ["a", "b"] * 250, "image": [encoded(30, 40)] * 500})
    dataio.scan(frame).describe().save(tmp_path / "page.html")
    found = page_in_a_frame(tmp_path, (tmp_path / "page.html").read_text())
    check(found, 0)
    assert found["svg"] >= 6
    assert found["bars"] > 24
    assert "4:3" in found["text"]


def test_the_command_makes_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    from dataio import cli

    (tmp_path / "set").mkdir()
    for i in range(3):
        (tmp_path / "set" / f"{i}<b>.jpg").write_bytes(encoded(40, 50, seed=i))
    assert cli.main(["preview", str(tmp_path / "set"), "-o", str(tmp_path / "page.html")]) == 0
    found = page_in_a_frame(tmp_path, (tmp_path / "page.html").read_text())
    check(found, 3)
    assert "0<b>.jpg" in found["title"]


def test_a_page_looks_like_something(tmp_path: Path) -> None:
    """A screenshot: not blank, with the colours of the pictures, and nothing cut off at the left."""
    colours = [(200, 40, 40), (40, 160, 40), (40, 40, 200)]
    pictures = []
    for colour in colours:
        out = io.BytesIO()
        Image.new("RGB", (60, 60), colour).save(out, "PNG")
        pictures.append(out.getvalue())
    dataio.scan(pl.DataFrame({"image": pictures, "label": range(3)})).preview().save(tmp_path / "page.html")
    chromium(tmp_path, (tmp_path / "page.html").read_text(), f"--screenshot={tmp_path / 'shot.png'}")
    with Image.open(tmp_path / "shot.png") as shot:
        pixels = np.asarray(shot.convert("RGB"))
    for colour in colours:
        assert (pixels == colour).all(axis=2).sum() == 3600
    assert (pixels[:, :8] == 255).all()
    tops = {int(np.argwhere((pixels == colour).all(axis=2))[0][0]) for colour in colours}
    assert len(tops) == 1  # in one row
