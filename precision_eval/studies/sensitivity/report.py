"""From the runs of a map to ranked tables, figures, and the answer of maps, searches and contests; loads no torch.

Conventions: ``added`` is the drift of a *drop* run: what remains of exactness when only this group stores in the
format. ``carried`` is the share of the uniform format's drift that goes when only this group is held: 1 − rescued ÷
uniform, per unit, so that inputs are paired. Intervals are 95 % bootstrap intervals of the mean over units. Rank 1 is
the largest ``added``. Two groups are *tied* where the interval of their paired difference holds zero. In a figure
colour is what a site adds, on a logarithmic scale; what does not occur is blank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import grouped, percent
from precision_eval.core.table import Code, Table, make_table, to_csv, to_markdown
from precision_eval.report.drawing import FAINT, INK, dress, new_figure, save, style_of
from precision_eval.results.choose import point_front
from precision_eval.stats import bootstrap_interval
from precision_eval.stats.ranks import rank_correlation
from precision_eval.studies.sensitivity.targets import BEATS
from precision_eval.trace.sites import ROLES

SITES_SHOWN = 10
UNDERLYING = ("target", "size", "format")
CHECKS = ("float32", "uniform", "native", "fused")
CSV_FIELDS = (
    "kind", "rank", "name", "layer", "role", "added", "added_low", "added_high", "carried", "carried_low",
    "carried_high", "tied_with_next",
)  # fmt: skip


def number(value: float | None) -> str:
    """Two digits, scientific where small; a dash for what is not finite."""
    if value is None:
        return "not finite"
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"


def _effect_row(effect: Mapping[str, Any]) -> list[str]:
    tied = " =" if effect["tied_with_next"] else ""
    added = f"{number(effect['added'])} [{number(effect['added_low'])}, {number(effect['added_high'])}]"
    carried = "{} [{}, {}]".format(*(percent(effect[f"carried{end}"], decimals=0) for end in ("", "_low", "_high")))
    return [f"{effect['rank']}{tied}", Code(effect["name"]), added, carried]


def map_title(summary: Mapping[str, Any]) -> str:
    """Name a map: its target, size and format."""
    return " · ".join(summary[name] for name in ("target", "size", "format"))


def map_markdown(summary: Mapping[str, Any]) -> str:
    """Write one map: what it rests on, roles, layers, and the first sites."""
    drift = {name: number(summary[f"{name}_drift"]) for name in (*CHECKS, "fused_emulated")}
    same = "bit for bit" if summary["bit_identical"] else "**not**"
    lines = [
        f"**{map_title(summary)}**",
        "",
        f"Drift over {summary['units']} units: float32 {drift['float32']}; everything in {summary['format']} "
        f"{drift['uniform']} by the map and {drift['native']} by the format's own kernels "
        f"({100 * summary['identical_fraction']:.2f} % of the outputs bit-identical); with torch's own attention "
        f"{drift['fused']} (the map with scores and softmax held: {drift['fused_emulated']}). "
        f"Nothing rounded is {same} the float32 call. "
        f"√Σ added² over the sites is {number(summary['additivity'])} of the uniform drift, 1 where errors add in "
        f"squares. Rank correlation of added and carried over sites: {summary['agreement']:.2f}.",
        "",
    ]
    for kind in ("role", "layer", "site"):
        lines += [to_markdown(ranks_table(summary, kind)), ""]
    return "\n".join(lines)


def ranks_table(summary: Mapping[str, Any], kind: str, *, title: str = "") -> Table:
    """Return what each role, layer or site of a map adds and carries, of sites the first."""
    effects = [effect for effect in summary["effects"] if effect["kind"] == kind]
    column = "layer.role" if kind == "site" else kind
    head = ("rank", column, "drift added when it alone is dropped", "share that goes when it alone is held")
    return make_table(head, map(_effect_row, effects[:SITES_SHOWN] if kind == "site" else effects), title=title)


def _ratio(versus: Mapping[str, Any], name: str) -> str:
    if versus[f"{name}_ratio"] is None:
        return "–"
    low, high = (versus[f"{name}_{end}"] for end in ("low", "high"))
    return f"{number(versus[f'{name}_ratio'])} [{number(low)}, {number(high)}]"


def contest_markdown(result: Mapping[str, Any]) -> str:
    """Write one contest: the policy against every uniform fix."""
    lines = [
        f"**{result['target']} · {result['size']}: {result['policy_id']}** (chosen by the rule {result['rule']}; drift "
        f"{number(result['drift'])} over {result['units']} units that had no part in choosing it, "
        f"{1e3 * result['median_s']:.3g} ms, {result['processes']} processes)",
        "",
    ]
    rows = [
        [
            Code(versus["fix"]) if ":" not in versus["fix"] else versus["fix"],
            number(versus["fix_drift"]) if versus["status"] == "passed" else versus["status"],
            _ratio(versus, "drift"),
            _ratio(versus, "time"),
            versus["outcome"],
        ]
        for versus in result["versus"]
    ]
    head = ("fix", "its drift", "drift, policy ÷ fix [95 %]", "time, policy ÷ fix [decides]", "outcome")
    return "\n".join([*lines, to_markdown(make_table(head, rows)), ""])


def search_markdown(trial: Mapping[str, Any]) -> str:
    """Write the front of a search: the policies that no other one beats in time and drift, on the even units."""
    points = [point for point in trial["points"] if None not in (point["time_ratio"], point["drift"])]
    front = point_front([(point["time_ratio"], point["drift"]) for point in points])
    rows = [
        [point["id"], number(point["drift"]), "–" if point["foretold"] is None else number(point["foretold"]),
         f"{point['time_ratio']:.2f}"]
        for point in (points[at] for at in front)
    ]  # fmt: skip
    run = f"{len(trial['points'])} policies run"
    title = f"**{trial['target']} · {trial['size']}: the search**, {run}; the front of time and drift:"
    head = ("policy", "drift", "foretold by the map", f"time ÷ uniform {trial['format']}, quick")
    return "\n".join([title, "", to_markdown(make_table(head, rows)), ""])


def answer(summary: Mapping[str, Any]) -> list[str]:
    """Say in a sentence per target which roles carry the drift, and whether a mixed policy beats every uniform fix."""
    sentences = []
    for each in summary["maps"]:
        roles = [effect for effect in each["effects"] if effect["kind"] == "role"][:3]
        named = ", ".join(f"{effect['name']} ({number(effect['added'])})" for effect in roles)
        of_all = f"of {number(each['uniform_drift'])} in all"
        sentences.append(f"{each['target']}, {each['format']}: {named} add most, {of_all}.")
    targets = list(dict.fromkeys(result["target"] for result in summary["contests"]))
    by_target = sorted(summary["contests"], key=lambda result: targets.index(result["target"]))
    return [*sentences, *map(_contest_sentence, by_target)]


def _contest_sentence(result: Mapping[str, Any]) -> str:
    fixes = [versus for versus in result["versus"] if not versus["fix"].startswith("control")]
    beaten = [versus for versus in fixes if versus["outcome"] in BEATS]
    rest = ", ".join(f"{versus['fix']} ({versus['outcome']})" for versus in fixes if versus not in beaten)
    head = f"{result['target']}: {result['policy_id']} beats {len(beaten)} of {len(fixes)} uniform fixes"
    return f"{head}: every one." if result["beats_all"] else f"{head}; not {rest}."


def markdown(summary: Mapping[str, Any]) -> str:
    """Write the whole summary: the answer, contests, maps, searches."""
    lines = [f"- {sentence}" for sentence in answer(summary)]
    for kind, write in (("contests", contest_markdown), ("maps", map_markdown), ("searches", search_markdown)):
        lines += ["", *map(write, summary[kind])] if kind == "contests" else map(write, summary[kind])
    return "\n".join(lines).rstrip()


def csv_text(summary: Mapping[str, Any]) -> str:
    """Write every effect of every map as CSV."""
    rows = [
        [*(each[name] for name in UNDERLYING), *(effect[name] for name in CSV_FIELDS)]
        for each in summary["maps"]
        for effect in each["effects"]
    ]
    return to_csv(make_table((*UNDERLYING, *CSV_FIELDS), rows))


SEED = 20


def _drift(run: Mapping[str, Any]) -> np.ndarray:
    return np.array([np.inf if value is None else value for value in run["drift"]], dtype=np.float64)


def _mean(run: Mapping[str, Any]) -> float | None:
    mean = float(_drift(run).mean())
    return mean if np.isfinite(mean) else None


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    if not np.isfinite(values).all():
        return (float("inf"),) * 3
    interval = bootstrap_interval(values, seed=SEED)
    return interval.estimate, interval.low, interval.high


def summarise(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Summarise the maps of a file, one per target, size, seed and format; see ``CSV_FIELDS`` for their effects."""
    by_map = grouped(((run["target"], run["size"], run["seed"], run["format"]), run) for run in runs)
    return [_summary(target, size, format, of_map) for (target, size, _, format), of_map in by_map.items()]


