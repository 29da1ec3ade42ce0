"""README blocks of what measuring costs: a sweep over torch versions, and asv on a fresh checkout.

Conventions: as :mod:`.readme_parts`; a GB is 10^9 bytes, of disk blocks.
"""

from __future__ import annotations

from pathlib import Path

from tools.readme.parts import as_written, measured_with, met_word, not_measured, read_figures, table

ASV_COST_COMMAND = "python -m validation.cost --out results/asv-cost.json"


def sweep_cost_markdown(folder: Path) -> str:
    """Return time and disk per torch version of a sweep; empty where the folder has no notes of environments."""
    from tools.torch_versions.sweep_costs import read_costs

    costs = read_costs(folder)
    if not costs:
        return ""
    head = ["torch", "environment made in", "on disk"]
    knows_shared = any(one.shared_bytes is not None for one in costs)
    knows_wall = any(one.sweep_s is not None for one in costs)
    head += [*(["of it shared"] if knows_shared else []), "benchmarks", "their time"]
    head += ["the sweep took"] if knows_wall else []
    rows = []
    for one in costs:
        row = [f"{one.torch_version}, {one.build}", f"{one.environment_s:.0f} s", _gb(one.bytes)]
        row += [_gb(one.shared_bytes)] if knows_shared else []
        row += [f"{one.benchmarks}", f"{one.benchmarks_s / 60:.1f} min"]
        row += ["–" if one.sweep_s is None else f"{one.sweep_s / 60:.1f} min"] if knows_wall else []
        rows.append(row)
    note = "Their time is asv's count; its start, its list of benchmarks and the project's install come on top"
    note += ", and are in the sweep's time, all the times that it was run." if knows_wall else "."
    if knows_shared:
        note += " Shared: files that uv links to its cache."
    return f"{table(head, rows)}\n\n{note}"


def _gb(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e9:.2f} GB"


def asv_cost_markdown(path: Path) -> str:
    """Return how long asv takes on a fresh checkout, its environment included, beside the targets."""
    stored = read_figures(path, ASV_COST_COMMAND, keys=("runs",))
    if stored is None:
        return not_measured(path, ASV_COST_COMMAND)
    with as_written(path, ASV_COST_COMMAND):
        rows: list[tuple[str, ...]] = []
        places: dict[str, None] = {}
        for one in stored["runs"]:
            target = one["target_s"]
            rows.append(
                (
                    f"`{one['command']}`, fresh checkout, environment made",
                    "–" if target is None else f"≤ {target / 60:g} min",
                    f"{one['seconds'] / 60:.1f} min, {one['benchmarks']} benchmarks, {_gb(one['environment_bytes'])}",
                    met_word(None if target is None else one["seconds"] <= target),
                )
            )
            places[measured_with(ASV_COST_COMMAND, one["environment"])] = None
        return "\n\n".join([table(("command", "target", "found", "met"), rows), *places])
