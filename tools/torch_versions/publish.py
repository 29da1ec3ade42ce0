"""asv's page with the torch version as x axis: results of one commit under many torch versions, published offline.

asv draws a metric against commits, and compares commits. So a throw-away git repository gets one empty, dated and
tagged commit per torch release (``v2.13.0``, at the day of the release), and each result file is given to the commit of
its torch version, in one environment that all of them share. Only keys are rewritten; values, samples and intervals
stay as asv stored them. The repository depends on versions and dates alone, so its commits have the same hashes
everywhere. The folder that is written is asv's own: ``asv.conf.json``, ``results/``, the repository ``releases/`` and
``html/``, so ``asv compare v2.13.0 v2.15.0`` and ``asv preview`` work in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from packaging.version import Version
from rich.console import Console
from typer import Option

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError, UnsupportedError
from precision_eval.core.files import read_json
from precision_eval.history.upstream import load_upstream
from precision_eval.results.asv import ResultSet, check_one_machine, read_results
from tools.torch_versions.publish_offline import PageError, make_offline

PROJECT = "precision-eval by torch version"
CONFIGURATION: dict[str, Any] = {
    **{"version": 1, "project": PROJECT, "project_url": "https://pytorch.org/", "repo": "releases", "dvcs": "git"},
    **{"branches": ["main"], "environment_type": "virtualenv", "matrix": {}, "results_dir": "results"},
    # a point's link, ending in its tag; asv also makes links that compare two tags from it
    **{"show_commit_url": "https://github.com/pytorch/pytorch/tree/", "html_dir": "html"},
}
"""What ``asv publish``, ``compare`` and ``preview`` need; nothing can be run from it."""
NAME = "asv.conf.json"
TIMEOUT_S = 1800.0
NEWEST = "newest"
_BUILDS = {True: "cuda", False: "cpu", None: "unknown"}


def choose(
    sets: Sequence[ResultSet],
    *,
    machine: str | None = None,
    commit: str | None = None,
    build: str | None = None,
    environment: str | None = None,
) -> tuple[ResultSet, ...]:
    """Return one result set per torch version, by version; a mix of machines, builds, Pythons or commits is refused.

    `commit` is the first characters, or ``"newest"`` of each version; `build` is ``"cpu"`` or ``"cuda"``; `environment`
    is a pattern. None takes what is there.
    """
    if build not in (None, "cpu", "cuda"):
        raise ParameterError(f"build '{build}' is none; expected cpu or cuda")
    left = [
        one
        for one in sorted(sets, key=lambda one: (Version(one.torch_version), one.date_ms))
        if machine in (None, one.machine)
        and (commit in (None, NEWEST) or one.commit.startswith(str(commit)))
        and build in (None, _BUILDS[one.cuda_build])
        and (environment is None or fnmatchcase(one.environment, environment))
    ]
    if not left:
        found = ", ".join(sorted({f"{one.machine}: {one.commit[:8]} {one.environment}" for one in sets})) or "nothing"
        raise ParameterError(f"no result is left of {found}; loosen --machine, --commit, --build or --environment")
    check_one_machine(left)
    known = [one for one in left if one.cuda_build is not None]
    _refuse_mix("builds of torch", known, lambda one: _BUILDS[one.cuda_build], "--build cpu")
    _refuse_mix("Pythons", left, lambda one: one.python, "--environment '*py3.11*'")
    if commit == NEWEST:
        newest = {one.torch_version: one.commit for one in left}
        left = [one for one in left if one.commit == newest[one.torch_version]]
    elif commit is None:
        latest = max(left, key=lambda one: one.date_ms).commit[:8]
        remedy = f"--commit {latest}, or --commit {NEWEST} for each version's newest"
        _refuse_mix("commits", left, lambda one: one.commit[:8], remedy)
    for version, group in groupby(left, key=lambda one: one.torch_version):
        names = [f"{one.commit[:8]}-{one.environment}" for one in group]
        if len(names) > 1:
            raise ParameterError(
                f"torch {version} has {len(names)} results: {', '.join(names)}; "
                "one is needed: name it with --environment GLOB, --commit or --build, or remove the other files"
            )
    return tuple(left)


def _refuse_mix(what: str, sets: Sequence[ResultSet], kind: Callable[[ResultSet], str], remedy: str) -> None:
    kinds = {kind(one): one for one in sets}
    if len(kinds) > 1:
        examples = ", ".join(f"{name} ({one.environment})" for name, one in sorted(kinds.items()))
        raise ParameterError(f"the results are of {len(kinds)} {what}: {examples}; take one: {remedy}")


def rekey(
    sets: Sequence[ResultSet], folder: Path, *, dates: Mapping[str, date]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write result files and repository, one commit per torch version; return the commits by version, and notes."""
    undated = [one.torch_version for one in sets if one.torch_version not in dates]
    if undated:
        raise ParameterError(
            f"no release date of torch {', '.join(undated)} is known; add it to precision_eval/history/"
            "upstream.json (the day of the release on pypi.org), or take other results with --environment"
        )
    benchmarks_path = sets[0].source.parent.parent / "benchmarks.json"
    if not benchmarks_path.is_file():
        raise RecordError(
            f"{benchmarks_path} is missing, and asv publishes nothing without it; run `asv run --bench just-discover` "
            "there, or take it from the folder that the results were copied from"
        )
    # all of them were read before, so they are whole; asv writes NaN where a combination does not apply
    *contents, benchmarks = (json.loads(path.read_text()) for path in (*(one.source for one in sets), benchmarks_path))
    days = {one.torch_version: datetime.combine(dates[one.torch_version], time(12), tzinfo=UTC) for one in sets}
    commits = _make_repository(folder / CONFIGURATION["repo"], days)
    environment = f"torch-versions-py{sets[0].python}"
    same, notes = _common(contents)
    home = folder / CONFIGURATION["results_dir"] / sets[0].machine
    home.mkdir(parents=True)
    for one, content in zip(sets, contents, strict=True):
        commit, date_ms = commits[one.torch_version], int(days[one.torch_version].timestamp() * 1000)
        content |= same | {"commit_hash": commit, "env_name": environment, "date": date_ms}
        (home / f"{commit[:8]}-{environment}.json").write_text(json.dumps(content), encoding="utf-8")
    shutil.copy(sets[0].source.parent / "machine.json", home)
    shutil.copy(benchmarks_path, home.parent)
    return commits, (*notes, *_not_drawn(contents, benchmarks))


