"""``precision-eval versions`` from its command line: Markdown, JSON, files, and one line for bad input."""

import json

import made_versions
import pytest
from typer.testing import CliRunner

from precision_eval.cli.commands import app


@pytest.fixture
def folder(tmp_path):
    cell = ("kv_to_query", "tiny")
    runs = [
        made_versions.Run(
            torch=version,
            values={"eager.dia_decode.track_status": {cell: status}, "eager.dia_decode.track_drift": {cell: drift}},
        )
        for version, status, drift in (("2.6.0", 2, 1e-3), ("2.8.0", 1, 2e-3))
    ]
    return made_versions.write_runs(tmp_path / "results", runs)


def run(*arguments):
    return CliRunner().invoke(app, ["versions", *map(str, arguments)])


def test_markdown_in_a_pipe_and_files(folder, tmp_path):
    short = run("--results", folder)
    assert "| dia-decode | eager, tiny | status | 2.8.0 | raised → passed | kv_to_query |" in short.stdout
    result = run("--results", folder, "--verbose", "--figure", tmp_path / "map.svg")
    assert result.exit_code == 0, result.output
    assert (
        "| dia-decode | eager, tiny | kv_to_query | status | raised | passed | raised → passed at 2.8.0 |"
        in result.stdout
    )
    assert "<svg" in (tmp_path / "map.svg").read_text()


def test_json(folder):
    result = run("--results", folder, "--json", "--set", "metric=status")
    assert result.exit_code == 0, result.output
    assert [series["values"] for series in json.loads(result.stdout)["series"]] == [["raised", "passed"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--results", "{}/none"), "is no folder; give asv's results_dir"),
        (("--results", "{}", "--set", "machine=lap"), "unknown machine 'lap'"),
        (("--results", "{}", "--case", "dia-decodes"), "unknown case 'dia-decodes'; did you mean dia-decode?"),
        (("--results", "{}", "--by", "day"), "unknown axis 'day'; known: commit, torch"),
    ],
)
def test_bad_input_is_one_line(folder, refused, arguments, message):
    refused(message, "versions", *(argument.replace("{}", str(folder)) for argument in arguments))
