"""The ranked tables and the contests as Markdown and CSV, from a summary alone; loads neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_eval.core.table import Code, make_table, to_csv, to_markdown

SITES_SHOWN = 10
UNDERLYING = ("target", "size", "format")
CSV_FIELDS = (
    "kind", "rank", "name", "layer", "role", "added", "added_low", "added_high", "carried", "carried_low",
    "carried_high", "tied_with_next",
)  # fmt: skip


def number(value: float | None) -> str:
    """Two digits, scientific where small; a dash for what is not finite."""
    if value is None:
        return "not finite"
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"


def percent(value: float | None) -> str:
    """Whole per cent, or a dash."""
    return "–" if value is None else f"{100 * value:.0f} %"


def _effect_row(effect: Mapping[str, Any]) -> list[str]:
    tied = " =" if effect["tied_with_next"] else ""
    added = f"{number(effect['added'])} [{number(effect['added_low'])}, {number(effect['added_high'])}]"
    carried = f"{percent(effect['carried'])} [{percent(effect['carried_low'])}, {percent(effect['carried_high'])}]"
    return [f"{effect['rank']}{tied}", Code(effect["name"]), added, carried]


def map_markdown(one: Mapping[str, Any]) -> str:
    """Write one map: what it rests on, roles, layers, and the first sites."""
    lines = [
        f"**{one['target']} · {one['size']} · {one['format']}**",
        "",
        f"Drift over {one['units']} units: float32 {number(one['float32_drift'])}; everything in {one['format']} "
        f"{number(one['uniform_drift'])} by the map and {number(one['native_drift'])} by the format's own kernels "
        f"({100 * one['identical_fraction']:.2f} % of the outputs bit-identical); with torch's own attention "
        f"{number(one['fused_drift'])} (the map with scores and softmax held: {number(one['fused_emulated_drift'])}). "
        f"Nothing rounded is {'bit for bit' if one['bit_identical'] else '**not**'} the float32 call. "
        f"√Σ added² over the sites is {number(one['additivity'])} of the uniform drift, 1 where errors add in squares. "
        f"Rank correlation of added and carried over sites: {one['agreement']:.2f}.",
        "",
    ]
    for kind, title, most in (("role", "role", 99), ("layer", "layer", 99), ("site", "layer.role", SITES_SHOWN)):
        effects = [effect for effect in one["effects"] if effect["kind"] == kind][:most]
        head = ("rank", title, "drift added when it alone is dropped", "share that goes when it alone is held")
        lines += [to_markdown(make_table(head, map(_effect_row, effects))), ""]
    return "\n".join(lines)


def _ratio(versus: Mapping[str, Any], name: str) -> str:
    if versus[f"{name}_ratio"] is None:
        return "–"
    low, high = (versus[f"{name}_{end}"] for end in ("low", "high"))
    return f"{number(versus[f'{name}_ratio'])} [{number(low)}, {number(high)}]"


def contest_markdown(one: Mapping[str, Any]) -> str:
    """Write one contest: the policy against every uniform fix."""
    lines = [
        f"**{one['target']} · {one['size']}: {one['policy_id']}** (chosen by the rule {one['rule']}; drift "
        f"{number(one['drift'])} over {one['units']} units that had no part in choosing it, "
        f"{1e3 * one['median_s']:.3g} ms, {one['processes']} processes)",
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
        for versus in one["versus"]
    ]
    head = ("fix", "its drift", "drift, policy ÷ fix [95 %]", "time, policy ÷ fix [decides]", "outcome")
    return "\n".join([*lines, to_markdown(make_table(head, rows)), ""])


def search_markdown(one: Mapping[str, Any]) -> str:
    """Write the front of a search: the policies that no other one beats in time and drift, on the even units."""
    points = one["points"]
    front = [point for point in points if not any(_dominates(other, point) for other in points)]
    rows = [
        [point["id"], number(point["drift"]), "–" if point["foretold"] is None else number(point["foretold"]),
         f"{point['time_ratio']:.2f}"]
        for point in sorted(front, key=lambda point: (point["time_ratio"], point["drift"]))
    ]  # fmt: skip
    title = f"**{one['target']} · {one['size']}: the search**, {len(points)} policies run; the front of time and drift:"
    head = ("policy", "drift", "foretold by the map", f"time ÷ uniform {one['format']}, quick")
    return "\n".join([title, "", to_markdown(make_table(head, rows)), ""])


def _dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    pairs = [(one[name], other[name]) for name in ("drift", "time_ratio")]
    finite = all(value is not None for pair in pairs for value in pair)
    return finite and all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def answer(summary: Mapping[str, Any]) -> list[str]:
    """Say in a sentence per target which roles carry the drift, and whether a mixed policy beats every uniform fix."""
    found = []
    for one in summary["maps"]:
        roles = [effect for effect in one["effects"] if effect["kind"] == "role"][:3]
        named = ", ".join(f"{effect['name']} ({number(effect['added'])})" for effect in roles)
        found.append(f"{one['target']}, {one['format']}: {named} add most, of {number(one['uniform_drift'])} in all.")
    for target in dict.fromkeys(one["target"] for one in summary["contests"]):
        of_target = [one for one in summary["contests"] if one["target"] == target]
        found += [_contest_sentence(one) for one in of_target]
    return found


def _contest_sentence(one: Mapping[str, Any]) -> str:
    fixes = [versus for versus in one["versus"] if not versus["fix"].startswith("control")]
    beaten = [versus for versus in fixes if _beaten(versus)]
    rest = ", ".join(f"{versus['fix']} ({versus['outcome']})" for versus in fixes if versus not in beaten)
    head = f"{one['target']}: {one['policy_id']} beats {len(beaten)} of {len(fixes)} uniform fixes"
    return f"{head}: every one." if one["beats_all"] else f"{head}; not {rest}."


def _beaten(versus: Mapping[str, Any]) -> bool:
    return versus["outcome"] in ("better in both", "lower drift at equal speed", "faster at equal drift", "no cure")


def markdown(summary: Mapping[str, Any]) -> str:
    """Write the whole summary: the answer, contests, maps, searches."""
    lines = [f"- {sentence}" for sentence in answer(summary)]
    found = [contest_markdown(one) for one in summary["contests"]]
    found += [map_markdown(one) for one in summary["maps"]]
    found += [search_markdown(one) for one in summary["searches"]]
    return "\n".join([*lines, "", *found]).rstrip()


def brief(summary: Mapping[str, Any], *, folder: str) -> str:
    """Write what a page needs: the answer, the contests, a figure of each map, and where the rest is."""
    lines = [f"- {sentence}" for sentence in answer(summary)]
    found = [contest_markdown(one) for one in summary["contests"]]
    names = [f"{one['target']}-{one['format']}" for one in summary["maps"]]
    pictures = [f"![drift that each site adds alone, {name}]({folder}/figures/{name}.png)\n" for name in names]
    rest = f"Every map and search, with its checks: [sensitivity.md]({folder}/sensitivity.md)."
    return "\n".join([*lines, "", *found, *pictures, rest])


def csv_text(summary: Mapping[str, Any]) -> str:
    """Write every effect of every map as CSV."""
    rows = [
        [*(one[name] for name in UNDERLYING), *(effect[name] for name in CSV_FIELDS)]
        for one in summary["maps"]
        for effect in one["effects"]
    ]
    return to_csv(make_table((*UNDERLYING, *CSV_FIELDS), rows))
