"""The section: within its budget, one stream for identical sounds, the same bytes each time, numbers from records."""

import json
import re

import made_sound as made
import pytest

from precision_eval.report.html.sound import sound_section
from precision_eval.report.html.sound.section import BudgetError
from precision_eval.results.reading import load_run

ROOMY = 3_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made.made_run(tmp_path_factory.mktemp("run"), seconds=8.0)


@pytest.fixture(scope="module")
def section(run):
    return sound_section(run, budget_bytes=ROOMY)


def streams_of(html):
    return re.findall(r'<audio [^>]*src="data:audio/mpeg;base64,([^"]+)"', html)


def rows_of(html):
    """{condition: its part of the page}."""
    parts = re.split(r'<li class="sound-line sound-row" data-condition="([^"]+)"', html)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pointed_at(run, attributes):
    """The value in the records that an element names."""
    node = json.loads(next(r.to_json() for r in run.records if r.cell == attributes["data-record"]))
    for name in attributes["data-path"].split("/")[1:]:
        node = node[name]
    return node


def test_identical_sounds_share_one_stream_and_say_so(section):
    rows = rows_of(section.html)
    assert list(rows) == ["reference", "kv_to_query", "full_float32", "noise_floor", "original speech"]
    assert len(streams_of(section.html)) == len(set(streams_of(section.html))) == 4
    played = {name: re.search(r'data-stream="([^"]+)"', row).group(1) for name, row in rows.items()}
    assert played["full_float32"] == played["reference"]
    assert len(set(played.values())) == 4
    assert "every sample equals reference's" in rows["full_float32"]
    assert "<img" not in rows["full_float32"]
    assert all("<img" in row for name, row in rows.items() if name != "full_float32")


def test_the_bytes_are_counted_and_the_same_each_time(run, section):
    text = section.html + section.style + section.script
    assert section.bytes_used == len(text.encode()) <= ROOMY
    assert sound_section(run, budget_bytes=ROOMY) == section


def test_an_excerpt_where_the_whole_is_too_much(tmp_path):
    run = made.made_run(tmp_path, seconds=30.0)
    html = sound_section(run, budget_bytes=800_000).html
    assert "MP3 at 64 kbit/s" in html
    start_s, part_s = json.loads(re.search(r'data-parts="([^"]+)"', html).group(1))[1]
    assert start_s + part_s == 30.0
    assert 5 <= part_s < 12
    assert f"plays the first {part_s:.0f} s and the last {part_s:.0f} s of 30 s" in html
    heard = re.findall(r'data-seconds="([^"]+)"', html)
    assert heard == [str(2 * part_s)] * 5
    assert html.count('class="sound-unheard"') == 5


@pytest.mark.parametrize(
    ("spare", "said"),
    [
        (560_000, "MP3 at 96 kbit/s"),
        (280_000, "MP3 at 48 kbit/s"),
        (100_000, "No players here: not even 5 s from each end fit"),
    ],
)
def test_the_budget_is_kept_whatever_it_is(run, section, spare, said):
    bare = section.bytes_used - sum(len(stream) for stream in streams_of(section.html))
    found = sound_section(run, budget_bytes=bare + spare)
    assert found.bytes_used <= bare + spare
    assert said in found.html
    assert found.html.count("<img") == section.html.count("<img")  # strips are kept


def test_without_room_for_the_pictures_it_says_how_much_it_needs(run):
    with pytest.raises(BudgetError, match=r"budget_bytes is 20,000; the section without sound has [\d,]+: give more"):
        sound_section(run, budget_bytes=20_000)


def test_numbers_are_those_of_the_records(run, section):
    found = re.findall(r'<span (data-v="[^>]+)>([^<]+)</span>', section.html)
    assert len(found) >= 4
    for words, text in found:
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', words))
        value = pointed_at(run, attributes)
        assert float(attributes["data-v"]) == value
        assert float(text.removesuffix(" dB")) == pytest.approx(value, rel=0.05)


def test_marks_and_words_of_the_divergence(section):
    rows = rows_of(section.html)
    assert 'data-leaves="4.0"' in rows["kv_to_query"]
    assert "leaves the reference&#39;s tokens at 4.00 s" in rows["kv_to_query"]
    assert 'class="sound-mark" style="left:50.000%"' in rows["kv_to_query"]
    assert "sound-mark" not in rows["full_float32"] + rows["reference"] + rows["original speech"]
    assert "the reference&#39;s tokens throughout" in rows["full_float32"]


def test_every_picture_and_player_has_words_and_every_id_its_prefix(section):
    assert len(re.findall(r'<img [^>]*alt="[^"]{30,}"', section.html)) == section.html.count("<img")
    assert len(re.findall(r'<audio controls [^>]*aria-label="[^"]+"', section.html)) == section.html.count("<audio")
    ids = re.findall(r'\bid="([^"]+)"', section.html)
    assert len(ids) == len(set(ids))
    assert all(one.startswith("sound-") for one in ids)
    names = re.findall(r"\.([a-z][\w-]*)", re.sub(r"\{[^}]*\}", "", section.style))
    assert names
    assert all(name.startswith("sound-") for name in names)  # no rule reaches beyond the section


def test_nothing_is_loaded_from_elsewhere_and_no_folder_of_this_machine_is_named(run, section):
    for text in (section.html, section.style, section.script):
        assert not re.search(r"https?://|@import|url\(", text)
        assert str(run.directory) not in text
    assert set(re.findall(r'src="([^:]+:[^;]+);', section.html)) == {"data:audio/mpeg", "data:image/png"}


def test_a_lost_file_costs_its_row_only(tmp_path):
    made.made_run(tmp_path, seconds=3.0)
    (tmp_path / "audio" / "kv_to_query.wav").unlink()
    html = sound_section(load_run(tmp_path), budget_bytes=ROOMY).html
    assert list(rows_of(html)) == ["reference", "full_float32", "noise_floor", "original speech"]
    assert "<b>kv_to_query</b>: audio/kv_to_query.wav is missing; the command" in html
