import math
import shlex

import pytest

from precision_eval.core import formatting as write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (write.scientific(3.14e-7), "3.1e-7"),
        (write.scientific(0.01), "0.010"),
        (write.scientific(12.0), "12"),
        (write.scientific(0.0), "0"),
        (write.scientific(None), "–"),
        (write.significant(12.345), "12.3"),
        (write.significant(-0.00012), "−1.2e−04"),
        (write.significant(math.nan), "–"),
        (write.significant(-math.inf), "−∞"),
        (write.significant(1234.0), "1234"),
        (write.fixed(-0.0004, decimals=2), "0.00"),
        (write.fixed(-1.5, decimals=1), "−1.5"),
        (write.memory_text(64 * 2**20), "64 MiB"),
        (write.memory_text(512), "512 B"),
        (write.memory_text(1016 * 2**10), "1016 KiB"),  # below the next unit, beyond three digits
        (write.duration_text(0.00031), "310 µs"),
        (write.duration_text(0.9999e-3), "1 ms"),
        (write.duration_long(600), "10 min"),
        (write.with_interval("1", "0.9", "–"), "1"),
        (write.ratio_text(0.83, 0.82, 0.84), "0.830 [0.820, 0.840]"),
        (write.ratio_text(0.83), "0.830"),
        (write.ratio_text(None), "–"),
        (write.factor_text(0.03, 0.028, 0.031), "×0.0300 [0.0280, 0.0310]"),
        (write.factor_text(math.inf), "from 0"),
        (write.percent(0.0123), "1.2 %"),
        (write.percent(0.996), "100 %"),
        (write.percent(-0.05, decimals=1), "−5.0 %"),
        (write.percent_change(1.012), "+1.20 %"),
        (write.percent_change(0.95, decimals=0), "−5 %"),
        (write.status_text("out_of_memory"), "out of memory"),
        (write.yes_no(None), "–"),
        (write.join(["a", "b", "c"]), "a, b and c"),
        (write.counted(1, "version"), "1 version"),
        (write.counted(1200, "version"), "1,200 versions"),
        (write.shortened("abcdef", limit=4), "abc…"),
        (write.one_line("a\r\nb\x07"), r"a b\x07"),
    ],
)
def test_figures_as_written(text, expected):
    assert text == expected


def test_a_command_can_be_pasted_into_a_shell():
    words = ["run", "--out", "runs/a b", "--case", "x; touch y", "$(id)", "'"]
    assert shlex.split(write.command_line(*words)) == ["precision-eval", *words]
