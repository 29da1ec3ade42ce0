import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile, from_json, read_json, write_json


def test_a_document_is_written_whole_and_read_strictly(tmp_path):
    path = tmp_path / "new" / "figures.json"
    write_json(path, {"a": [1.5, "ü"]})
    assert path.read_text(encoding="utf-8") == '{\n "a": [\n  1.5,\n  "ü"\n ]\n}\n'
    assert read_json(path) == {"a": [1.5, "ü"]}
    with pytest.raises(RecordError, match="is not strict JSON"):
        write_json(path, {"a": float("inf")})
    assert read_json(path) == {"a": [1.5, "ü"]}
    assert [one.name for one in path.parent.iterdir()] == ["figures.json"]


@pytest.mark.parametrize("text", ['{"a": NaN}', "-Infinity", '{"a"', b"\xff", "[" * 100_000])
def test_what_is_not_json_is_refused_by_place(text):
    with pytest.raises(RecordError, match=r"figures\.json is damaged"):
        from_json(text, where="figures.json")


def test_the_latest_line_of_a_key_counts_and_a_torn_one_does_not(tmp_path):
    file = TrialFile(tmp_path / "trials.jsonl")
    assert file.read() == []
    for value in (1, 2):
        file.append({"key": "a", "value": value})
    file.append({"key": "b"})
    with file.path.open("a") as stream:
        stream.write('{"key": "c"')
    assert file.read() == [{"key": "a", "value": 2}, {"key": "b"}]
    file.append({"key": "d"})
    assert file.keys() == {"a", "b", "d"}


@pytest.mark.parametrize(
    ("line", "match"), [("{}", "line 1 has no key"), ("[1]", "no key"), ("{", "line 1 is damaged")]
)
def test_a_line_in_the_middle_that_is_no_trial_is_an_error(tmp_path, line, match):
    file = TrialFile(tmp_path / "trials.jsonl")
    file.path.write_text(f'{line}\n{{"key": "a"}}\n')
    with pytest.raises(RecordError, match=match):
        file.read()
