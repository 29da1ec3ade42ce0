"""Human speech with its exact texts, for what transcribes: the English prompts of Asterisk, out of Debian's packages.

Allison Smith reads them (16 kHz, G.722; CC-BY-SA-3.0); nothing of them is shipped. Prompts are joined, in the order of
the list of their texts, to utterances of mostly 20 to 30 s with half a second between two. Left out are tones, single
letters, whose spelling is anybody's choice, and prompts longer than Whisper hears at once.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from precision_eval.cases.adapters.speech import LONGEST_S, SAMPLE_RATE_HZ
from precision_eval.cases.voice.assets import sha256_of
from precision_eval.core.errors import IntegrityError

PACKAGES = {
    "asterisk-core-sounds-en_1.6.1-1_all.deb": "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
    "asterisk-core-sounds-en-g722_1.6.1-1_all.deb": "38c5261820b406dcb0ecb37675720da2b0864850690690352ca52707eb623806",
}
_TEXTS = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
_SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
_LEAST_S, _GAP_S = 20.0, 0.5

Spoken = tuple[str, np.ndarray]


def lay_out(packages: Path, folder: Path) -> tuple[int, float]:
    """Write utterances as WAV files with a text beside each; returns how many, and their minutes."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    count, length_s = 0, 0.0
    with tempfile.TemporaryDirectory() as unpacked:
        for name, expected in PACKAGES.items():
            found = sha256_of(packages / name) if (packages / name).is_file() else "no such file"
            if found != expected:
                raise IntegrityError(
                    f"{packages / name} has SHA-256 {found[:12]}; expected {expected[:12]}: apt-get download "
                    f"{name.split('_')[0]} of Debian 12, there"
                )
            subprocess.run(["dpkg-deb", "-x", str(packages / name), unpacked], check=True)
        for count, (said, samples) in enumerate(joined(_prompts(Path(unpacked))), start=1):
            path = folder / f"asterisk-{count:04}.wav"
            soundfile.write(path, samples, SAMPLE_RATE_HZ, subtype="PCM_16")
            path.with_suffix(".txt").write_text(said, encoding="utf-8")
            length_s += len(samples) / SAMPLE_RATE_HZ
    return count, length_s / 60.0


def _prompts(unpacked: Path) -> Iterator[Spoken]:
    for name, said in texts(gzip.decompress((unpacked / _TEXTS).read_bytes()).decode()):
        path = unpacked / _SOUNDS / f"{name}.g722"
        if path.is_file():
            yield said, _decoded(path)


def texts(listed: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each prompt of words."""
    for name, said in re.findall(r"^([\w/.-]+): *(.*\w.*)$", listed, flags=re.MULTILINE):
        if "[" not in said and not name.startswith("letters/"):
            yield name, said.strip()


def _decoded(path: Path) -> np.ndarray:
    """Samples of a G.722 file, by FFmpeg's decoder (``pip install av``)."""
    import av

    with av.open(str(path), format="g722") as file:
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])


def joined(prompts: Iterator[Spoken]) -> Iterator[Spoken]:
    """Join prompts until an utterance lasts long enough; what is left at the end is one too."""
    gap = np.zeros(round(_GAP_S * SAMPLE_RATE_HZ), dtype=np.int16)
    longest = round(LONGEST_S * SAMPLE_RATE_HZ)
    words: list[str] = []
    pieces: list[np.ndarray] = []
    for said, samples in prompts:
        if len(samples) > longest:
            continue
        length = sum(map(len, pieces))
        if pieces and (length >= _LEAST_S * SAMPLE_RATE_HZ or length + len(samples) > longest):
            yield " ".join(words), np.concatenate(pieces[:-1])
            words, pieces = [], []
        words, pieces = [*words, said], [*pieces, samples, gap]
    if pieces:
        yield " ".join(words), np.concatenate(pieces[:-1])
