# SPDX-License-Identifier: Apache-2.0
"""What grows is told from what goes up and down."""

import random

import pytest

from bench.soak.growth import growth


def samples(slope: float, noise: float, seed: int = 1) -> list[tuple[float, float]]:
    dice = random.Random(seed)
    return [(at * 5.0, 100 + slope * at + dice.uniform(-noise, noise)) for at in range(200)]


def test_a_steady_rise_is_growth() -> None:
    found = growth(samples(0.2, 1), floor=4)
    assert found.grows
    assert found.added == pytest.approx(20, abs=1)


def test_noise_is_not_growth() -> None:
    assert not any(growth(samples(0, 20, seed), floor=1).grows for seed in range(50))


def test_what_is_below_the_floor_does_not_count() -> None:
    assert not growth(samples(0.02, 0), floor=4).grows


def test_what_was_taken_once_in_the_first_half_is_not_growth() -> None:
    assert not growth([(at, 0.0 if at < 40 else 500.0) for at in range(100)], floor=4).grows


def test_an_outlier_at_the_end_is_not_growth() -> None:
    flat = samples(0, 1)
    assert not growth([*flat[:-1], (flat[-1][0], 1e6)], floor=4).grows


def test_a_rise_within_a_sawtooth_is_seen() -> None:
    sawtooth = [(float(at), at % 10 + 0.5 * at) for at in range(200)]
    assert growth(sawtooth, floor=4).grows


def test_too_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="9 samples"):
        growth(samples(0, 1)[:9], floor=1)
