"""What is written of a sweep: sentences, tables, JSON, figure."""

import json

import pytest

from precision_eval.stats.crossover import Crossover
from precision_eval.studies.sweep.report import answer, crossover_json, draw, draw_lengths, sentence, summary_markdown
from precision_eval.studies.sweep.running import curves_of, jump_of_faults

ENVIRONMENT = "cd" * 32


def crossover(outcome, *, sign=0, crossings=(), undecided=()):
    return Crossover(
        outcome=outcome,
        sign=sign,
        crossings=crossings,
        undecided_lengths=undecided,
        lengths=(64, 2048),
        confidence=0.95,
    )


def findings(made, casts, *, faults=0.0, **options):
    """Findings of a sweep whose ratio of the casts is ``casts(configuration, length)``."""
    sweep = made.small(processes=3, **options)
    lines = [
        made.line(
            job, length, casts=casts(job.configuration, length), faults=faults(length) if callable(faults) else faults
        )
        for job in sweep.jobs(ENVIRONMENT)
        for length in job.lengths
    ]
    return curves_of(lines)


def test_a_known_crossing_is_found_from_lines_and_written(made, tmp_path):
    """Ratios 1/2, 1 and 2 at 64, 256 and 1024 cross at 256."""
    found = findings(made, lambda _, length: length / 256 if length == 256 else (length / 256) ** 0.5)
    (one,) = found[0].crossover.crossings
    assert one.length == pytest.approx(256, rel=0.05)
    assert one.low < 256 < one.high
    text = summary_markdown(found, campaign="c")
    assert "| metavoice float16, eager, 1 thread | one crossing between 64 and 1,024, on a straight line at 2" in text
    assert "| 0.5 [" in text
    assert "| 2 [" in text or "| 1.99 [" in text or "| 2.01 [" in text
    data = json.loads(crossover_json(found, campaign="c"))
    (configuration,) = data["configurations"]
    assert configuration["crossover"]["outcome"] == "one"
    assert configuration["crossover"]["crossings"][0]["length"] == one.length
    assert [point["length"] for point in configuration["points"]] == [64, 256, 1024]
    assert len(configuration["points"][0]["ratios"]["casts"]["process_ratios"]) == 3
    files = draw(found, tmp_path)
    assert [path.name for path in files] == ["lengths.png", "lengths.svg"]
    assert "query → cache dtype" in files[1].read_text()
    assert "one crossing" not in "".join(answer(found))


@pytest.mark.parametrize(
    ("faults", "between", "jump"),
    [
        ({64: 0, 256: 0, 1024: 0}, (64, 1024), None),
        ({64: 0, 256: 0, 1024: 8194}, (64, 1024), (256, 1024)),
        ({64: 0, 256: 0, 1024: 8194}, (64, 256), None),  # beside the bracket
        ({64: 514, 256: 2050, 1024: 8194}, (64, 1024), None),  # 8 per slot throughout: memory returned
        ({64: 514, 256: 2050, 1024: 0}, (64, 1024), (256, 1024)),
        ({64: 0, 256: 1000, 1024: 8194}, (64, 1024), (64, 1024)),  # two jumps
        ({64: 0, 256: 0.25, 1024: 0.75}, (64, 1024), None),  # strays
        ({64: 64, 256: 512, 1024: 2048}, (64, 1024), None),  # twice as many per slot is no jump
        ({64: 64, 256: 513, 1024: 2048}, (64, 1024), (64, 256)),
        ({64: 0, 1024: 8194}, (64, 1024), (64, 1024)),  # not counted at 256
        ({}, (64, 1024), None),
    ],
)
def test_jumps_by_hand(made, faults, between, jump):
    (job,) = made.small(processes=1).jobs(ENVIRONMENT)
    lines = [made.line(job, length, faults=faults.get(length, 0.0)) for length in job.lengths]
    for line in lines:
        if line["length"] not in faults:
            line["page_faults"] = {}
    (series,) = curves_of(lines)
    assert jump_of_faults(series.points, between=between) == jump


def test_a_jump_has_no_place_on_a_straight_line(made, tmp_path):
    """A ratio of 1/2 below a jump and 2 above it: every place in between is possible, half-way is not found."""
    options = {"casts": lambda _, length: 0.5 if length < 1000 else 2.0}
    smooth = findings(made, **options)
    jump = findings(made, **options, faults=lambda length: 8.0 * length if length > 1000 else 0.25)
    assert "on a straight line at 5" in sentence(smooth[0].crossover)
    assert sentence(jump[0].crossover).startswith("one crossing in a jump of page faults between 256 and 1,024: kv_to")
    text = summary_markdown(jump, campaign="c")
    assert "straight line at" not in text
    (found,) = json.loads(crossover_json(jump, campaign="c"))["configurations"][0]["crossover"]["crossings"]
    assert (found["length"], found["low"], found["high"]) == (None, None, None)
    assert (found["between"], found["jump"]) == ([256, 1024], [256, 1024])
    assert draw(jump, tmp_path)
    labels = {
        name: [text.get_text() for axes in draw_lengths(one).axes for text in axes.texts]
        for name, one in (("smooth", smooth), ("jump", jump))
    }
    assert labels["jump"] == ["256\nto 1,024"]
    assert "[" in labels["smooth"][0]
    keys = [[text.get_text() for text in draw_lengths(one).legends[0].get_texts()] for one in (smooth, jump)]
    assert ["straight lines" in " ".join(key) for key in keys] == [True, False]  # the key names what is drawn


def test_the_answer_says_where_memory_turns_the_order(made):
    turned = findings(
        made, lambda where, length: 2.0 if where.memory == "returned" else 0.5, memory=("grown", "kept", "returned")
    )
    text = "\n".join(answer(turned))
    assert "1,024 slots, memory kept: `kv_to_query` takes 0.5" in text
    assert "slower in 1 of 1 configuration, with 0 page faults per call" in text
    assert "The state of memory alone turns the order" in text
    assert "`query_to_half` is faster with memory returned, `kv_to_query` with grown and kept" in text
    same = "\n".join(answer(findings(made, lambda *_: 2.0, memory=("grown", "kept"))))
    assert "No length was found at which the state of memory alone turns the order." in same
    assert "state of memory" not in "\n".join(answer(findings(made, lambda *_: 2.0)))
