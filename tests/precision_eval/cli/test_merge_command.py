"""merge from the command line: tables and files, strict JSON, one line for bad input."""

import json

from made_machines import machines

from precision_eval.results.machines import merged

__all__ = ["machines"]


def test_runs_are_merged(program, refused, tmp_path, machines):
    first, second = machines
    code, out, _ = program("merge", first, second, "--out", tmp_path / "out")
    assert code == 0
    assert "Turns over: time of kv_to_query / float16" in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"machines.md", "machines.html", "machines.json"}
    code, out, _ = program("merge", first, second, "--json")
    assert len(json.loads(out)["machines"]) == len(merged(machines).machines) == 2
    refused("records of one machine", "merge", first)
    refused("does not exist; measure first", "merge", first, tmp_path / "nowhere")
    refused("is not empty and holds no machines.json", "merge", first, second, "--out", tmp_path)


def test_a_run_is_packed_into_one_file(program, refused, tmp_path, machines):
    code, out, _ = program("merge", machines[0], "--pack", tmp_path / "laptop.jsonl")
    assert code == 0
    assert "KiB" in out
    code, out, _ = program("merge", tmp_path / "laptop.jsonl", machines[1])
    assert code == 0
    assert "Turns over: time of kv_to_query / float16" in out
    refused("takes one RUN, 2 were given", "merge", *machines, "--pack", tmp_path / "two.jsonl")


def test_a_name_that_turns_the_line_round_is_printed_as_what_it_is(program, tmp_path, machines):
    code, out, _ = program("merge", *machines, "--out", tmp_path / "a\u202eb")
    assert code == 0
    assert "\u202e" not in out
    assert (tmp_path / "a\u202eb" / "machines.md").exists()
    renamed = machines[0].rename(machines[0].with_name("c\u202ed"))
    for words in (("report", renamed), ("report", renamed, "--verbose")):
        code, out, _ = program(*words)
        assert code == 0, words
        assert "\u202e" not in out
        assert "c\\u202ed" in out.replace("\n", "")
