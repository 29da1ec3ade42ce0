"""``python -m validation.audio``: print every figure with its target, and write them as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

PARTS = ("identities", "memory", "cost", "detection", "planted")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> int:
    """Run the bench."""
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # before numpy is loaded
    options = _parser().parse_args()
    sections = {}
    for name in PARTS:
        if name in options.parts:
            sections[name] = _RUN[name](options)
            _write(sections, options.out)
    missed = [figure["name"] for section in sections.values() for figure in section if figure["met"] is False]
    print(f"\nmissed: {'; '.join(missed) or 'none'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.audio", description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--folder", type=Path, default=Path("runs/audio-bench"), help="where sound is kept")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing of an hour")
    return parser


def _identities(options: argparse.Namespace) -> list[dict]:
    from validation.audio import identities

    return _shown(identities.figures())


def _memory(options: argparse.Namespace) -> list[dict]:
    from validation.audio import memory
    from validation.audio.signals import write_pair

    long = 10 if options.quick else 60
    short_pair = write_pair(options.folder, minutes=1)
    return _shown(memory.figures(short_pair, write_pair(options.folder, minutes=long)))


def _cost(options: argparse.Namespace) -> list[dict]:
    from validation.audio import cost
    from validation.audio.signals import write_pair

    minute, ten = (write_pair(options.folder, minutes=minutes) for minutes in (1, 10))
    few = 3 if options.quick else 7
    none = math.nan
    found = _shown(cost.against_floor(minute, rounds=3 * few, label="60 s"))
    found += _shown(cost.against_floor(ten, rounds=few, label="10 min"))
    targets = {"STFTLoss": 0.5, "MR-STFT": none, "SI-SDR": none}
    found += _shown(cost.against_peers(minute, rounds=3 * few, label="60 s", targets=targets))
    found += _shown(cost.against_peers(ten, rounds=few, label="10 min", targets={"STFTLoss": 0.2, "SI-SDR": none}))
    if not options.quick:
        found += _shown(cost.against_peers(ten, rounds=3, label="10 min", targets={"MR-STFT": 1 / 30}))
        found += _shown(cost.one_hour(write_pair(options.folder, minutes=60)))
    return found


def _detection(options: argparse.Namespace) -> list[dict]:
    from validation.audio import detection

    return _shown(detection.figures(options.folder, say=lambda text: print(f"  ({text})", file=sys.stderr)))


def _planted(options: argparse.Namespace) -> list[dict]:
    from validation.audio import planted

    return _shown(list(planted.figures()))


_RUN: dict[str, Callable[[argparse.Namespace], list[dict]]] = {
    "identities": _identities,
    "memory": _memory,
    "cost": _cost,
    "detection": _detection,
    "planted": _planted,
}


def _shown(figures: list) -> list[dict]:
    """Print figures as they come, and return them as plain data."""
    for figure in figures:
        target = "" if figure.most is None else f"≤ {figure.most:.3g}"
        target = target if figure.least is None else f"≥ {figure.least:.3g}"
        spread = f" [{figure.low:.3g}, {figure.high:.3g}]" if figure.low != figure.high else ""
        verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
        found = f"{figure.value:.3g} {figure.unit}{spread}"
        print(f"{figure.name:64s} {found:32s} {target:10s} {verdict:7s} {figure.note}", flush=True)
    return [figure.to_dict() for figure in figures]


def _write(sections: dict[str, list[dict]], out: Path | None) -> None:
    if out is None:
        return
    from importlib.metadata import PackageNotFoundError, version

    from precision_eval.core.environment import collect

    peers = {}
    for name in ("auraloss", "torchmetrics"):
        try:
            peers[name] = version(name)
        except PackageNotFoundError:
            peers[name] = None
    content = {**sections, "peers": peers, "environment": collect("cpu")}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
