"""In a headless browser: players play, one cursor serves all of them, and the console stays empty."""

import functools
import http.server
import json
import threading
from types import SimpleNamespace

import browser
import made_sound as made
import numpy as np
import pytest

from precision_eval.report.html.sound import sound_section
from precision_eval.results.reading import load_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser.find_chromium() is None, reason=browser.NO_BROWSER),
]

TOOLS = """
const root = document.querySelector(".sound-player"), audios = [...document.querySelectorAll("audio")];
const rows = [...root.querySelectorAll("[data-stream]")], said = { error: "" };
const row = (name) => rows.find((one) => one.dataset.name === name);
const player = (name) => document.getElementById(row(name).dataset.stream);
const at = () => Number(root.style.getPropertyValue("--sound-at")) * Number(root.dataset.duration);
const key = (key, code = key, more = {}) =>
  root.dispatchEvent(new KeyboardEvent("keydown", { key, code, bubbles: true, cancelable: true, ...more }));
const until = async (met, what) => {
  for (const start = performance.now(); !met(); ) {
    if (performance.now() - start > 20000) throw new Error(`waited in vain for ${what}`);
    await new Promise((next) => setTimeout(next, 5));
  }
};
const settled = (audio, what) => until(() => !audio.seeking && audio.readyState >= 3, what);
const report = (work) => work().catch((error) => { said.error = String(error); })
  .finally(() => fetch("/said", { method: "POST", body: JSON.stringify(said) }));
"""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sound</title><link rel="icon" href="data:,">
<style>{style}</style></head><body>{html}<script>{script}</script><script>{tools}{scenario}</script>
<img src="/hold" alt=""></body></html>"""
PIXEL = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves one page, and keeps its load event waiting until the page has said what it saw."""

    def __init__(self, *words, stage, **more):
        self.stage = stage
        super().__init__(*words, **more)

    def do_GET(self):
        held = self.path == "/hold"
        if held:
            self.stage.done.wait(timeout=60)
        body = PIXEL if held else self.stage.page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "image/gif" if held else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.stage.said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.stage.done.set()

    def log_message(self, *words):
        """Say nothing."""


def played(section, scenario):
    """Run a scenario on a page of the section; return what it said."""
    page = PAGE.format(style=section.style, html=section.html, script=section.script, tools=TOOLS, scenario=scenario)
    stage = SimpleNamespace(page=page, said=None, done=threading.Event())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, stage=stage)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            visit = browser.visit(
                f"http://127.0.0.1:{server.server_address[1]}/",
                virtual_ms=0,
                flags=("--autoplay-policy=no-user-gesture-required",),
            )
        finally:
            server.shutdown()
            thread.join()
    assert visit.console == ()
    assert stage.said is not None
    assert stage.said["error"] == ""
    return stage.said


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return sound_section(made.made_run(tmp_path_factory.mktemp("run"), seconds=20.0), budget_bytes=5_000_000)


LISTENING = """report(async () => {
      said.hidden = audios.every((one) => one.hidden) && !root.querySelector(".sound-bar").hidden;
      root.querySelector(".sound-play").click();
      await until(() => player("reference").currentTime > 0.3, "the reference to play");
      said.first = { time: player("reference").currentTime, ready: player("reference").readyState, cursor: at(),
        button: root.querySelector(".sound-play").textContent };
      said.switches = [];
      let current = "reference";
      const order = [["2", "kv_to_query"], ["4", "noise_floor"], ["5", "original speech"], ["1", "reference"]];
      for (const [digit, name] of order) {
        const before = player(current), after = player(name), left = before.currentTime;
        key(digit, `Digit${digit}`);
        await settled(after, name);
        const reached = after.currentTime;
        await until(() => after.currentTime > reached, `${name} to go on`);
        said.switches.push({ name, left, reached, others: audios.filter((one) => one !== after && !one.paused).length,
          ready: after.readyState, pressed: row(name).querySelector(".sound-pick").getAttribute("aria-pressed") });
        current = name;
      }
      const reference = player("reference"), before = reference.currentTime;
      let paused = 0;
      reference.addEventListener("pause", () => { paused += 1; });
      key("3", "Digit3");  // full_float32, whose samples are the reference's
      await until(() => reference.currentTime > before + 0.2, "the shared stream to go on");
      const now = () => root.querySelector(".sound-now").dataset.name;
      said.shared = { same: player("full_float32") === reference, paused, name: now() };
      key(" ", "Space");
      await until(() => root.querySelector(".sound-play").textContent === "Play", "a pause");
      const still = at();
      key("ArrowRight");
      await until(() => Math.abs(at() - still - 2) < 1e-6, "a step to the right");
      key("ArrowLeft", "ArrowLeft", { shiftKey: true });
      await until(() => at() === Math.max(0, still - 8), "a long step to the left");
      const range = root.querySelector(".sound-seek");
      range.value = "12.5";
      range.dispatchEvent(new Event("input"));
      await until(() => Math.abs(at() - 12.5) < 1e-6, "the seek bar");
      key("ArrowDown");
      said.down = now();
      const strip = row("kv_to_query").querySelector(".sound-strip"), box = strip.getBoundingClientRect();
      strip.dispatchEvent(new MouseEvent("click", { clientX: box.left + box.width / 4, bubbles: true }));
      await until(() => Math.abs(at() - 5) < 0.05, "a click on a strip");
      said.clicked = { name: now(), focus: document.activeElement === root };
      const cursor = strip.querySelector(".sound-cursor").getBoundingClientRect();
      said.cursor = (cursor.left + cursor.right) / 2 - box.left - box.width / 4;
      key(" ", "Space");
      await until(() => player("kv_to_query").currentTime > 5.1, "playing from there");
      said.valuetext = range.getAttribute("aria-valuetext");
      player("kv_to_query").currentTime = 19.8;
      await until(() => player("kv_to_query").ended, "the end");
      await until(() => root.querySelector(".sound-play").textContent === "Play", "the button at the end");
      said.end = at();
      root.querySelector(".sound-play").click();
      await until(() => !player("kv_to_query").paused && player("kv_to_query").currentTime < 5, "to start over");
    });"""


