"""How much more the honest variations that alarmed err than plain: ``python -m validation.faults.alarms FAULTS.json``.

Root mean square and largest error over that of the plain computation, both to the float64 reference, on the same
inputs; no rule judges here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from precision_eval.core.files import read_json
from validation.faults import _candidates
from validation.faults.trials import POOL, stands
from validation.frame import Figure


def ratios(variation: str, family: str, dtype: str) -> tuple[float, float]:
    """Return the ratio of the RMS errors and that of the largest ones."""
    stand = stands(family, getattr(torch, dtype), POOL)[0]
    chosen = next(one for one in _candidates(family)["honest"] if one.id == variation)
    reference = torch.stack(stand.reference)
    error, plain = (torch.stack(x).double() - reference for x in ([chosen.apply(o) for o in stand.calls], stand.plain))
    rms = float((error.square().mean() / plain.square().mean()).sqrt())
    return rms, float(error.abs().max() / plain.abs().max())


def main() -> None:
    """Print a line for each alarm in a summary."""
    parser = argparse.ArgumentParser(prog="python -m validation.faults.alarms", description=__doc__)
    parser.add_argument("summary", type=Path)
    figures = [Figure(**one) for one in read_json(parser.parse_args().summary)["figures"]]
    found = next(one.found for one in figures if one.name == "alarms at honest variations")
    torch.set_num_threads(1)
    for place in found.split("; ") if found != "none" else ():
        variation, _, rest = place.partition(" on ")
        family, _, dtype = rest.rpartition(" in ")
        print("{}: RMS error {:.2f} ×, largest {:.2f} ×".format(place, *ratios(variation, family, dtype)))


if __name__ == "__main__":
    main()
