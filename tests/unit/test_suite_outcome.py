# SPDX-License-Identifier: Apache-2.0
"""How the runs of a framework's own tests are written down, cut short and compared."""

from pathlib import Path

import pytest

from tests.gpu.suites.outcome import Comparison, Kind, Outcome, chosen, first_line, parsed
from tests.gpu.suites.unittests import run

SUITE = '''
import unittest
class Cases(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.assertEqual(1, 2)
    def test_broken(self): raise ValueError("so\\nit is")
    def test_left_out(self): self.skipTest("no card")
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
    def test_parts(self):
        for part in range(3):
            with self.subTest(part=part): self.assertNotEqual(part, 1)
'''


def runs(*outcomes: tuple[str, Kind, str]) -> dict[str, Outcome]:
    return {name: Outcome(name, kind, digest=digest) for name, kind, digest in outcomes}


def test_an_outcome_is_read_as_it_was_written() -> None:
    written = [Outcome("a 1", "passed", digest="12"), Outcome("b\n2", "failed", "it is so")]
    lines = [outcome.line() + "\n" for outcome in written]
    assert list(parsed(lines).values()) == written


def test_a_line_that_was_cut_off_does_not_count() -> None:
    lines = [Outcome("a", "passed").line() + "\n", Outcome("b", "passed").line()[:-3]]
    assert list(parsed(lines)) == ["a"]


def test_the_choice_is_spread_evenly_and_the_same_in_any_order() -> None:
    names = [f"{number:03}" for number in range(100)]
    assert chosen(reversed(names), 4) == ["000", "025", "050", "075"]
    assert chosen(names, 3) == ["000", "033", "066"]
    assert chosen([*names, *names], 200) == names
    assert chosen(names, 0) == []
    assert len(set(chosen(names, 99))) == 99


def test_what_is_the_same_in_all_runs_makes_no_difference() -> None:
    one = runs(("a", "passed", "1"), ("b", "failed", ""), ("c", "skipped", ""))
    assert Comparison.of([one, one], one) == Comparison(3, (), ())


@pytest.mark.parametrize(("kind", "digest"), [("passed", "2"), ("failed", ""), ("skipped", "")])
def test_what_differs_under_the_library_alone_is_named(kind: Kind, digest: str) -> None:
    one = runs(("a", "passed", "1"), ("b", "passed", "5"))
    found = Comparison.of([one, one], {**one, **runs(("a", kind, digest))})
    assert found.compared == 1
    assert [line.partition(":")[0] for line in found.differences] == ["a"]


def test_data_that_differ_without_the_library_may_differ_with_it() -> None:
    alone = [runs(("a", "passed", "1")), runs(("a", "passed", "2"))]
    assert Comparison.of(alone, runs(("a", "passed", "3"))) == Comparison(0, ("a",), ())


def test_but_they_may_not_fail() -> None:
    alone = [runs(("a", "passed", "1")), runs(("a", "passed", "2"))]
    assert len(Comparison.of(alone, runs(("a", "failed", ""))).differences) == 1


def test_an_outcome_that_differs_without_the_library_says_nothing() -> None:
    alone = [runs(("a", "passed", "1")), runs(("a", "failed", ""))]
    assert Comparison.of(alone, runs(("a", "failed", ""))) == Comparison(0, ("a",), ())


def test_a_test_that_did_not_run_under_the_library_is_a_difference() -> None:
    one = runs(("a", "passed", "1"), ("b", "passed", "1"))
    found = Comparison.of([one, one], runs(("a", "passed", "1")))
    assert (found.compared, len(found.differences)) == (1, 1)


def test_the_first_line_of_a_reason_is_short_and_not_empty() -> None:
    assert first_line("\n  \n said \nmore") == "said"
    assert first_line("") == ""
    assert len(first_line("x" * 1000)) == 200


def test_a_suite_of_unittests_is_run_test_by_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shipped"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "test_cases.py").write_text(SUITE)
    (package / "test_none.py").write_text("import unittest; raise unittest.SkipTest('no card')")
    (package / "test_wrong.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    found = {one.name.rpartition(".")[2]: one for one in run("shipped", 100)}
    assert {name: one.outcome for name, one in found.items()} == {
        "test_good": "passed", "test_bad": "failed", "test_broken": "failed",
        "test_left_out": "skipped", "test_expected": "passed", "test_unexpected": "failed",
        "test_parts": "failed", "test_none": "skipped", "test_wrong": "failed",
    }
    assert found["test_broken"].reason == "ValueError: so"
    assert found["test_left_out"].reason == "no card"
