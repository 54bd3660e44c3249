# SPDX-License-Identifier: Apache-2.0
"""The simulation of a day: seeded, no time from nowhere, and what a policy does can be seen."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.simulate.card import Card, Life
from bench.simulate.day import Wanted, settings
from bench.simulate.measure import main
from bench.simulate.tenant import Tenant
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import GIB, SECOND

FEW = ("--tenants", "12", "--cards", "1", "--memory", "20GiB", "--host", "200GiB", "--hours", "11")


def busy(card: Card, tenant: Tenant, part: float) -> Life:
    """A program that has a part of the card, and always work."""
    program = card.enter(tenant)
    program.kernel = SECOND // 20
    yield SECOND
    program.allocate(int(part * card.settings.capacity))
    yield SECOND
    yield program.submit(10**6 * SECOND)


def shares(policy: Path, text: str, *parts: float, seconds: int = 60) -> list[float]:
    """Of the time, of as many trainings."""
    policy.write_text(text)
    found, rules = settings(Wanted(policy=policy, memory=20 * GIB, tq="5"))
    tenancy = Tenancy()
    tenancy.use(rules)
    card = Card(found, "1", tenancy)
    for number, part in enumerate(parts):
        card.live(busy(card, card.tenant(f"pod:train/t{number}", "training", "user:u0"), part))
    card.advance(seconds * SECOND)
    card.close()
    return [tenant.got / (seconds * SECOND) for tenant in card.tenants_here]


@pytest.fixture(name="policy")
def _policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.conf"


def figures(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main([*FEW, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_same_seed_is_the_same_day(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, again = figures(capsys, "--svg", str(tmp_path / "day.svg")), figures(capsys)
    assert first == again
    other = figures(capsys, "--seed", "2")
    assert first["kinds"] != other["kinds"]
    assert ElementTree.parse(tmp_path / "day.svg").getroot().tag.endswith("svg")
    for found in (first, other):
        by_kind = found["shares"].values()
        assert all(sum(values) <= 1.0005 for values in zip(*by_kind, strict=True))
        assert found["all"]["share"] > 0


def test_twice_the_weight_is_twice_the_time(policy: Path) -> None:
    text = "[tenant pod:train/t1]\nweight = 200\n"
    light, heavy = shares(policy, text, 0.7, 0.7, seconds=150)
    assert heavy / light == pytest.approx(2, rel=0.1)
    assert 0.8 < light + heavy <= 1


def test_programs_that_run_together_share_the_card(policy: Path) -> None:
    first, second = shares(policy, "", 0.3, 0.3, seconds=600)
    assert first == pytest.approx(second, rel=0.02)
    assert 0.98 < first + second <= 1


def test_a_limit_of_the_policy_holds(policy: Path) -> None:
    share, = shares(policy, "[tenant pod:train/*]\ncompute-limit = 25%\n", 0.5)
    assert share == pytest.approx(0.25, abs=0.03)


def test_a_wrong_policy_is_refused_in_one_line(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.write_text("[tenant pod:*]\nweight = heavy\n")
    assert main(["--policy", str(policy)]) != 0
    assert f"{policy}:2" in capsys.readouterr().err