def _summary(target: str, size: str, format: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    checks = {run["name"]: run for run in runs if run["direction"] == "check"}
    if missing := {*CHECKS, "fused_emulated"} - checks.keys():
        raise RecordError(
            f"the map of {target} in {format} lacks {', '.join(sorted(missing))}; run it again to the end"
        )
    uniform = _drift(checks["uniform"])
    effects = [effect for kind in ("site", "role", "layer") for effect in _effects(runs, kind, uniform)]
    added, carried = (
        np.array([effect[name] for effect in effects if effect["kind"] == "site"]) for name in ("added", "carried")
    )
    total = float(uniform.mean())
    finite = np.isfinite(total) and np.isfinite(added).all()
    return {
        "target": target,
        "size": size,
        "format": format,
        "units": uniform.size,
        **{f"{name}_drift": _mean(checks[name]) for name in CHECKS},
        "fused_emulated_drift": _mean(checks["fused_emulated"]),
        "bit_identical": bool(checks["float32"]["bit_identical"]),
        "identical_fraction": float(checks["native"]["identical_fraction"]),
        "additivity": float(np.sqrt((added**2).sum()) / total) if finite else None,
        "agreement": rank_correlation(added, carried) or 0.0,
        "effects": effects,
    }


def _effects(runs: Sequence[Mapping[str, Any]], kind: str, uniform: np.ndarray) -> list[dict[str, Any]]:
    """What each group of one kind adds and carries, in rank order."""
    drops, rescues = (
        {run["name"]: run for run in runs if run["direction"] == direction and run["kind"] == kind}
        for direction in ("drop", "rescue")
    )
    if drops.keys() != rescues.keys():
        raise RecordError(f"{len(drops)} groups were dropped and {len(rescues)} held; run the map again to the end")
    order = sorted(drops, key=lambda name: -float(_drift(drops[name]).mean()))
    effects = []
    for rank, name in enumerate(order, start=1):
        added = _drift(drops[name])
        with np.errstate(invalid="ignore"):
            carried = 1.0 - _drift(rescues[name]) / uniform
        layers, roles = ({site[at] for site in drops[name]["sites"]} for at in (0, 1))
        effect = {
            "rank": rank,
            "kind": kind,
            "name": name,
            "layer": layers.pop() if len(layers) == 1 else "",
            "role": roles.pop() if len(roles) == 1 else "",
            **dict(zip(("added", "added_low", "added_high"), _interval(added), strict=True)),
            **dict(zip(("carried", "carried_low", "carried_high"), _interval(carried), strict=True)),
            "tied_with_next": rank < len(order) and _tied(added, _drift(drops[order[rank]])),
        }
        effects.append(effect)
    return effects


def _tied(left: np.ndarray, right: np.ndarray) -> bool:
    _, low, high = _interval(left - right)
    return bool(low <= 0.0 <= high)


BARS = 14


def draw(summary: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw every map of a summary."""
    return [path for each in summary["maps"] for path in _draw_map(each, directory)]


def _draw_map(summary: Mapping[str, Any], directory: Path) -> list[Path]:
    sites = [effect for effect in summary["effects"] if effect["kind"] == "site"]
    layers = sorted({effect["layer"] for effect in sites}, key=_layer_order)
    figure = new_figure(12.0, max(3.8, 1.6 + 0.42 * max(len(layers), BARS // 2 + 3)))
    grid = figure.add_gridspec(1, 2, width_ratios=(1.35, 1.0))
    _heatmap(figure.add_subplot(grid[0, 0]), sites, layers)
    _bars(figure.add_subplot(grid[0, 1]), sites[:BARS], summary)
    title = f"{map_title(summary)}: drift that each site adds alone"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return save(figure, directory, f"{summary['target']}-{summary['format']}")


def _layer_order(name: str) -> tuple[bool, int, str]:
    first = name.partition(".")[0]
    return (not first.isdigit(), int(first) if first.isdigit() else 0, name)


def _heatmap(axes: Axes, sites: list[Mapping[str, Any]], layers: list[str]) -> None:
    roles = [role for role in ROLES if any(effect["role"] == role for effect in sites)]
    values = np.full((len(layers), len(roles)), np.nan)
    for effect in sites:
        if effect["added"] is not None and effect["added"] > 0.0:
            values[layers.index(effect["layer"]), roles.index(effect["role"])] = effect["added"]
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.1, 1.0)
    low = max(low, high * 1e-4)  # sites that add nothing beyond float32 would use the scale up
    image = axes.imshow(np.maximum(values, low), norm=LogNorm(low, high * 1.0001), cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = math.log(max(value, low) / low) < 0.55 * math.log(high * 1.0001 / low)
            colour = "white" if light else "black"
            axes.text(column, row, f"{value:.0e}", ha="center", va="center", fontsize=6.5, color=colour)
    dress(axes, title="layer × role")
    axes.grid(False)
    axes.set_xticks(range(len(roles)), roles, rotation=40, ha="right")
    axes.set_yticks(range(len(layers)), layers)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01)
    bar.ax.tick_params(labelsize=8, colors=INK)


def _bars(axes: Axes, first: list[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    drawn = [effect for effect in first if effect["added"] is not None]
    heights = np.arange(len(drawn))
    added = np.array([effect["added"] for effect in drawn])
    ends = np.array([[effect["added_low"], effect["added_high"]] for effect in drawn]).reshape(-1, 2)
    colour = style_of(summary["format"]).colour
    axes.barh(heights, added, xerr=np.abs(ends.T - added), color=colour, ecolor=INK, capsize=2.5, height=0.7)
    axes.set_yticks(heights, [effect["name"] for effect in drawn])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("relative error to float64, 95 % over units", fontsize=9, color=INK)
    dress(axes, title=f"first {len(drawn)} of {sum(e['kind'] == 'site' for e in summary['effects'])} sites")
    if summary["uniform_drift"] is not None:
        axes.annotate(
            f"everything in {summary['format']}: {summary['uniform_drift']:.1e}",
            (0.98, 0.03),
            xycoords="axes fraction",
            ha="right",
            fontsize=8.5,
            color=FAINT,
        )
