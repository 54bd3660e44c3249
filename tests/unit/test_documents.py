# SPDX-License-Identifier: Apache-2.0
"""Documents name only existing files, make targets, commands, settings and variables."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.cli.main import VERBS, build
from nvshared.machine.capacity import Capacity
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.domains import least_host, margin
from nvshared.settings import config
from nvshared.settings.rules import PARSERS
from nvshared.sharing.moving import LOST, PARKED, PARKING, RESTORING, SAVING
from nvshared.tui.tables import UNSHARED
from nvshared.units import GIB, MIB
from tests import pages

ROOT = Path(__file__).parents[2]
H200 = 150_109_880_320                  # bytes
H100 = 81_559 * MIB                     # bytes of an H100 of 80 GB
DOCUMENTS = sorted(
    path for path in [
        *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench/README.md",
        ROOT / "packaging/README.md", ROOT / "libhook/simulator/README.md"] if path.is_file()
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
TARGET = re.compile(r"^([\w-]+(?: [\w-]+)*):", re.MULTILINE)
VARIABLE = re.compile(r"\bNVSHARE_[A-Z]+(?:_[A-Z]+)*\b")
FILE = re.compile(r"[\w/.-]+\.(?:py|c|h|def)")
SETTING = re.compile(r"^([a-z][a-z-]+) = (\S+)$")
SOURCES = ("nvshared/**/*.py", "libhook/**/*.[ch]", "libhook/**/*.md", "tests/**/*.py",
           "bench/**/*.py")


def parts(path: Path) -> Iterator[str]:
    """Indented or fenced lines of a document, and text in backquotes.

    Comments behind commands are removed.
    """
    fenced = False
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.partition(" #")[0].strip()
        else:
            yield from CODE.findall(line)


def commands(path: Path, name: str) -> Iterator[list[str]]:
    """The arguments of each command `name` in a document."""
    for part in parts(path):
        words = shlex.split(part.replace("|", " ")) if part.count("'") % 2 == 0 else part.split()
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        if words and words[0] == name:
            yield words[1:]


# What a reader has to read at most. Pages without a row are for maintainers.
MOST_WORDS = {
    "README.md": 1000, "CHANGELOG.md": 1500, "docs/install.md": 900, "docs/lab-server.md": 1500,
    "docs/idle-notebooks.md": 500, "docs/containers.md": 1200, "docs/engines.md": 900,
    "docs/moving.md": 900, "docs/kubernetes.md": 3000, "docs/strategies.md": 800,
    "docs/slurm.md": 1000, "docs/monitoring.md": 1200, "docs/security.md": 3000,
    "docs/performance.md": 1200, "docs/limits.md": 1200, "docs/trial.md": 350,
    "docs/saving.md": 1200,
}
RESULT = re.compile(r"bench/results/|(?<![\w./])20\d\d-?\d\d-?\d\d")


def words(path: Path) -> int:
    """The words of a page: what has a letter or a digit, without the targets of links."""
    text = re.sub(r"<!--.*?-->|(?<=\])\([^)]*\)", "", path.read_text(), flags=re.DOTALL)
    return sum(1 for word in text.split() if re.search(r"[^\W_]", word))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(params=DOCUMENTS, ids=named)
def document(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_documents_link_only_to_existing_files(document: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(document.read_text())]
    broken = [
        link for link in links
        if link and "://" not in link and not (document.parent / link).exists()]
    assert not broken


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_documents_link_only_to_existing_sections(document: Path) -> None:
    broken = []
    for link in LINK.findall(document.read_text()):
        name, _, section = link.partition("#")
        page = document.parent / name if name else document
        if section and "://" not in link and page.suffix == ".md":
            broken += [] if section in anchors(page) else [link]
    assert broken == []


@pytest.mark.parametrize("page", MOST_WORDS)
def test_page_for_users_is_as_short_as_its_reader_was_promised(page: str) -> None:
    assert words(ROOT / page) <= MOST_WORDS[page]


def test_only_the_performance_page_quotes_dated_results(document: Path) -> None:
    if named(document) not in ("docs/performance.md", "docs/kubernetes.md", "CHANGELOG.md"):
        assert RESULT.findall(document.read_text()) == []


def test_polkit_rule_of_the_install_page_names_existing_actions() -> None:
    policy = (ROOT / "dbus/com.nvshare.policy").read_text()
    rule = pages.block("docs/install.md", "polkit.addRule")
    actions = re.findall(r'"(com\.nvshare\.[\w-]+)"', rule)
    assert actions
    assert [action for action in actions if f'<action id="{action}">' not in policy] == []


def test_contributing_page_names_only_existing_tests() -> None:
    rows = re.findall(r"^\| `.*\|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    missing = []
    for row in rows:
        folder = ""
        for name in re.findall(r"`((?:[\w*]+/|test_)[\w*/]+(?:\.py)?)`", row):
            folder = str(Path(name).parent) if "/" in name else folder
            missing += [] if [*ROOT.glob(str(Path(folder, Path(name).name)))] else [name]
    assert len(rows) > 10
    assert not missing


def test_architecture_page_names_only_existing_files_below_folders_of_the_same_paragraph() -> None:
    """A file without a folder is in a folder that its paragraph names."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()}
    there = [part for part in parts(ROOT / "ARCHITECTURE.md") if part.split("/")[0] in tops]
    assert len(there) > 40
    lost = [part for part in there if not list(ROOT.glob(part))]
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        named = CODE.findall(line)
        whole = [part for part in named if part.split("/")[0] in tops]
        found = [path for part in whole for path in ROOT.glob(part)]
        folders = {path if path.is_dir() else path.parent for path in found}
        lost += [
            part for part in set(named) - set(whole) if FILE.fullmatch(part)
            and not any((folder / part).exists() for folder in folders)]
    assert lost == []


