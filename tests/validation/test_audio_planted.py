import pytest

from validation.audio import planted


@pytest.mark.parametrize("size", [0.5, 0.005])
def test_a_planted_dropout_is_told_and_none_is_not(size):
    kind, _, fault = planted.PLANTED["dropout, s"]
    assert planted.names_fault(kind, fault, size)
    assert not planted.names_fault(kind, lambda samples, _: samples, size)


def test_a_clean_pair_raises_no_alarm_and_a_noisy_one_would(monkeypatch):
    monkeypatch.setattr(planted, "N_CLEAN", 1)
    assert planted.false_alarms() == []
    pair = planted.pair
    monkeypatch.setattr(planted, "pair", lambda seed, **_: (pair(seed)[0], 4.0 * pair(seed)[1].clip(-0.1, 0.1)))
    assert "clipped" in planted.false_alarms()[0]