@pytest.fixture(scope="module")
def said(section):
    return played(section, LISTENING)


class TestOneCursor:
    def test_a_player_plays_and_the_cursor_follows(self, said):
        assert said["hidden"]
        assert said["first"]["ready"] >= 3
        assert said["first"]["button"] == "Pause"
        assert said["first"]["cursor"] == pytest.approx(said["first"]["time"], abs=0.25)

    def test_switching_keeps_the_position(self, said):
        assert [one["name"] for one in said["switches"]] == [
            "kv_to_query",
            "noise_floor",
            "original speech",
            "reference",
        ]
        for one in said["switches"]:
            assert one["reached"] - one["left"] == pytest.approx(0.0, abs=0.05), one
            assert one["ready"] >= 3
            assert one["others"] == 0
            assert one["pressed"] == "true"

    def test_identical_sounds_go_on_without_a_break(self, said):
        assert said["shared"] == {"same": True, "paused": 0, "name": "full_float32"}

    def test_keys_strips_and_the_end(self, said):
        assert said["down"] == "noise_floor"
        assert said["clicked"] == {"name": "kv_to_query", "focus": True}
        assert abs(said["cursor"]) <= 1.5  # pixels
        assert said["valuetext"].endswith("s of 20 s")
        assert said["end"] == pytest.approx(20.0, abs=0.05)


def test_an_excerpt_is_placed_in_the_run(tmp_path):
    run = made.made_run(tmp_path, seconds=40.0)
    section = sound_section(run, budget_bytes=700_000)
    assert "data-parts" in section.html
    assert "what is hatched is shown and not heard" in section.html
    said = played(
        section,
        """report(async () => {
          said.parts = JSON.parse(root.dataset.parts);
          const range = root.querySelector(".sound-seek");
          const to = (t) => { range.value = String(t); range.dispatchEvent(new Event("input")); };
          to(38);
          root.querySelector(".sound-play").click();
          await until(() => player("reference").currentTime > 0, "a start");
          await settled(player("reference"), "the late part");
          said.late = [player("reference").currentTime, at()];
          key("2", "Digit2");
          await settled(player("kv_to_query"), "the other one");
          said.other = player("kv_to_query").currentTime;
          to(0.4 * 40);
          await until(() => at() < 37, "what is heard next");
          said.gap = at();
        });""",
    )
    (_, part_s), (late_s, _) = said["parts"]
    assert late_s + part_s == 40.0
    assert 5 <= part_s < 16
    assert said["late"][0] == pytest.approx(part_s + 38 - late_s, abs=0.2)
    assert said["late"][1] == pytest.approx(38, abs=0.5)
    assert said["other"] == pytest.approx(said["late"][0], abs=0.3)
    assert said["gap"] == pytest.approx(late_s, abs=0.5)


def test_what_is_heard_is_what_the_cursor_shows(tmp_path):
    """A rising tone tells its own time; after a jump it must be as far from the cursor as without one."""
    seconds, low_hz, rise = 40.0, 500.0, 100.0  # Hz, Hz per s
    time_s = np.arange(round(seconds * made.RATE_HZ)) / made.RATE_HZ
    tone = (0.3 * np.sin(2 * np.pi * (low_hz * time_s + rise * time_s**2 / 2))).astype(np.float32)
    made.add(tmp_path, "reference", tone, made.tokens(seconds), case="tone")
    made.add(tmp_path, "bfloat16", (0.5 * tone).astype(np.float32), made.tokens(seconds), case="tone")
    said = played(
        sound_section(load_run(tmp_path), budget_bytes=5_000_000),
        """report(async () => {
          const context = new AudioContext({ sampleRate: 16000 }), analyser = context.createAnalyser();
          analyser.fftSize = 8192;
          analyser.smoothingTimeConstant = 0;
          for (const audio of audios) context.createMediaElementSource(audio).connect(analyser);
          analyser.connect(context.destination);
          await context.resume();
          const bins = new Float32Array(analyser.frequencyBinCount), range = root.querySelector(".sound-seek");
          const hear = async (name, t) => {
            range.value = String(t);
            range.dispatchEvent(new Event("input"));
            await settled(player(name), `${name} at ${t}`);
            const offsets = [], from = player(name).currentTime;
            for (let i = 1; i <= 8; i += 1) {
              await until(() => player(name).currentTime > from + 0.8 + 0.1 * i, `${name} to go on`);
              analyser.getFloatFrequencyData(bins);
              let best = 0;
              bins.forEach((level, bin) => { if (level > bins[best]) best = bin; });
              const between = bins[best + 1] - bins[best - 1];
              const peak = best + 0.5 * between / (2 * bins[best] - bins[best - 1] - bins[best + 1]);
              offsets.push((peak * 16000 / 8192 - 500) / 100 - player(name).currentTime);
            }
            return offsets.sort((a, b) => a - b)[4];
          };
          root.querySelector(".sound-play").click();
          said.offsets = [await hear("reference", 0), await hear("reference", 31.37), await hear("reference", 17.21)];
          key("2", "Digit2");
          said.offsets.push(await hear("bfloat16", 29.83), await hear("bfloat16", 8.05));
        });""",
    )
    first, *later = said["offsets"]
    assert -0.8 < first < 0.1  # half the analyser's 0.5 s, and the output's delay
    assert later == pytest.approx([first] * 4, abs=0.1), said["offsets"]