def test_documents_name_only_existing_make_targets(document: Path) -> None:
    makefiles = [ROOT / "Makefile", *ROOT.glob("packaging/*.mk"), *ROOT.glob("tests/*/*.mk")]
    text = "\n".join(path.read_text() for path in makefiles)
    known = {word for line in TARGET.findall(text) for word in line.split()}
    levels = re.search(r"^LEVELS := (.+)$", text, re.MULTILINE)
    assert levels is not None
    known |= {f"test-{level}" for level in levels[1].split()}
    hook = "\n".join(path.read_text() for path in (ROOT / "libhook").rglob("*.mk"))
    hook += (ROOT / "libhook/Makefile").read_text()
    known_below = {word for line in TARGET.findall(hook) for word in line.split()}
    for words in commands(document, "make"):
        below = words[:2] == ["-C", "libhook"]
        targets = [
            word for word in words[2 if below or words[:1] == ["-f"] else 0:]
            if re.fullmatch(r"[a-z][a-z-]*", word)]
        assert set(targets) <= (known_below if below else known), words


def test_documents_use_valid_nvsharectl_commands(document: Path) -> None:
    parser = build(VERBS)
    verbs = {verb.name for verb in VERBS}
    for words in commands(document, "nvsharectl"):
        if len(words) != 1 or words[0] not in verbs:        # a verb alone is no command to parse
            parser.parse_args(words)


def test_documents_use_valid_options_of_nvshared(document: Path) -> None:
    for words in commands(document, "nvshared"):
        config.parse(words)


def test_documents_name_only_existing_settings(document: Path) -> None:
    parse = {option.name: option.parse for option in config.options()}
    parse |= PARSERS
    for part in parts(document):
        if found := SETTING.match(part):
            assert found[1] in parse
            parse[found[1]](found[2])


def test_documents_name_only_existing_environment_variables(document: Path) -> None:
    wanted = set(VARIABLE.findall(document.read_text()))
    if wanted:
        sources = (path for pattern in SOURCES for path in ROOT.glob(pattern))
        text = "\n".join(path.read_text() for path in sources if path.is_file())
        assert {name for name in wanted if name not in text} == set()


@pytest.mark.parametrize("total", [H100, H200], ids=["with a disk", "without a disk"])
def test_example_of_the_lab_server_page_has_the_figures_that_the_daemon_computes(
        total: int) -> None:
    card, host = Capacity(total), 40 * GIB
    for notebook in range(10):
        card.joined(notebook)
    beyond = 10 * 20 * GIB - card.bytes
    figures = [card.bytes, beyond]
    figures += [beyond - (host - margin(host, 10))] if total == H100 else [
        total, least_host(beyond, 10)]
    text = (ROOT / "docs/lab-server.md").read_text()
    for figure in figures:
        assert f"{figure / GIB:.1f} |" in text or f"{figure / GIB:.1f}** |" in text


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


def test_manual_explains_each_state_that_the_column_state_shows() -> None:
    page = (ROOT / "packaging/man/nvsharectl.1.in").read_text()
    section = page.partition(".SH STATES")[2].partition(".SH ")[0]
    shown = {*map(str, ClientState), PARKING, PARKED, RESTORING, SAVING, LOST, UNSHARED}
    assert set(re.findall(r"^\.B (.+)$", section, re.MULTILINE)) == shown


def test_each_bound_of_what_the_daemon_keeps_names_an_existing_test() -> None:
    page = (ROOT / "docs/internals/bounds.md").read_text()
    table = page.partition("## What the daemon keeps")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    tests = set(re.findall(r"def (test_\w+)", "".join(
        path.read_text() for path in ROOT.glob("tests/**/test_*.py"))))
    assert rows
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named or row.endswith("| the same |"), row
        assert tests.issuperset(named), row
