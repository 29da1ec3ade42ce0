"""asv's page with the torch version as x axis: results of one commit under many torch versions, published offline.

Conventions: the folder that is written is asv's own: ``asv.conf.json``, ``results/``, the throw-away repository
``releases/`` and ``html/``. So ``asv compare v2.13.0 v2.15.0`` and ``asv preview`` work in it as they are. asv runs as
a program of this Python, never inside this process. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.results.asv import read_results
from tools.torch_versions.publish_offline import PageError, make_offline
from tools.torch_versions.publish_rekey import BRANCH, REPOSITORY, RESULTS, Choice, choose, rekey

HTML = "html"
CONFIGURATION = "asv.conf.json"
PROJECT = "precision-eval by torch version"
UPSTREAM_TREE = "https://github.com/pytorch/pytorch/tree/"
"""A point's link, ending in its tag; asv also makes links that compare two tags from it."""
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Published:
    """A site."""

    html: Path
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()


def publish(results: Path, out: Path, *, dates: Mapping[str, date], choice: Choice | None = None) -> Published:
    """Publish results over torch versions."""
    _refuse_other(out)
    if importlib.util.find_spec("asv") is None:
        raise UnsupportedError(f"asv is not installed for {sys.executable}; run `python -m pip install 'asv>=0.6.4'`")
    sets = choose(read_results(results), choice or Choice())
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        folder = Path(name) / out.name
        folder.mkdir()
        rekeyed = rekey(sets, folder, dates=dates)
        _write_configuration(folder / CONFIGURATION, sets[0].python)
        _run_asv(folder)
        _name_commits(folder / HTML, {commit: f"v{version}" for version, commit in rekeyed.commits.items()})
        scripts = make_offline(folder / HTML)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return Published(html=out / HTML, versions=tuple(rekeyed.commits), notes=rekeyed.notes, scripts=scripts)


def copy_offline(html: Path, out: Path | None) -> Published:
    """Make a page that ``asv publish`` wrote work offline, in place or as a copy."""
    if out is None:
        return Published(html=html, scripts=make_offline(html))
    if not (html / "index.html").is_file():
        raise PageError(f"{html} holds no index.html; give the folder that `asv publish` wrote, such as .asv/html")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ParameterError(f"--out {out} holds something; give a new folder, or leave --out away to rewrite {html}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        folder = Path(name) / out.name
        shutil.copytree(html, folder)
        scripts = make_offline(folder)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return Published(html=out, scripts=scripts)


def _refuse_other(out: Path) -> None:
    """Raise where replacing `out` would lose something that is not ours."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ParameterError(f"--out {out} is a file; give a folder")
    if any(out.iterdir()) and not _is_ours(out / CONFIGURATION):
        raise ParameterError(f"--out {out} holds something else than an earlier site; give a new folder")


def _is_ours(configuration: Path) -> bool:
    try:
        return bool(json.loads(configuration.read_text(encoding="utf-8"))["project"] == PROJECT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_configuration(path: Path, python: str) -> None:
    """Write what ``asv publish``, ``compare`` and ``preview`` need; nothing can be run from it."""
    content = {
        "version": 1,
        "project": PROJECT,
        "project_url": "https://pytorch.org/",
        "repo": REPOSITORY,
        "branches": [BRANCH],
        "dvcs": "git",
        "environment_type": "virtualenv",
        "pythons": [python],
        "matrix": {},
        "show_commit_url": UPSTREAM_TREE,
        "results_dir": RESULTS,
        "html_dir": HTML,
    }
    path.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def _run_asv(folder: Path) -> None:
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--config", CONFIGURATION]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PageError(
            f"asv publish did not end in {TIMEOUT_S:g} s; give it fewer results with --environment"
        ) from error
    if done.returncode or not (folder / HTML / "index.json").is_file():
        said = " ".join((done.stdout + done.stderr).split())[-600:]
        raise PageError(f"asv publish ended with {done.returncode}: {said}; check the results with `asv show` first")


def _name_commits(html: Path, tags: Mapping[str, str]) -> None:
    """Show tags where the page would show hashes of the throw-away repository, which nobody knows."""
    path = html / "index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["revision_to_hash"] = {
        revision: tags.get(commit, commit) for revision, commit in index["revision_to_hash"].items()
    }
    index["hash_length"] = max([int(index["hash_length"]), *(len(tag) for tag in tags.values())])
    path.write_text(json.dumps(index), encoding="utf-8")
    for feed in html.glob("*.xml"):
        text = feed.read_text(encoding="utf-8")
        for commit, tag in tags.items():
            text = text.replace(commit, tag).replace(commit[:8], tag)
        feed.write_text(text, encoding="utf-8")


DEFAULT_OUT = Path("site")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    results: Path | None = None
    html: Path | None = None
    out: Path | None = None
    machine: str | None = None
    commit: str | None = None
    build: str | None = None
    environment: str | None = None


def asv_page_command(request: Request) -> None:
    """Write the page and say how to open it."""
    from precision_eval.studies.versions.upstream import load_upstream
    from tools.torch_versions.publish_rekey import Choice

    chosen = {name: getattr(request, name) for name in ("machine", "commit", "build", "environment")}
    if (request.results is None) == (request.html is None):
        raise ParameterError("give either --results (asv's results_dir) or --html (what `asv publish` wrote)")
    console = Console()
    if request.html is not None:
        given = [f"--{name}" for name, value in chosen.items() if value is not None]
        if given:
            raise ParameterError(f"{', '.join(given)} chooses among results; give --results, or leave it away")
        published = copy_offline(request.html, request.out)
    else:
        assert request.results is not None
        releases = load_upstream().releases
        dates = {version: one.date for version, one in releases.items() if one.date is not None}
        published = publish(request.results, request.out or DEFAULT_OUT, dates=dates, choice=Choice(**chosen))
        console.print(f"x axis: torch {', '.join(published.versions)}", highlight=False)
    for note in published.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)
    scripts = f"{len(published.scripts)} scripts and style sheets put beside it" if published.scripts else "as it was"
    console.print(f"{published.html}: loads nothing from another host ({scripts})", highlight=False, markup=False)
    console.print(f"open it: python -m http.server --directory {published.html}", highlight=False, markup=False)
    if len(published.versions) > 1:
        ends = f"v{published.versions[0]} v{published.versions[-1]}"
        console.print(
            f"compare: cd {published.html.parent} && asv compare {ends}", highlight=False, markup=False, soft_wrap=True
        )
