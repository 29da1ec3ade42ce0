"""What ``precision-eval list`` prints: each registry, explained, with its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def list_fixes(console: Console) -> None:
    """Print the fixes: what each changes, and where it was proposed."""
    from precision_eval.fixes.catalog import FIXES

    for fix in FIXES:
        facts = f"storage {fix.storage}, agreement {fix.agreement}, {' and '.join(fix.modes)}".replace("_", " ")
        _entry(console, fix.id, fix.title, fix.explanation, facts, fix.source)


def list_cases(console: Console) -> None:
    """Print the cases: what each is, at which sizes, and where it comes from."""
    from precision_eval.cases.systems import all_cases

    for entry in all_cases():
        others = [size for size in entry.sizes if size not in entry.default_sizes]
        also = f" (also {', '.join(others)})" if others else ""
        facts = f"sizes {', '.join(entry.default_sizes)}{also}; measures {', '.join(entry.measures)}"
        if entry.upstream:
            facts += f"; upstream: {entry.upstream}"
        _entry(console, entry.id, entry.title, entry.explanation, facts, entry.source)


def list_measures(console: Console) -> None:
    """Print the measures: what each finds out, and where its method is from."""
    from precision_eval.measure.registry import MEASURES

    for measure in MEASURES:
        facts = "runs alone" if measure.timed else "runs beside others"
        _entry(console, measure.name, "", measure.title, facts, measure.source)


def list_devices(console: Console) -> None:
    """Print the devices that are there, and which formats they compute natively or only emulate."""
    import torch

    from precision_eval.core.environment import cpu_model
    from precision_eval.core.formats import FORMATS, support

    models = {"cpu": cpu_model() or "unknown processor"}
    models |= {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        models["mps"] = "Metal"
    for device, model in models.items():
        console.print(Text.assemble((device, "bold cyan"), f"  {model}"))
        table = Table.grid(padding=(0, 2))
        for entry in FORMATS:
            found = support(device, entry.name)
            table.add_row(entry.name, found.kind, Text(found.reason, style="dim"))
        console.print(Padding(table, (0, 0, 1, 2)))


LISTINGS: Mapping[str, Callable[[Console], None]] = {
    "fixes": list_fixes,
    "cases": list_cases,
    "devices": list_devices,
    "measures": list_measures,
}


def _entry(console: Console, name: str, title: str, explanation: str, facts: str, source: str) -> None:
    """Print one entry: its name and title, then what it is, indented."""
    console.print(Text.assemble((name, "bold cyan"), f"  {title}" if title else ""))
    body = Text.assemble(explanation, "\n", (facts, "dim"), "\n", ("source: ", "dim"), (source, "dim"))
    console.print(Padding(body, (0, 0, 1, 2)))
