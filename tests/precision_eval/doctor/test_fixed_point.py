"""The first patch is a fixed point: applied, no fault is left, and nothing takes it back."""

import pytest

from validation.doctor.fixed_point import HALF_CACHE, case_files, count_settled, is_settled, settle, settled_figures

QUICK = ("02_gptj_static_cache", "10_optimizer_lerp", "24_adam_written_back", "54_input_halved_for_kernel")
CASES = [
    pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow, id=path.stem) for path in case_files()
]
# Of a line of the set's own, of a library, and of two lines; the others: python -m validation doctor
PLANTS = ("ratio_steps", "log_ratio", "exploding")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("path", CASES)
def test_a_patch_that_was_applied_leaves_no_fault(path):
    row = settle(f"{path}:factory", every=True)
    assert is_settled(row), row


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_patch_of_a_planted_fault_leaves_no_fault(plant):
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    row = settle(f"scene {plant}")
    assert row["again"]
    assert is_settled(row), row


def test_neither_patch_of_a_cache_in_half_is_taken_back():
    row = settle(f"{HALF_CACHE}:factory", every=True)
    assert (len(row["again"]), is_settled(row)) == (2, True)


def test_what_is_left_or_taken_back_is_counted_and_named():
    good = {"status": "passed", "faults": [], "patches": []}
    rows = [
        {"target": name, "patches": 1, "again": again}
        for name, again in {
            "cured": [good], "raises": [good | {"status": "raised"}], "left": [good | {"faults": ["drift at x.py:1"]}],
            "undone": [good | {"patches": ["--- a/x.py"]}], "says so": [],
        }.items()
    ]  # fmt: skip
    counts = count_settled([*rows, {"target": "refused", "refused": "it does not repeat"}])
    assert (counts["settled"], counts["cures"], counts["partial"], counts["none"]) == (1, 4, 1, 1)
    figures = settled_figures(counts)
    assert not figures[0].met
    assert [figure.name for figure in figures[1:]] == [f"not settled: {name}" for name in ("raises", "left", "undone")]
