"""Hooks of MkDocs: the README as first page, pages that the pages link to, and reference pages made from the code.

A page of docs/ links to other files of the repository as a reader of the repository needs it (``../results/x.png``); on
the site those files lie below ``docs/``, so the leading ``../`` goes. A file that the site does not hold stays a name
without a link.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]\[]*)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_SHOWN = (".md", ".png", ".flac")  # of the files outside docs/, those that become part of the site


def on_files(files: Any, config: Any) -> Any:
    """Add what docs/ does not hold."""
    from mkdocs.structure.files import File

    def add(place: str, **source: Any) -> None:
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, **source))

    for place, name in (("index.md", "README.md"), ("CHANGELOG.md", "CHANGELOG.md")):
        add(place, content=for_site((ROOT / name).read_text(encoding="utf-8"), name))
    for place, text in reference_pages().items():
        add(place, content=text)
    waiting = [path for page in _pages() for path in linked(page)]
    while waiting:
        path = waiting.pop()
        place = path.relative_to(ROOT).as_posix()
        if files.get_file_from_path(place) is not None or path.is_relative_to(ROOT / "docs"):
            continue
        if path.suffix == ".md":
            add(place, content=for_site(path.read_text(encoding="utf-8"), place))
            waiting += linked(path)
        else:
            add(place, abs_src_path=str(path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page of docs/ at the site's files; generated ones do already."""
    place = f"docs/{page.file.src_uri}"
    return for_site(markdown, place) if (ROOT / place).is_file() else markdown


def for_site(text: str, place: str) -> str:
    """Rewrite the links of a file of the repository for the site."""
    folder = (ROOT / place).parent
    depth = len(Path(_site_place(ROOT / place)).parent.parts)

    def rewritten(link: re.Match[str]) -> str:
        words, name, anchor = link.groups(default="")
        target = (folder / name).resolve()
        if not _is_on_site(target):
            return words if target.exists() else link[0]
        return f"[{words}]({'../' * depth}{_site_place(target)}{anchor})"

    return _LINK.sub(rewritten, text)


def linked(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to and that go onto the site."""
    for link in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / link[2]).resolve()
        if _is_on_site(target):
            yield target


def _pages() -> Iterable[Path]:
    return (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))


def _is_on_site(path: Path) -> bool:
    return path.suffix in _SHOWN and path.is_file() and path.is_relative_to(ROOT)


def _site_place(path: Path) -> str:
    if path == ROOT / "README.md":
        return "index.md"
    return path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT).as_posix()


def reference_pages() -> dict[str, str]:
    """Return the pages that the code fills: {place: Markdown}."""
    import audio_metrics
    import precision_eval

    return {
        "reference/commands.md": f"# Commands\n\n{_commands()}",
        "reference/registries.md": f"# Cases, fixes and measures\n\n{_registries()}",
        "reference/python.md": _python(precision_eval, "Python"),
        "reference/audio.md": f"{_python(audio_metrics, 'Sound metrics')}\n{_metrics()}",
    }


def _python(package: ModuleType, title: str) -> str:
    """Every public class and function of a package, where it is written."""
    public = ((name, getattr(package, name)) for name in sorted(package.__all__, key=str.lower))
    written = [f"::: {thing.__module__}.{name}\n" for name, thing in public if isinstance(thing, type | FunctionType)]
    return f"# {title}\n\nImported from `{package.__name__}`.\n\n" + "\n".join(written)


def _commands() -> str:
    """Every command's help as a page."""
    import typer
    from typer.cli import get_docs_for_click

    from precision_eval.cli.application import EXIT_CODES_HELP
    from precision_eval.cli.commands import app

    command = typer.main.get_command(app)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="precision-eval")
    return f"{EXIT_CODES_HELP}\n{text.partition(chr(10))[2]}"


def _registries() -> str:
    from precision_eval.cases.systems import CASES
    from precision_eval.fixes.catalog import ALL_FIXES
    from precision_eval.measure.registry import MEASURES

    cases = [(f"`{case.id}`", ", ".join(case.sizes), case.explanation) for case in CASES]
    fixes = [(f"`{fix.id}`", ", ".join(fix.modes), fix.explanation) for fix in ALL_FIXES]
    measures = [(f"`{measure.name}`", ", ".join(measure.options), measure.title) for measure in MEASURES]
    tables = {
        "Cases": _table("case", "sizes", cases),
        "Fixes": _table("fix", "modes", fixes),
        "Measures": _table("measure", "depends on", measures),
    }
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items()) + "\n"


def _metrics() -> str:
    """Every metric of sound, with its unit, its formula and where it comes from."""
    from audio_metrics.catalog import METRICS
    from precision_eval.core.table import make_table, to_markdown

    rows = [(metric.name, metric.unit, metric.formula, metric.source) for metric in METRICS]
    return f"## Every metric\n\n{to_markdown(make_table(('metric', 'unit', 'formula', 'source'), rows))}\n"


def _table(first: str, second: str, rows: Iterable[tuple[str, str, str]]) -> str:
    head = (f"| {first} | {second} | what it is |", "|---|---|---|")
    return "\n".join((*head, *(f"| {' | '.join(row)} |" for row in rows)))
