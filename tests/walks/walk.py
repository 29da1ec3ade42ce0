"""Three users' first hour, step by step: ``python tests/walks/walk.py tts|maintainer|audio``.

Each begins from a bare clone, which is installed into an environment of its own; ``--installed`` takes this one. A line
a step: its seconds, its lines, its exit code. The first step that would stop a user ends the walk with exit code 1.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MESSAGE = (
    "Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: c10::Half and "
    "value.dtype: c10::Half instead."
)
SPEECH = """
import io, sys
import numpy as np, scipy.signal as signal, soundfile
from importlib.resources import files
x, rate = soundfile.read(files("precision_eval") / "cases/voice/data/speech.flac", start=640000, frames=112000)
other, _ = soundfile.read(files("precision_eval") / "cases/voice/data/speech.flac", start=960000, frames=112000)
steps = np.random.default_rng(0).integers(-1, 2, rate) / 32768
loops = {}
for ms in (100, 20):
    loops[ms] = x.copy()
    loops[ms][rate : 5 * rate] = np.resize(x[rate : rate + ms * rate // 1000], 4 * rate)
noise = x.copy()
noise[3 * rate : 4 * rate] = steps
mp3 = io.BytesIO()
soundfile.write(mp3, x, rate, format="MP3", bitrate_mode="CONSTANT", compression_level=0.85)
mp3.seek(0)
made = {
    "reference": x, "another": other, "swapped": np.roll(x, len(x) // 2), "codec": soundfile.read(mp3)[0][: len(x)],
    "narrow": signal.sosfiltfilt(signal.butter(16, 4000, fs=rate, output="sos"), x), "soft": x / 2, "inverted": -x,
    "loop100": loops[100], "loop20": loops[20], "noise": noise, "late": np.concatenate([np.zeros(592), x]),
    "stereo": np.stack([x, x], 1),
}
for name, samples in made.items():
    soundfile.write(f"{name}.wav", samples, rate)
soundfile.write("fast.wav", signal.resample_poly(x, 3, 2), 24000)
"""
PLANTED = {
    "another": "another recording", "swapped": "halves of the estimate are swapped", "codec": "a lossy codec",
    "narrow": "nothing above 4", "soft": "6.02 dB lower", "inverted": "polarity is inverted",
    "loop100": "repeats 100 ms over 4.0 s", "loop20": "repeats 20 ms over 4.0 s",
    "noise": "noise at -92 dBFS for 1.0 s", "late": "37 ms late",
}  # fmt: skip


class Walk:
    """A user's folder, and the environment that the tool is installed in."""

    def __init__(self, folder: Path, *, installed: bool) -> None:
        self.folder, self.python = folder / "project", Path(sys.executable)
        self.folder.mkdir()
        if not installed:  # beside the project, which is a repository of its own
            environment = folder / "environment"
            self.step("git", "clone", "--quiet", str(ROOT), str(folder / "clone"))
            self.step(sys.executable, "-m", "venv", str(environment))
            self.python = environment / "bin" / "python"
            self.install(str(folder / "clone"))

    def install(self, *packages: str) -> None:
        self.step(str(self.python), "-m", "pip", "install", "--quiet", *packages)

    def step(self, *words: str, code: int = 0, says: str = "", at_most: int = 120) -> None:
        began = time.monotonic()
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        shown = " ".join(word if len(word) < 40 else f"{word[:36]} ..." for word in words[-6:]).replace("\n", " ")
        print(f"{time.monotonic() - began:6.1f} s {len(lines):4d} lines  exit {done.returncode}  {shown}", flush=True)
        missing = says not in " ".join(" ".join(lines).split())
        if done.returncode != code or missing or len(lines) > at_most or any("Traceback" in line for line in lines):
            print(*lines[-30:], sep="\n")
            print(f"stopped: expected exit {code}, {says!r}, at most {at_most} lines, and no traceback")
            sys.exit(1)

    def tool(self, *words: str, code: int = 0, says: str = "", at_most: int = 120) -> None:
        self.step(str(self.python), "-m", "precision_eval", *words, code=code, says=says, at_most=at_most)

    def commit(self, message: str) -> None:
        self.step("git", "add", ".")
        self.step("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", f"--message={message}")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def walk_tts(walk: Walk) -> None:
    """From the message to the fix to ship, and the patch."""
    walk.write("decoder.py", Path(__file__).with_name("decoder.py").read_text(encoding="utf-8"))
    walk.step("git", "init", "--quiet")
    walk.tool("explain", MESSAGE, says="precision-eval doctor", at_most=15)
    walk.tool("doctor", "decoder.py:factory", "--write-patch", "fix.patch", code=1, says="wrote fix.patch")
    walk.tool("run", "decoder.py:factory", "--quick", "--out", "runs/mine", says="Next: precision-eval", at_most=30)
    walk.tool("choose", "runs/mine", "--policy", "quality", says="Take full_float32", at_most=40)
    walk.tool("plan", "decoder.py:factory", "--length", "2048", "--fix", "full_float32", says="full_float32")
    walk.step("git", "apply", "fix.patch")
    walk.tool("doctor", "decoder.py:factory", "--no-fixes", says="No fault")
    walk.tool("modules", "decoder.py:factory", "--set", "held_out=off", says="parts in bfloat16", at_most=30)


def walk_maintainer(walk: Walk) -> None:
    """A starter in a repository of one's own, a cure that is gated, and a comment."""
    decoder = Path(__file__).with_name("decoder.py").read_text(encoding="utf-8")
    walk.write("decoder.py", decoder)
    walk.step("git", "init", "--quiet")
    walk.commit("base")
    for old, new in {
        "position] = k\n": "position] = k.to(self.keys.dtype)\n",
        "position] = v\n": "position] = v.to(self.values.dtype)\n",
        "q, self.keys, self.values)": "q, self.keys.to(q.dtype), self.values.to(q.dtype))",
    }.items():
        decoder = decoder.replace(old, new)
    walk.write("decoder.py", decoder)
    walk.commit("cure")
    effort = ("--case", "decoder.py:factory", "--set", "processes=4", "--set", "budget=2")
    walk.tool("gate", "--base", "HEAD~1", *effort, says="Fixed: raised at base, passes at head")
    walk.write("decoder.py", f"# A comment.\n{decoder}")
    walk.commit("comment")
    walk.tool("gate", "--base", "HEAD~1", *effort, says="Unchanged", at_most=10)
    walk.tool("init", says="written:")
    walk.install("asv")  # a maintainer who tracks versions has it; without it, versions asks for it
    walk.tool("versions", "--results", str(ROOT / "results/torch-versions"), says="series changed", at_most=30)


def walk_audio(walk: Walk) -> None:
    """Each planted difference is named in the first line; what cannot be compared names the option that does it."""
    walk.step(str(walk.python), "-c", SPEECH)
    walk.tool("audio", "reference.wav", "reference.wav", says="no fault found")
    for name, says in PLANTED.items():
        walk.tool("audio", "reference.wav", f"{name}.wav", code=1, says=says)
    walk.tool("audio", "reference.wav", "late.wav", "--align", "lag", says="37 ms late")
    for name, option in {"fast": "--resample", "stereo": "--mono"}.items():
        walk.tool("audio", "reference.wav", f"{name}.wav", code=2, says=f"add {option}", at_most=1)
        walk.tool("audio", "reference.wav", f"{name}.wav", option, says="no fault found")


WALKS = {"tts": walk_tts, "maintainer": walk_maintainer, "audio": walk_audio}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("user", choices=WALKS)
    parser.add_argument("--installed", action="store_true", help="take this environment, and clone nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as place:
        WALKS[asked.user](Walk(Path(place), installed=asked.installed))
    print("not stopped once")
