"""asv's own program on re-keyed results: the page, `asv compare`, and what is refused."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_eval.core.errors import ParameterError, PrecisionEvalError
from precision_eval.results.asv import read_results
from tools.torch_versions.publish import (
    NAME,
    PROJECT,
    asv_page_command,
    choose,
    copy_offline,
    publish,
    rekey,
)
from tools.torch_versions.publish_offline import PageError, remote_urls

DATES = {"2.8.0": date(2025, 8, 6), "2.9.0": date(2025, 10, 15), "2.10.0": date(2026, 1, 21)}
RATIO = "eager.metavoice_decode.track_latency_ratio"
DRIFT = "eager.metavoice_decode.track_drift"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def values(version):
    half = [0.9, 0.91, 0.92] if version == "2.10.0" else [26.0, 27.0, 28.0]
    return {
        RATIO: {("query_to_half", "tiny"): half, ("kv_to_query", "tiny"): [1.3, 1.4, 1.5]},
        DRIFT: {
            ("query_to_half", "tiny"): 3e-4,
            ("as_shipped", "tiny"): None,
            ("dynamo_fallback", "tiny"): float("nan"),
        },
    }


@pytest.fixture
def folder(tmp_path, write, run_type):
    """Results of three torch versions, written in another order than theirs."""
    root = tmp_path / "results"
    root.mkdir()
    runs = [run_type(torch=version, values=values(version)) for version in ("2.10.0", "2.8.0", "2.9.0")]
    return write(root, runs)


@pytest.fixture
def add(folder, write, run_type):
    """Add one result file to the folder."""
    return lambda torch, **more: write(folder, [run_type(torch=torch, values=values(torch), **more)])


def chosen(folder, **choice):
    return choose(read_results(folder), **choice)


class TestChoose:
    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"torch": "2.9.0", "python": "3.12"}, r"2 Pythons: 3.11 .*3.12.*--environment"),
            ({"torch": "2.11.0", "cuda": True}, r"2 builds of torch: cpu .*cuda .*--build cpu"),
            ({"torch": "2.11.0", "commit": "b" * 40}, r"2 commits: aaaaaaaa .*bbbbbbbb.*--commit"),
            ({"torch": "2.9.0", "machine": "other"}, r"2 machines \(lab, other\).*--machine"),
        ],
    )
    def test_a_mix_is_refused_and_the_option_named(self, folder, add, more, message):
        add(**more)
        with pytest.raises(ParameterError, match=message):
            chosen(folder)

    def test_two_results_for_one_version_are_refused(self, folder, add):
        add("2.9.0")
        path = next((folder / "lab").glob("*2.9.0.json"))
        content = json.loads(path.read_text())
        content["env_name"] += "-again"
        (path.parent / f"aaaaaaaa-{content['env_name']}.json").write_text(json.dumps(content))
        with pytest.raises(ParameterError, match=r"torch 2\.9\.0 has 2 results: .*-again.*--environment"):
            chosen(folder)
        assert len(chosen(folder, environment="*[0-9]")) == 3

    def test_options_decide(self, folder, add):
        add("2.9.0", commit="b" * 40, date_ms=1_790_000_000_000)
        assert [one.commit[0] for one in chosen(folder, commit="aaaa")] == ["a", "a", "a"]
        assert [one.commit[0] for one in chosen(folder, commit="newest")] == ["a", "b", "a"]
        add("2.10.0", python="3.12", commit="c" * 40)
        assert [one.python for one in chosen(folder, environment="*py3.12*")] == ["3.12"]


class TestRekey:
    def test_values_and_samples_stay_and_keys_change(self, folder, tmp_path):
        before = {one.torch_version: one for one in read_results(folder)}
        commits, _ = rekey(chosen(folder), tmp_path / "new", dates=DATES)
        assert list(commits) == ["2.8.0", "2.9.0", "2.10.0"]
        files = [json.loads(p.read_text()) for p in (tmp_path / "new/results/lab").glob("[!m]*.json")]
        assert {one["commit_hash"] for one in files} == set(commits.values())
        assert {one["env_name"] for one in files} == {"torch-versions-py3.11"}
        for content in files:
            version = next(name for name, commit in commits.items() if commit == content["commit_hash"])
            source = json.loads(before[version].source.read_text())
            assert content["results"] == source["results"] or str(content["results"]) == str(source["results"])
            day = DATES[version]
            assert content["date"] == (day - date(1970, 1, 1)).days * 86_400_000 + 43_200_000
            assert "torch" not in content["params"]
            assert content["params"]["cpu"] == "Testium 1"

    def test_the_repository_is_the_same_everywhere(self, folder, tmp_path, monkeypatch):
        first, _ = rekey(chosen(folder), tmp_path / "a", dates=DATES)
        monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        assert rekey(chosen(folder), tmp_path / "b", dates=DATES)[0] == first
        monkeypatch.delenv("GIT_DIR")
        command = ["git", "-C", str(tmp_path / "a/releases"), "log", "--reverse", "--format=%H %cs %D"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [line.split()[:2] for line in log] == [[first[v], day.isoformat()] for v, day in DATES.items()]
        assert all(f"tag: v{version}" in line for version, line in zip(DATES, log, strict=True))

    def test_another_definition_is_said(self, folder, tmp_path, write, run_type):
        write(folder, [run_type(torch="2.9.0", values=values("2.9.0"), versions={DRIFT: "older"})])
        benchmarks = json.loads((folder / "benchmarks.json").read_text())
        benchmarks[DRIFT]["version"] = "v1"
        (folder / "benchmarks.json").write_text(json.dumps(benchmarks))
        _, notes = rekey(chosen(folder), tmp_path / "new", dates=DATES)
        build = "build.torch_build.track_is_cuda_build, build.torch_build.track_torch_version"
        assert notes == (
            f"{DRIFT}: 1 of 3 versions measured another definition of it and are not drawn",
            f"not in benchmarks.json and not drawn: {build}",  # as this folder was made
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """One site for the tests that only read it."""
    import made_versions as made

    root = tmp_path_factory.mktemp("publish")
    (root / "results").mkdir()
    made.write_runs(root / "results", [made.Run(torch=version, values=values(version)) for version in DATES])
    done = publish(root / "results", root / "site", dates=DATES)
    return SimpleNamespace(done=done, folder=root / "site", results=root / "results")


class TestPublish:
    def test_the_x_axis_is_the_torch_version(self, site):
        index = json.loads((site.done.html / "index.json").read_text())
        assert list(index["revision_to_hash"].values()) == ["v2.8.0", "v2.9.0", "v2.10.0"]
        assert index["tags"] == {"v2.8.0": 0, "v2.9.0": 1, "v2.10.0": 2}
        assert len(index["graph_param_list"]) == 1
        (graph,) = site.done.html.glob(f"graphs/arch-*/**/{RATIO}.json")
        points = dict(json.loads(graph.read_text()))
        fixes = [fix.strip("'") for fix in index["benchmarks"][RATIO]["params"][0]]
        half = fixes.index("query_to_half")
        assert [points[revision][half] for revision in (0, 1, 2)] == [27.0, 27.0, 0.91]

    def test_it_loads_nothing_from_another_host(self, site):
        for page in site.done.html.rglob("*.html"):
            assert remote_urls(page.read_text()) == []
        assert (site.done.html / "vendor/jquery.min.js").stat().st_size > 50_000
        assert (site.done.html / "vendor/licences/jquery.txt").is_file()

    def test_asv_compares_two_versions_in_the_folder(self, site):
        command = [sys.executable, "-m", "asv", "compare", "v2.8.0", "v2.10.0"]
        text = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, check=True).stdout
        line = next(line for line in text.splitlines() if "track_latency_ratio('query_to_half', 'tiny')" in line)
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[1] == "-"
        assert cells[2].startswith("27.0")
        assert cells[3].startswith("0.91")
        assert cells[4] == "0.03"

    def test_an_earlier_site_is_replaced_and_nothing_else(self, site, tmp_path):
        out = tmp_path / "site"
        out.mkdir()
        (out / NAME).write_text(json.dumps({"project": PROJECT}))
        (out / "stale").touch()
        publish(site.results, out, dates=DATES)
        assert names(out) == ["asv.conf.json", "html", "releases", "results"]
        (other := tmp_path / "other").mkdir()
        (other / "thesis.tex").touch()
        with pytest.raises(ParameterError, match="holds something else than an earlier site"):
            publish(site.results, other, dates=DATES)
        with pytest.raises(ParameterError, match="is a file"):
            publish(site.results, other / "thesis.tex", dates=DATES)
        assert names(other) == ["thesis.tex"]

    def test_a_failure_leaves_the_earlier_site(self, site, tmp_path):
        out = tmp_path / "site"
        out.mkdir()
        (out / NAME).write_text(json.dumps({"project": PROJECT}))
        with pytest.raises(ParameterError, match="no release date"):
            publish(site.results, out, dates={})
        assert names(out) == [NAME]
        assert names(tmp_path) == ["site"]


class TestCopyOffline:
    def test_a_copy_or_in_place(self, site, tmp_path):
        plain = tmp_path / "html"
        plain.mkdir()
        page = '<script src="https://code.jquery.com/jquery-3.3.1.min.js" onerror="oh()"></script>'
        (plain / "index.html").write_text(page)
        copy = copy_offline(plain, tmp_path / "copy")
        assert copy.scripts == ("jquery.min.js",)
        assert (plain / "index.html").read_text() == page
        assert copy_offline(plain, None).html == plain
        expected = '<script src="vendor/jquery.min.js" onerror="oh()"></script>'
        assert (plain / "index.html").read_text() == expected == (copy.html / "index.html").read_text()
        assert copy_offline(plain, None).scripts == ()
        with pytest.raises(ParameterError, match="holds something"):
            copy_offline(plain, copy.html)
        with pytest.raises(PageError, match=r"holds no index\.html"):
            copy_offline(tmp_path, tmp_path / "new")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --results"),
        (["--html", "a", "--results", "b"], "give either --results"),
        (["--html", "a", "--commit", "b"], "--commit chooses among results"),
        (["--html", "nowhere"], "holds no index.html"),
        (["--results", "nowhere"], "nowhere is no folder"),
    ],
)
def test_bad_requests_end_in_one_line(words, message):
    options = {"results": None, "html": None, "out": None}
    options |= {words[i].removeprefix("--"): words[i + 1] for i in range(0, len(words), 2)}
    with pytest.raises(PrecisionEvalError, match=message):
        asv_page_command(**{name: Path(v) if v and name in ("html", "results") else v for name, v in options.items()})
