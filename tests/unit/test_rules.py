# SPDX-License-Identifier: Apache-2.0
"""Rules for tenants: which rule applies, and the message for each wrong rule."""

from pathlib import Path

import pytest

from nvshared.daemon import main
from nvshared.errors import ConfigError, ExitCode
from nvshared.machine import host
from nvshared.settings.config import Config, load
from nvshared.settings.rules import Rule, RuleIndex, doubt, tenant
from nvshared.units import GIB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nvshared.conf"


def read(file: Path, text: str) -> Config:
    file.write_text(text)
    return load(file, {}, {})


def test_rules_of_a_config_file_are_read_with_the_line_number(
        file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "total", lambda: 80 * GIB)
    found = read(file, """
[tenant user:*]
memory-limit = 60GiB
compute-limit = 50%
[gpu]
tq = 3
[tenant   unit:jupyter-*.service ]
weight = 50
host-memory-limit = 25%
priority = high
[tenant group:staff]
memory-limit = none
compute-limit = none
neighbour-limit = off
""")
    assert found.tq == 3_000_000
    assert found.rules == (
        Rule("user:*", "memory-limit", 60 * GIB, f"{file}:3"),
        Rule("user:*", "compute-limit", 50, f"{file}:4"),
        Rule("unit:jupyter-*.service", "weight", 50, f"{file}:8"),
        Rule("unit:jupyter-*.service", "host-memory-limit", 20 * GIB, f"{file}:9"),
        Rule("unit:jupyter-*.service", "priority", 3, f"{file}:10"),
        Rule("group:staff", "memory-limit", 0, f"{file}:12"),
        Rule("group:staff", "compute-limit", 100, f"{file}:13"),
        Rule("group:staff", "neighbour-limit", 1, f"{file}:14"))


GIVE = "user:NAME, unit:NAME, container:NAME, job:ID or pod:NAMESPACE/NAME"


