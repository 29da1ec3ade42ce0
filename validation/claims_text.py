"""What ``claims`` prints: each claim, its target and what was found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from validation.claims import Claim, all_claims


def show_claims(*, minutes: float, budget_s: float, out: Path | None) -> None:
    """Measure the claims one after the other and print them; a missed one is marked as missed."""
    from precision_eval.core.environment import collect

    console = Console()
    found: list[Claim] = []
    with console.status("measuring"):
        for measure in all_claims(minutes=minutes, budget_s=budget_s):
            for claim in measure():
                found.append(claim)
                console.log(f"{claim.claim}: {claim.found}", highlight=False)
    table = Table(title="claims, on this machine")
    for column in ("claim", "target", "found", "met"):
        table.add_column(column, overflow="fold")
    for claim in found:
        table.add_row(claim.claim, claim.target, claim.found, "yes" if claim.met else "[bold red]no[/bold red]")
    console.print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        content = {"claims": [asdict(claim) for claim in found], "environment": collect("cpu")}
        out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
