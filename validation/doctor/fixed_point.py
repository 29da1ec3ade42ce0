"""Is a patch a fixed point: applied to a copy of the files, does the doctor find no fault then, and take nothing back?

A target is ``FILE:factory``, or ``scene NAME`` of the seventh set. Files are copied, changed by ``patch``, and
examined; where a library is changed, by ``python -m validation.doctor.fixed_point TARGET CODE``, which prints JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import site
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from precision_eval.cases.own import own_case
from precision_eval.core.errors import ParameterError
from precision_eval.doctor.diagnosis import Diagnosis, Patch
from precision_eval.doctor.examination import examine
from precision_eval.fixes.outside import Fixed
from precision_eval.fixes.storage import tensors_in
from validation.doctor import scenes
from validation.doctor.scenes import Built, SceneSet
from validation.frame import ROOT, Data, Figure, python_m
from validation.report import judged_share

CASES = ROOT / "docs" / "reports" / "cases"
HALF_CACHE = Path(__file__).with_name("half_cache.py")


def targets(plants: SceneSet) -> list[str]:
    """List every plant of a set, every file of a report, and a cache in half."""
    return [f"scene {name}" for name in plants.scenes] + [f"{path}:factory" for path in (*case_files(), HALF_CACHE)]


def case_files() -> list[Path]:
    """List the files of public reports that the doctor is given."""
    return [path for path in sorted(CASES.glob("*.py")) if "def factory" in path.read_text(encoding="utf-8")]


def settle(target: str, *, every: bool = False) -> Data:
    """Apply the first patch, or each, to a copy and examine again; say what came of each that was called a cure."""
    try:
        diagnosis = _examine(*_build(target), fixes=False)
        if diagnosis.faults and not any(patch.verified for patch in diagnosis.patches):
            diagnosis = _examine(*_build(target), fixes=True)  # which suggests one of them then
    except ParameterError as error:
        return {"refused": str(error)[:160]}
    patches = diagnosis.patches if every else diagnosis.patches[:1]
    again = [_apply(target, patch) for patch in patches if patch.verified]
    return {"patches": len(patches), "again": again, "left": [left for patch in patches for left in patch.left]}


def is_settled(row: Data) -> bool:
    """Whether every patch that was called a cure left no fault, and nothing takes it back."""
    return all(
        again.get("status") == "passed" and not again["faults"] and not again["patches"]
        for again in row.get("again", ())
    )


def count_settled(rows: Sequence[Data]) -> Data:
    """Count the first patches that were called a cure, and keep those that are none."""
    cures = [row for row in rows if row.get("again")]
    return {
        "cures": len(cures), "settled": sum(map(is_settled, cures)),
        "partial": sum(bool(row.get("patches") and not row["again"]) for row in rows),
        "none": sum(not row.get("patches") for row in rows),
        "open": [row for row in cures if not is_settled(row)],
    }  # fmt: skip


def settled_figures(counts: Data) -> list[Figure]:
    if not counts:
        return []
    rest = {"first patches that say what they leave": f"{counts['partial']}", "no patch": f"{counts['none']}"}
    name = "first patch applied: no fault is left, none takes it back"
    figures = [judged_share(name, counts["settled"], counts["cures"], "100 %", rivals=rest)]
    for row in counts["open"]:
        again = row["again"][0]
        left = [f"it {again['status']}", *again["faults"], *(f"a patch: {patch[:80]}" for patch in again["patches"])]
        figures.append(Figure(f"not settled: {row['target']}", "; ".join(left)))
    return figures


def _examine(model: Any, inputs: tuple[Any, ...], *, fixes: bool) -> Diagnosis:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return examine(model, *inputs, fixes=fixes, latency=False)


def _build(target: str, plants: SceneSet | None = None) -> Built:
    torch.manual_seed(0)
    kind, _, name = target.partition(" ")
    if kind != "scene":
        case = own_case(target, seed=0)
        return case.module(), tuple(case.arguments())
    if plants is None:
        plants = importlib.import_module("validation.doctor.seventh").SET  # loads transformers and diffusers
    return plants.twin(name, plants.scenes[name].of, careful=False)


def _apply(target: str, patch: Patch) -> Data:
    """Examine with a patch: here, or in a process of its own where a library is changed."""
    parts = _parts(patch.diff)
    with TemporaryDirectory() as folder:
        home, is_imported = Path(folder), False
        if not target.startswith("scene "):
            file, _, factory = target.partition(":")
            target = f"{shutil.copy(file, home)}:{factory}"
        for name, part in parts:
            copy = _copied(name, home)
            is_imported |= "site-packages" in copy.parts or copy.name == Path(scenes.__file__).name
            subprocess.run(["patch", "--silent", str(copy)], input=part, text=True, check=True)
        if is_imported:
            where = f"{home}:{home / 'site-packages'}:{ROOT}"
            words = ("validation.doctor.fixed_point", target, patch.code)
            found: Data = json.loads(python_m(*words, cwd=home, PYTHONPATH=where).stdout.splitlines()[-1])
        else:
            found = _again(target, patch.code, home / "validation/doctor/seventh.py")
    return {"diff": patch.diff, "code": patch.code, **found}


def _again(target: str, code: str, file: Path | None = None) -> Data:
    """Examine a target once more, scenes from another file if there is one, after lines that change what is stored."""
    kept = dict(scenes._BODIES)
    try:
        model, inputs = _build(target, _load_set(file) if file is not None and file.exists() else None)
        if code:
            model, inputs = _changed(code, model, inputs)
        if isinstance(model, Fixed):  # no module to examine: it is called
            return {"status": _status(model, inputs), "faults": [], "patches": []}
        diagnosis = _examine(model, inputs, fixes=False)
    finally:
        scenes._BODIES.update(kept)
    faults = [f"{fault.kind} at {fault.place}: {fault.reason}"[:240] for fault in diagnosis.faults]
    patches = [patch.diff or patch.code for patch in diagnosis.patches if patch.diff or patch.code]
    return {"status": diagnosis.status, "faults": faults, "patches": patches}


def _status(model: Fixed, inputs: tuple[Any, ...]) -> str:
    try:
        outputs = model(**inputs[0]) if isinstance(inputs[0], dict) else model(*inputs)
    except RuntimeError:
        return "raised"
    finite = all(bool(tensor.isfinite().all()) for _, tensor in tensors_in("output", outputs))
    return "passed" if finite else "non_finite"


def _load_set(file: Path) -> SceneSet:
    """Load scenes from a changed file, in place of those of the same names."""
    scenes._BODIES.clear()
    spec = importlib.util.spec_from_file_location("validation.doctor.patched", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plants: SceneSet = module.SET
    return plants


def _parts(diff: str) -> list[tuple[str, str]]:
    """Split a diff into files."""
    parts = [part for part in re.split(r"(?m)^(?=--- )", diff) if part]
    return [(part.split("\n", 1)[0].removeprefix("--- a/").strip(), part) for part in parts]


def _copied(name: str, home: Path) -> Path:
    """Copy a file with the package around it, links for what is not changed; return the copy."""
    if (home / Path(name).name).exists():  # a file by itself
        return home / Path(name).name
    top = Path(name).parts[0]
    if top == "validation":
        if not (home / top).exists():
            shutil.copytree(ROOT / top, home / top)
        return home / name
    root = home / "site-packages"
    root.mkdir(exist_ok=True)
    (package,) = (Path(at) / top for at in site.getsitepackages() if (Path(at) / top).exists())
    if not (root / top).exists():
        shutil.copytree(package, root / top, copy_function=lambda a, b: Path(b).symlink_to(a))
    (root / name).unlink()
    return Path(shutil.copy(package.parent / name, root / name))


def _changed(code: str, model: Any, inputs: tuple[Any, ...]) -> Built:
    """Run the lines of a patch, with the inputs by the names of forward's parameters."""
    import precision_eval

    names = list(inputs[0]) if isinstance(inputs[0], dict) else list(inspect.signature(model.forward).parameters)
    values = list(inputs[0].values()) if isinstance(inputs[0], dict) else list(inputs)
    scope = {"torch": torch, "precision_eval": precision_eval, "model": model, **dict(zip(names, values, strict=False))}
    exec(code, scope)  # noqa: S102 - the doctor wrote these lines
    values = [scope[name] for name in names[: len(values)]]
    return scope["model"], (dict(zip(names, values, strict=True)),) if isinstance(inputs[0], dict) else tuple(values)


if __name__ == "__main__":
    print(json.dumps(_again(sys.argv[1], sys.argv[2])))