def _common(contents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return params, requirements and variables that all files share; what differs would split the graphs."""
    same: dict[str, Any] = {"params": {}, "requirements": {}, "env_vars": {}}
    notes: dict[str, None] = {}
    for field, shared in same.items():
        holders = [content.get(field) or {} for content in contents]
        for name in sorted({name for holder in holders for name in holder} - {"torch", "pip+torch"}):
            values = [holder.get(name) for holder in holders]
            if all(value == values[0] for value in values):
                shared[name] = values[0]
            else:
                found = ", ".join(sorted({str(value) for value in values}))
                notes[f"{name} is not the same in all results ({found}) and is no axis of the graphs"] = None
    return same, list(notes)


def _not_drawn(contents: Sequence[Mapping[str, Any]], benchmarks: Mapping[str, Any]) -> list[str]:
    """Say which benchmarks asv will leave out: those that ``benchmarks.json`` defines otherwise or lacks."""
    other: dict[str, int] = {}
    for content in contents:
        at = content["result_columns"].index("version")
        for name, row in content["results"].items():
            current = benchmarks.get(name, {}).get("version")
            other[name] = other.get(name, 0) + (current is not None and row[at : at + 1] not in ([], [None], [current]))
    lacking = sorted(other.keys() - benchmarks.keys())
    notes = [
        f"{name}: {count} of {len(contents)} versions measured another definition of it and are not drawn"
        for name, count in sorted(other.items())
        if count
    ]
    return notes + ([f"not in benchmarks.json and not drawn: {', '.join(lacking)}"] if lacking else [])


def _make_repository(path: Path, days: Mapping[str, datetime]) -> dict[str, str]:
    """Make one empty commit and one tag per version; return the hashes."""
    path.mkdir(parents=True)
    _git(path, "init", "--quiet", "--initial-branch=main")
    commits = {}
    for version, day in days.items():
        dated = {"GIT_AUTHOR_DATE": day.isoformat(), "GIT_COMMITTER_DATE": day.isoformat()}
        _git(path, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", f"torch {version}", **dated)
        _git(path, "tag", f"v{version}")
        commits[version] = _git(path, "rev-parse", "HEAD")
    return commits


def _git(path: Path, *words: str, **variables: str) -> str:
    """Run git in a repository, by no configuration but its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | variables
    environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    environ |= {"GIT_CEILING_DIRECTORIES": str(path.parent)}
    environ |= {
        f"GIT_{role}_{what}": "precision-eval" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    try:
        done = subprocess.run(["git", *words], cwd=path, env=environ, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnsupportedError("git is not installed, and asv reads versions from a git repository") from error
    if done.returncode:
        raise UnsupportedError(f"git {words[0]} failed in {path}: {done.stderr.strip()}; git 2.28 or newer is needed")
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Published:
    """A site."""

    html: Path
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()


def publish(results: Path, out: Path, *, dates: Mapping[str, date], **chosen: str | None) -> Published:
    """Publish results over torch versions; `chosen` as :func:`choose` takes it."""
    if out.exists() and not out.is_dir():
        raise ParameterError(f"--out {out} is a file; give a folder")
    if out.exists() and any(out.iterdir()) and not _is_ours(out / NAME):
        raise ParameterError(f"--out {out} holds something else than an earlier site; give a new folder")
    if importlib.util.find_spec("asv") is None:
        raise UnsupportedError(f"asv is not installed for {sys.executable}; run `python -m pip install 'asv>=0.6.4'`")
    sets = choose(read_results(results), **chosen)

    def make(folder: Path) -> Published:
        folder.mkdir()
        commits, notes = rekey(sets, folder, dates=dates)
        (folder / NAME).write_text(json.dumps({**CONFIGURATION, "pythons": [sets[0].python]}, indent=4) + "\n")
        _run_asv(folder)
        html = folder / CONFIGURATION["html_dir"]
        _name_commits(html, {commit: f"v{version}" for version, commit in commits.items()})
        return Published(html=out / html.name, versions=tuple(commits), notes=notes, scripts=make_offline(html))

    return _made_beside(out, make)


def _is_ours(configuration: Path) -> bool:
    try:
        return bool(read_json(configuration)["project"] == PROJECT)
    except (PrecisionEvalError, KeyError, TypeError):
        return False


def copy_offline(html: Path, out: Path | None) -> Published:
    """Make a page that ``asv publish`` wrote work offline, in place or as a copy."""
    if out is None:
        return Published(html=html, scripts=make_offline(html))
    if not (html / "index.html").is_file():
        raise PageError(f"{html} holds no index.html; give the folder that `asv publish` wrote, such as .asv/html")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ParameterError(f"--out {out} holds something; give a new folder, or leave --out away to rewrite {html}")

    def make(folder: Path) -> Published:
        shutil.copytree(html, folder)
        return Published(html=out, scripts=make_offline(folder))

    return _made_beside(out, make)


def _made_beside(out: Path, make: Callable[[Path], Published]) -> Published:
    """Let a folder be made next to its place, so that a failure leaves what is there, then put it in its place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        folder = Path(name) / out.name
        published = make(folder)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return published


def _run_asv(folder: Path) -> None:
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--config", NAME]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        why = f"asv publish did not end in {TIMEOUT_S:g} s; give it fewer results with --environment"
        raise PageError(why) from error
    if done.returncode or not (folder / CONFIGURATION["html_dir"] / "index.json").is_file():
        said = " ".join((done.stdout + done.stderr).split())[-600:]
        raise PageError(f"asv publish ended with {done.returncode}: {said}; check the results with `asv show` first")


def _name_commits(html: Path, tags: Mapping[str, str]) -> None:
    """Show tags where the page would show hashes of the throw-away repository, which nobody knows."""
    path = html / "index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    hashes = index["revision_to_hash"].items()
    index["revision_to_hash"] = {revision: tags.get(commit, commit) for revision, commit in hashes}
    index["hash_length"] = max([int(index["hash_length"]), *(len(tag) for tag in tags.values())])
    path.write_text(json.dumps(index), encoding="utf-8")
    for feed in html.glob("*.xml"):
        text = feed.read_text(encoding="utf-8")
        for commit, tag in tags.items():
            text = text.replace(commit, tag).replace(commit[:8], tag)
        feed.write_text(text, encoding="utf-8")


def asv_page_command(
    results: Annotated[
        Path | None, Option(metavar="DIR", help="asv's results_dir: one commit, many torch versions.")
    ] = None,
    html: Annotated[Path | None, Option(metavar="DIR", help="What `asv publish` wrote: its html_dir.")] = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Where to; [dim]default: site for --results, in place for --html[/dim]")
    ] = None,
    machine: Annotated[str | None, Option(help="Take this machine's results.")] = None,
    commit: Annotated[
        str | None, Option(help="Take this commit's; [cyan]newest[/cyan]: the newest of each version.")
    ] = None,
    build: Annotated[str | None, Option(help="Take builds of this kind: cpu or cuda.")] = None,
    environment: Annotated[str | None, Option(metavar="GLOB", help="Take these environments of asv.")] = None,
) -> None:
    """Write the page and say how to open it."""
    chosen = {"machine": machine, "commit": commit, "build": build, "environment": environment}
    if (results is None) == (html is None):
        raise ParameterError("give either --results (asv's results_dir) or --html (what `asv publish` wrote)")
    if html is not None:
        if given := [f"--{name}" for name, value in chosen.items() if value is not None]:
            raise ParameterError(f"{', '.join(given)} chooses among results; give --results, or leave it away")
        published = copy_offline(html, out)
    else:
        assert results is not None
        dates = {version: day for version, day in load_upstream().releases.items() if day is not None}
        published = publish(results, out or Path("site"), dates=dates, **chosen)
    console = Console(highlight=False, markup=False)
    for note in published.notes:
        console.print(f"note: {note}", style="yellow")
    scripts = f"{len(published.scripts)} scripts and style sheets put beside it" if published.scripts else "as it was"
    console.print(f"{published.html}: loads nothing from another host ({scripts})")
    console.print(f"open it: python -m http.server --directory {published.html}")
    if published.versions:
        console.print(f"x axis: torch {', '.join(published.versions)}")
        ends = f"v{published.versions[0]} v{published.versions[-1]}"
        console.print(f"compare: cd {published.html.parent} && asv compare {ends}", soft_wrap=True)
