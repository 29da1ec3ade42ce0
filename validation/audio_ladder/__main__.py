"""``python -m validation.audio_ladder``: measure the ladder on a recording and write it down.

Writes ``ladder.json``, ``table.md``, ``ladder.png`` and ``ladder.svg``. Bad input ends with one line and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audio_metrics.errors import AudioMetricsError, ParameterError

_EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        ladder = _measured(options)
        paths = _write(ladder, options)
    except (AudioMetricsError, OSError) as error:
        print(f"validation.audio_ladder: {' '.join(str(error).split())}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    print("\n".join(str(path) for path in paths))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m validation.audio_ladder",
        description="Apply degradations of known size to speech and measure each: the scale on which to read a metric.",
        epilog="Takes about 20 s of processor time per minute of speech; 5 minutes let drifts and clocks show.",
    )
    parser.add_argument("--reference", type=Path, metavar="WAV", help="speech, mono; float32 samples are best")
    parser.add_argument("--null", type=Path, metavar="WAV", help="the same words again, aligned, from another seed")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    parser.add_argument("--seconds", type=float, help="use only that much from the beginning")
    parser.add_argument("--pitch", action="store_true", help="with the metrics of pitch, five times as long")
    parser.add_argument("--redraw", action="store_true", help="write table and figure again from DIR/ladder.json")
    return parser


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.redraw:
        ladder: dict[str, Any] = json.loads((options.out / "ladder.json").read_text(encoding="utf-8"))
        return ladder
    if options.reference is None:
        raise ParameterError("no reference; give --reference speech.wav, or --redraw with an earlier --out")
    from validation.audio_ladder.climb import climb

    options.out.mkdir(parents=True, exist_ok=True)  # an unwritable place ends here, before the work
    return climb(
        options.reference,
        null_path=options.noise_floor,
        seconds=options.seconds,
        pitch=options.pitch,
        on_progress=_show,
    )


def _show(done: int, total: int, name: str) -> None:
    if sys.stderr.isatty():
        end = "\n" if done + 1 == total else ""
        print(f"\r\x1b[K[{done + 1}/{total}] {name}", end=end, file=sys.stderr, flush=True)


def _write(ladder: dict[str, Any], options: argparse.Namespace) -> list[Path]:
    from validation.audio_ladder.figure import draw
    from validation.audio_ladder.table import write_table

    path = options.out / "ladder.json"
    path.write_text(json.dumps(ladder, indent=None, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    return [path, write_table(ladder, options.out / "table.md"), *draw(ladder, options.out)]


if __name__ == "__main__":
    sys.exit(main())