@pytest.mark.parametrize(("text", "sentence"), [
    ("[tenant user:*]\nmemroy-limit = 1\n",
     ":2: [tenant user:*] has no setting 'memroy-limit'; did you mean memory-limit?"),
    ("[tenant user:*]\ntq = 1\n",
     ":2: [tenant user:*] has no setting 'tq'; it belongs under [gpu]"),
    ("[tenant user:*]\nhost-memory-limit = 0%\n",
     ":2: host-memory-limit cannot be '0%'; give more than 0%, or none"),
    ("[tenant user:*]\nmemory-limit = 0\n", ":2: memory-limit cannot be '0'; "
     "give 1 to 18446744073709551615 bytes, or none"),
    ("[tenant user:*]\ncompute-limit = 101\n", ":2: compute-limit cannot be '101'; "
     "give a percentage of the time from 1 to 100, or none"),
    ("[tenant user:*]\nweight = none\n", ":2: weight cannot be 'none'; "
     "give a whole number from 1 to 1000"),
    ("[tenant]\n", f":1: [tenant] cannot be for ''; give group:NAME or a pattern of {GIVE}"),
    ("[tenant group:*]\n", ":1: [tenant group:*] cannot be for 'group:*'; "
     "name one group, as in group:staff"),
    ("[tenants user:a]\n", ":1: there is no section [tenants user:a]; "
     "there are gpu, nvshared, tenant PATTERN"),
    ("[tenant user:a]\nweight = 1\n[gpu]\n[tenant user:a]\nweight = 2\n",
     ":5: weight of [tenant user:a] contradicts {file}:2; leave one of them"),
    ("[tenant user:*]\ncompute-limit = 20\n[tenant user:a]\ncompute-request = 30\n",
     ":4: compute-request of [tenant user:a] contradicts {file}:2; 30 % are more than the limit "
     "of 20 %"),
    ("[tenant user:a]\ncompute-request = 60%\n[tenant job:7]\ncompute-request = 41%\n",
     ":4: compute-request of [tenant job:7] cannot be 41 % beside {file}:2 (60 %); together that "
     "is 101 % of the time"),
    ("[tenant user:a]\ncompute-request = 0\n", ":2: compute-request cannot be '0'; "
     "give a percentage of the time from 1 to 100, or none"),
])
def test_check_option_reports_a_wrong_rule_with_file_and_line(
        file: Path, text: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        read(file, text)
    assert str(raised.value) == str(file) + sentence.format(file=file)
    assert main(["--check", "--config", str(file)]) == ExitCode.BAD_CONFIG
    assert capfd.readouterr().err == f"nvshared: {raised.value}\n"


def test_check_option_names_users_and_groups_in_rules_that_the_machine_does_not_have(
        file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    read(file, "".join(f"[tenant {one}]\nweight = 7\n" for one in (
        "group:rooot", "group:root", "user:rooot", "user:root", "user:70000", "user:n*", "unit:a",
        "unit:xq-zz/*.service", "group:70000", "pod:lab/*", "user:rooot")))
    assert main(["--check", "--config", str(file)]) == ExitCode.OK
    assert capfd.readouterr().err.splitlines() == [
        f"{file}:{line}: there is no {name} now; the rule holds once there is"
        for line, name in ((2, "group 'rooot'"), (6, "user 'rooot'"), (16, "user 'xq-zz'"))]


@pytest.mark.parametrize(("word", "name", "found", "words"), [
    ("user", "2001", 3005, "2001 is the user with this number, not the user that is called so: "
     "that is user:3005"),
    ("group", "50", 51, "50 is the group with this number, not the group that is called so: that "
     "is group:51"),
    ("user", "2001", 2001, ""), ("user", "2001", None, ""), ("user", "alice", 1000, ""),
])
def test_rule_for_a_number_that_another_user_is_called_is_named_as_doubtful(
        word: str, name: str, found: int | None, words: str) -> None:
    assert doubt(word, name, found) == words


def test_check_option_prints_all_errors_of_a_config_at_once(
        file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = file.with_name("nvshared.conf.d")
    folder.mkdir()
    (folder / "a.conf").write_text("[gpu]\ntq = never\nno\n")
    file.write_text(
        "[tenant user:*]\nweight = 0\nmemory-limit = 1GiB\nmemory-limit = 2GiB\n[gpus]\n"
        "tq = no\n[gpu\n")
    assert main(["--check", "--config", str(file)]) == ExitCode.BAD_CONFIG
    messages = [line.partition(": ")[2] for line in capfd.readouterr().err.splitlines()]
    assert [line.partition(": ")[0] for line in messages] == [
        f"{file}:2", f"{file}:5", f"{file}:7", f"{folder}/a.conf:2", f"{folder}/a.conf:3",
        f"{file}:4"]


@pytest.mark.parametrize("text", [
    "[tenant user:*]\ncompute-request = 60\n[tenant user:a]\ncompute-request = 60\n",
    "[tenant user:a]\ncompute-request = 60\n[tenant user:a]\ncompute-request = 60\n",
    "[tenant user:*]\ncompute-limit = 20\n[tenant user:a]\ncompute-limit = none\n"
    "compute-request = 60\n",
    "[tenant group:a]\ncompute-request = 60\n[tenant group:b]\ncompute-request = 60\n",
])
def test_rules_with_jointly_possible_compute_requests_are_accepted(file: Path, text: str) -> None:
    read(file, text)


def test_rule_of_a_later_file_or_line_overrides_an_equally_specific_rule(file: Path) -> None:
    folder = file.with_name("nvshared.conf.d")
    folder.mkdir()
    (folder / "a.conf").write_text("[tenant user:a]\nweight = 2\n")
    found = read(file, "[tenant user:a]\nweight = 1\n").rules
    assert [rule.value for rule in RuleIndex(found).holding(("user:a",))] == [2, 1]
    rules = [Rule("user:a*", "weight", 1, "1"), Rule("user:*e", "weight", 2, "2")]
    assert [rule.value for rule in RuleIndex(rules).holding(("user:ae",))] == [2, 1]


@pytest.mark.parametrize(("name", "groups", "order"), [
    ("user:alice", (), ["user:alice", "user:al*", "user:*"]),
    ("user:alice", ("staff", "b"), ["user:alice", "group:b", "group:staff", "user:al*", "user:*"]),
    ("user:bob", ("staff",), ["group:staff", "user:?ob", "user:*"]),
    ("user:rob", (), ["user:?ob", "user:*"]),
    ("unit:a.service", (), ["unit:?.service", "unit:*"]),
    ("unit:alice/a.service", (), ["unit:*/*.service", "unit:alice/*"]),
    ("pod:lab/train", (), ["pod:lab/*"]),
    ("container:user", (), []),
])
def test_most_specific_rule_that_matches_a_tenant_is_applied(
        name: str, groups: tuple[str, ...], order: list[str]) -> None:
    patterns = (
        "user:alice", "group:staff", "group:b", "user:*", "user:al*", "user:?ob", "unit:*",
        "unit:?.service", "unit:alice/*", "unit:*/*.service", "pod:lab/*")
    rules = [Rule(one, "weight", 1, "") for one in patterns]
    assert [rule.pattern for rule in RuleIndex(rules).holding((name,), groups)] == order


def test_rule_by_number_matches_the_number_and_wildcards_match_names_alone() -> None:
    patterns = ("user:1000", "user:1*", "user:al*", "unit:1000/*.service", "unit:1*/*")
    rules = [Rule(one, "weight", 1, "") for one in patterns]
    found = RuleIndex(rules).holding(("user:alice",), (), ("user:1000",))
    assert [rule.pattern for rule in found] == ["user:1000", "user:al*"]
    found = RuleIndex(rules).holding(("unit:alice/a.service",), (), ("unit:1000/a.service",))
    assert [rule.pattern for rule in found] == ["unit:1000/*.service"]
    # A number that no user has, or whose user is not known now, counts as the name.
    found = RuleIndex(rules).holding(("user:1000",), (), ("user:1000",))
    assert [rule.pattern for rule in found] == ["user:1000", "user:1*"]


def test_tenant_with_a_user_of_digits_has_that_number_and_no_name_is_looked_up(
        monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("getpwnam", "getpwuid"):
        monkeypatch.delattr(f"pwd.{name}")
    assert tenant("user:0") == "user:0"
    assert tenant("user:0070000") == "user:70000"
    assert tenant("unit:0042/a.service") == "unit:42/a.service"
    assert tenant("container:42/9f1c") == "container:42/9f1c"
    assert tenant("user:alice") == "user:alice"
    assert tenant("unit:0") == "unit:0"
    assert tenant("job:007") == "job:007"


@pytest.mark.parametrize(("text", "hint"), [
    *((text, f"give {GIVE}") for text in ("alice", "user:", "usr:alice", "user:a\nb")),
    ("group:staff", r"a group has rules: \[tenant group:NAME\] in nvshared.conf"),
    ("user:4294967295", "give a user's number of at most 4294967294, or the user's name"),
    ("unit:99999999999/x.service", "give a user's number of at most 4294967294"),
    ("user:*", r"a pattern is for rules: \[tenant PATTERN\] in nvshared.conf"),
])
def test_invalid_tenant_name_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        tenant(text)
