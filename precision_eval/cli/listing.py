"""The command ``list``: each registry, explained, with its sources."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from precision_eval.cases.systems import CASES
from precision_eval.cli import options
from precision_eval.core.environment import cpu_model
from precision_eval.core.files import to_json
from precision_eval.core.formats import FORMATS, support
from precision_eval.fixes.catalog import ALL_FIXES
from precision_eval.measure.registry import all_measures

HELP = """[bold]Examples[/bold]

[cyan]precision-eval list fixes[/cyan]

[cyan]precision-eval list devices[/cyan]  which formats are native and which are only emulated
"""


class Registry(StrEnum):
    fixes = "fixes"
    cases = "cases"
    devices = "devices"
    measures = "measures"


def list_(registry: Annotated[Registry, typer.Argument(help="What to list.")], as_json: options.Json = False) -> None:
    readers = {Registry.fixes: _fixes, Registry.cases: _cases, Registry.devices: _devices, Registry.measures: _measures}
    entries = list(readers[registry]())
    if as_json:
        print(to_json(entries, what="the list", indent=1))
        return
    console = Console(emoji=False)
    for entry in entries:
        (_print_device if registry is Registry.devices else _print_entry)(entry, console)


def _fixes() -> Iterator[dict[str, Any]]:
    for fix in ALL_FIXES:
        facts = f"storage {fix.storage}, agreement {fix.agreement}, {' and '.join(fix.modes)}".replace("_", " ")
        condition = "" if fix.by_default else "; measured only if named"
        yield _entry(fix.id, fix.title, fix.explanation, facts + condition, fix.source)


def _cases() -> Iterator[dict[str, Any]]:
    for case in CASES:
        others = [size for size in case.sizes if size not in case.default_sizes]
        also = f" (also {', '.join(others)})" if others else ""
        facts = f"sizes {', '.join(case.default_sizes)}{also}; measures {', '.join(case.measures)}"
        if case.upstream:
            facts += f"; upstream: {case.upstream}"
        yield _entry(case.id, case.title, case.explanation, facts, case.source)


def _measures() -> Iterator[dict[str, Any]]:
    for measure in all_measures():
        facts = "runs alone" if measure.timed else "runs in parallel"
        yield _entry(measure.name, "", measure.title, facts, measure.source)


def _devices() -> Iterator[dict[str, Any]]:
    import torch

    models = {"cpu": cpu_model() or "unknown processor"}
    models |= {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        models["mps"] = "Metal"
    for device, model in models.items():
        supports = {entry.name: support(device, entry.name) for entry in FORMATS}
        formats = [{"name": name, "support": s.kind, "reason": s.reason} for name, s in supports.items()]
        yield {"device": device, "model": model, "formats": formats}


def _entry(name: str, title: str, explanation: str, facts: str, source: str) -> dict[str, Any]:
    return {"name": name, "title": title, "explanation": explanation, "facts": facts, "source": source}


def _print_entry(entry: dict[str, Any], console: Any) -> None:
    console.print(Text.assemble((entry["name"], "bold cyan"), f"  {entry['title']}" if entry["title"] else ""))
    source = (("source: ", "dim"), (entry["source"], "dim"))
    body = Text.assemble(entry["explanation"], "\n", (entry["facts"], "dim"), "\n", *source)
    console.print(Padding(body, (0, 0, 1, 2)))


def _print_device(entry: dict[str, Any], console: Any) -> None:
    console.print(Text.assemble((entry["device"], "bold cyan"), f"  {entry['model']}"))
    table = Table.grid(padding=(0, 2))
    for row in entry["formats"]:
        table.add_row(row["name"], row["support"], Text(row["reason"], style="dim"))
    console.print(Padding(table, (0, 0, 1, 2)))
