"""Hostile record files: whatever a value is changed to, a run is read or refused in one line."""

import json
import re
import warnings

import made_runs as made
import numpy as np
import pytest

from precision_eval import load
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.table import to_csv
from precision_eval.report.tables import results_table
from precision_eval.report.writer import markdown_report

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = re.compile(r'(?:^|,)"?=cmd', re.MULTILINE)
HOSTILE = (
    *(None, True, 0, -1, 2**63, 10**400, float("nan"), float("-inf"), 1e308, 5e-324, "", "x" * 20_000, "\ud800"),
    *("\x1b]0;owned\x07\x1b[2J", "../../../etc/passwd", "a\x00b", "\u202e", "=cmd|' /C calc'!A0", "line\nbreak"),
    *("[red]", "%s {0} {", "NaN", [], {}, [None], [[]], {"a": {"b": []}}, {"": ""}, [0.0] * 50),
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    run = made.Synthetic(tmp_path_factory.mktemp("run"), minutes=0.2)
    run.attention("attention-decode", "dia", "eager")
    run.voice("eager")
    folder = run.write()
    return folder, (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()


def places_in(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places_in(inner, (*path, key))


def replaced(value, path, other):
    """Return plain data with one value replaced; a missing one where `other` is the sentinel."""
    if not path:
        return other
    key, *rest = path
    inner = replaced(value[key], rest, other)
    if isinstance(value, list):
        return [*value[:key], inner, *value[key + 1 :]]
    return {name: old for name, old in value.items() if name != key} | ({} if inner is ... else {key: inner})


def mutate(lines, rng):
    """Change a few lines: a value replaced or removed, or a line cut short."""
    mutated = list(lines)
    for number in rng.choice(len(lines), size=rng.integers(1, 5), replace=False):
        line = lines[number]
        if rng.random() < 0.05:
            mutated[number] = line[: rng.integers(len(line) + 1)]
            continue
        places = list(places_in(json.loads(line)))
        path = places[rng.integers(len(places))]
        values = (*HOSTILE, ...) if path and isinstance(path[-1], str) else HOSTILE
        mutated[number] = json.dumps(replaced(json.loads(line), path, values[rng.integers(len(values))]))
    return mutated


def read_everything(folder):
    """Read a run as users do; return what was written and warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            run = load(folder)
            json.dumps([run.to_dicts(kind=kind) for kind in ("fixes", "records")], allow_nan=False)
            text = repr(run) + to_csv(results_table(run.run)) + markdown_report(run.run, [])
        except PrecisionEvalError as error:
            text = str(error)
    return "\n".join([text, *(str(warning.message) for warning in warned)])


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))])
def test_a_mutated_run_is_read_or_refused_in_one_line(lines, seed):
    folder, whole = lines
    mutated = mutate(whole, np.random.default_rng(seed))
    (folder / "records.jsonl").write_text("\n".join(mutated) + "\n", encoding="utf-8")
    text = read_everything(folder)
    assert not CONTROL.search(text)
    assert not FORMULA.search(text)


def test_what_is_not_mutated_is_read(lines):
    folder, whole = lines
    (folder / "records.jsonl").write_text("\n".join(whole) + "\n", encoding="utf-8")
    assert read_everything(folder).count("kv_to_query") > 1
