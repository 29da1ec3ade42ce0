"""``precision-eval versions`` from its command line: tables, Markdown, JSON, CSV, and one line for bad input."""

import json

import made_versions
import pytest
from typer.testing import CliRunner

from precision_eval.cli.commands import app

CELLS = {("as_shipped", "tiny"): (2, 1), ("kv_to_query", "tiny"): (1, 1)}


@pytest.fixture
def folder(tmp_path):
    runs = [
        made_versions.Run(
            torch=version,
            values={
                "eager.dia_decode.track_status": {cell: statuses[number] for cell, statuses in CELLS.items()},
                "eager.dia_decode.track_drift": {("kv_to_query", "tiny"): 1e-3 * (1 + number)},
            },
        )
        for number, version in enumerate(("2.6.0", "2.8.0"))
    ]
    return made_versions.write_runs(tmp_path / "results", runs)


def run(*arguments):
    return CliRunner().invoke(app, ["versions", *map(str, arguments)])


def test_markdown_in_a_pipe(folder):
    found = run("--results", folder)
    assert found.exit_code == 0, found.output
    assert "| as_shipped | status | raised | passed |" in found.stdout
    assert "rms-norm-keeps-input-dtype (since 2.7.0)" in found.stdout
    assert "1.00e-3 → 2.00e-3, ×2.00" in found.stdout
    assert "https://github.com/pytorch/pytorch/pull/147203" in found.stdout


def test_json_and_csv(folder, tmp_path):
    found = run("--results", folder, "--json", "--csv", tmp_path / "values.csv", "--metric", "status,drift")
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert [one["name"] for one in content["positions"]] == ["2.6.0", "2.8.0"]
    assert len((tmp_path / "values.csv").read_text().splitlines()) == 1 + 4 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--results", "{}/none"), "is no folder; give asv's results_dir"),
        (("--results", "{}", "--machine", "lap"), "unknown machine 'lap'"),
        (("--results", "{}", "--case", "dia-decodes"), "unknown case 'dia-decodes'; did you mean dia-decode?"),
        (("--results", "{}", "--by", "day"), "unknown axis 'day'; known: commit, torch"),
        (("--results", "{}", "--torch", "2.6.0"), "--torch 2.6.0 would choose one place on the axis"),
        (("--results", "{}", "--by", "commit", "--commit", "abc"), "leave it out, or give --by torch"),
        (("--results", "{}", "--html", "{}/benchmarks.json"), "is a file; give a folder"),
    ],
)
def test_bad_input_is_one_line(folder, refused, arguments, message):
    refused(message, "versions", *(one.replace("{}", str(folder)) for one in arguments))


def test_the_page_is_written_beside_the_tables(folder, tmp_path):
    found = run("--results", folder, "--html", tmp_path / "page")
    assert found.exit_code == 0, found.output
    assert list((tmp_path / "page").glob("*.html"))
