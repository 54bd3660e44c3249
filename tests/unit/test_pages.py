# SPDX-License-Identifier: Apache-2.0
"""Each block of README.md and docs/*.md is run by a test, or listed with the reason."""

from pathlib import Path

import pytest

from tests import pages


@pytest.mark.parametrize("page", pages.PAGES)
def test_command_block_in_the_docs_is_run_by_a_test_or_listed_with_a_reason(page: str) -> None:
    claimed = [*pages.requests(), *pages.NOT_RUN]
    unclaimed = [
        str(block) for block in pages.blocks(page)
        if not any(name == page and block.text.startswith(beginning) for name, beginning in claimed)
    ]
    assert not unclaimed, (
        "run each in a test, by tests/pages.py's block(), or list it in NOT_RUN: "
        + "; ".join(unclaimed))


@pytest.mark.parametrize(("page", "beginning"), sorted({*pages.requests(), *pages.NOT_RUN}))
def test_command_block_that_a_test_runs_is_in_the_docs(page: str, beginning: str) -> None:
    assert pages.block(page, beginning)


def test_command_block_listed_as_not_run_is_run_by_no_test() -> None:
    assert not pages.NOT_RUN.keys() & set(pages.requests())


def test_command_blocks_of_a_page_are_found_indented_and_fenced(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("Text.\n\n    a\n    b\n\nMore `code`.\n\n```sh\nc\n```\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.blocks("page.md") == (
        pages.Block("page.md", 3, "a\nb\n"), pages.Block("page.md", 9, "c\n"))
    with pytest.raises(LookupError, match="0 blocks"):
        pages.block("page.md", "d")
