# SPDX-License-Identifier: Apache-2.0
"""Sources of settings, and the message for each mistake."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared import daemon
from nvshared.errors import ConfigError, ExitCode, InvalidArgs
from nvshared.kubelet import options
from nvshared.names import POLICIES
from nvshared.quantity import Amount
from nvshared.settings import config
from nvshared.settings.config import Config, load
from nvshared.units import GIB

*MOST_POLICIES, LAST_POLICY = POLICIES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nvshared.conf"
    path.write_text("# SPDX\n[gpu]\ntq = 11\ncapacity=40GiB\n")
    return path


def drop_in(file: Path, name: str, text: str) -> Path:
    folder = file.with_name(file.name + ".d")
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_config_of_a_later_source_overrides_earlier_sources_and_defaults(
        file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", file.with_name("none.conf"))
    assert load(None, {}, {}) == Config()
    assert load(file, {}, {}).tq == 11_000_000
    drop_in(file, "10.conf", "[gpu]\ntq = 12\n")
    drop_in(file, "20.conf", "[gpu]\ntq = 13\n[nvshared]\nsocket = /run/a\n")
    drop_in(file, "30.txt", "not read")
    read = load(file, {}, {})
    assert (read.tq, read.capacity, read.socket) == (13_000_000, Amount(40 * GIB), Path("/run/a"))
    assert load(file, {"NVSHARE_SOCKET": "/run/b"}, {}).socket == Path("/run/b")
    assert load(file, {"NVSHARE_SOCKET": "/run/b"}, {"socket": "/run/c"}).socket == Path("/run/c")
    assert load(file, {}, {"tq": "14"}).tq == 14_000_000
    drop_in(file, "40.conf", "[gpu]\ntq = auto\n")
    assert load(file, {}, {}).tq is None


def test_variables_and_options_of_the_original_nvshare_are_accepted(file: Path) -> None:
    assert load(file, {"NVSHARE_DEBUG": "1"}, {}).debug
    assert not load(file, {"NVSHARE_DEBUG": ""}, {}).debug
    assert load(file, {"NVSHARE_METRICS_ENABLE": "1"}, {}).metrics == ("", 9402)
    assert load(file, {"NVSHARE_METRICS_ENABLE": "0"}, {}).metrics is None
    read = load(file, {
        "NVSHARE_COMPUTE_WINDOW_MS": "500", "NVSHARE_QUOTA_SAMPLE_INTERVAL_MS": "5",
        "NVSHARE_QUOTA_CARRYOVER_PERCENT": "0", "NVSHARE_DROP_TAIL_BILLING_PERCENT": "10"}, {})
    assert (read.compute_window, read.quota_sample_interval) == (500_000, 5_000)
    assert (read.quota_carryover, read.drop_tail_billing) == (0, 10)


@pytest.mark.parametrize(("text", "sentence"), [
    ("[gpu]\ntq = 0\n", ":2: tq cannot be '0'; give whole seconds, such as 30, or a time of at "
     "least 1ms, such as 500ms or 2min (units: us, ms, s, min, h, d), or auto"),
    ("[gpu]\nreserve = " + "9" * 400 + "\n",
     f":2: reserve cannot be '{'9' * 400}'; "
     "give a size such as 40GiB or 512M, or a percentage such as 75%"),
    ("[gpu]\n\ntq 3\n", ":3: 'tq 3' is no setting; write NAME = VALUE"),
    ("[gpu]\ncapcity = 1\n", ":2: [gpu] has no setting 'capcity'; did you mean capacity?"),
    ("[nvshared]\ntq = 1\n", ":2: [nvshared] has no setting 'tq'; it belongs under [gpu]"),
    ("[gpus]\n", ":1: there is no section [gpus]; did you mean gpu?"),
    ("[gpu\ntq = 3\n", ":1: '[gpu' is no section; write [gpu], [nvshared] or [tenant PATTERN]"),
    ("tq = 3\n",
     ":1: 'tq' stands in no section; put it below [gpu], [nvshared] or [tenant PATTERN]"),
    ("[gpu]\npolicy = lifo\n",
     f":2: policy cannot be 'lifo'; give {', '.join(MOST_POLICIES)} or {LAST_POLICY}"),
    ("[gpu]\nanti-thrash = maybe\n", ":2: anti-thrash cannot be 'maybe'; give auto, on or off"),
    ("[gpu]\ncapacity = 0%\n",
     ":2: capacity cannot be '0%'; give at least 32MiB, a percentage above 0%, or card for all "
     "of it"),
    ("[gpu]\ncapacity = 10MiB\n",
     ":2: capacity cannot be '10MiB'; give at least 32MiB, a percentage above 0%, or card for all "
     "of it"),
    ("[gpu]\ncompute-window = 0\n", ":2: compute-window cannot be '0'; "
     "give a time of at least 1ms, such as 500ms or 2s"),
    ("[nvshared]\nbus = foo\n", ":2: bus cannot be 'foo'; give system, session, none, or an "
     "address such as unix:path=/run/bus"),
])
def test_config_file_with_an_invalid_line_is_refused_with_line_number_and_advice(
        file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert str(caught.value) == str(file) + sentence


@pytest.mark.parametrize("data", [
    b"\xef\xbb\xbf[gpu]\ntq = 11\n", b"[gpu]\r\ntq = 11\r\n", b"[gpu]\rtq = 11",
])
def test_config_file_of_an_editor_of_another_system_is_read(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert load(file, {}, {}).tq == 11_000_000


@pytest.mark.parametrize(("data", "said"), [
    (b"[nvshared]\nstate-dir = /var/\0lib\n", "'state-dir = /var/\\x00lib' has a character"),
    (b"[gpu]\ndisk = /\0, 1GiB\n", "has a character that no setting may have"),
    (b"[tenant group:a\x1b[31m]\n", "has a character that no setting may have"),
    (b"[gpu]\ntq = " + b"3" * 1_000_000, "the line has more than 4096 characters"),
    (b"[" + b"x" * 1_000_000, "the line has more than 4096 characters"),
    (b"x\n" * 400_000, "this line and further ones were not read"),
])
def test_config_file_with_a_line_of_any_content_is_refused_in_a_few_words(
        file: Path, data: bytes, said: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ConfigError) as refused:
        load(file, {}, {})
    assert said in str(refused.value)
    assert len(str(refused.value)) < 1 << 14


def test_invalid_variable_or_option_is_refused_and_named_in_the_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="the variable NVSHARE_DEBUG cannot be 'x'"):
        load(file, {"NVSHARE_DEBUG": "x"}, {})
    with pytest.raises(ConfigError, match="NVSHARE_COMPUTE_WINDOW_MS cannot be '2s'; give a pos"):
        load(file, {"NVSHARE_COMPUTE_WINDOW_MS": "2s"}, {})
    with pytest.raises(InvalidArgs, match="--tq cannot be 'x'"):
        load(file, {}, {"tq": "x"})


def test_config_path_that_is_missing_binary_or_unreadable_is_an_error(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tested paths also fail for root, although root may search and list every folder."""
    path = tmp_path / "a.conf"
    with pytest.raises(ConfigError, match=r"a\.conf cannot be read: No such file"):
        load(path, {}, {})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.conf is not text"):
        load(path, {}, {})
    path.write_text("[gpu]")
    drop_ins = tmp_path / "a.conf.d"
    drop_ins.symlink_to(drop_ins)
    with pytest.raises(ConfigError, match=r"a\.conf\.d cannot be read: Too many levels"):
        load(path, {}, {})
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match=r"x\.d cannot be read: File name too long"):
        load(None, {}, {})


@settings(max_examples=15)
@given(st.text(max_size=20))
def test_option_with_any_text_as_value_is_parsed_or_refused_with_advice(text: str) -> None:
    for option in config.options():
        sentence = "give "
        try:
            option.parse(text)
        except ValueError as error:
            sentence = str(error)
        assert sentence.startswith("give ")


@pytest.mark.parametrize("parse", [config.parse, options.parse])
def test_relative_path_in_a_removed_working_directory_is_refused_in_a_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parse: Callable[[list[str]], object]
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    parse(["--socket", "/run/sock"])
    with pytest.raises(InvalidArgs, match="'sock' is relative to the working directory, which was"):
        parse(["--socket", "sock"])


def test_every_setting_is_a_command_line_option_with_an_explanation() -> None:
    words = config.parser().format_help()
    for option in config.options():
        assert f"--{option.name}" in words
        assert option.help
        # The default named in --help is the value of Config() without configuration files.
        if option.default not in ("auto", "card"):
            assert option.parse(option.default) == getattr(Config(), option.name.replace("-", "_"))


def test_command_line_sets_only_the_given_options_with_absolute_paths() -> None:
    file, given, only_check = config.parse(
        ["--config", "x", "--socket", "a/b", "--trace", "none", "--debug"])
    assert (file, only_check) == (Path("x"), False)
    assert given == {"socket": str(Path("a/b").absolute()), "trace": "none", "debug": "on"}
    for line in (["--nonsense"], ["--tq"], ["stray"], ["--socket", ""]):
        with pytest.raises(InvalidArgs, match="see: nvshared --help"):
            config.parse(line)


@pytest.mark.parametrize(
    ("text", "words", "starts"),
    [("tq = 5", "", True), ("tq = soon", "conf:2: tq cannot be 'soon'", False),
     ("tick = 5", "conf:2", False), ("swap-budget = 1000000GiB", "conf:2: a swap-budget of", False),
     ("disk = /no/such/folder, 1GiB",
      "conf:2: the disk cannot be used: /no/such/folder: No such file or directory", True),
     ("disk = /dev/shm, 1GiB", "conf:2: the disk cannot be used: /dev/shm is on tmpfs", True),
     ("disk = /var/tmp, 9000000GiB", "are more than the file system of /var/tmp has", True)],
)
def test_check_option_validates_the_config_without_a_card_and_fails_if_the_daemon_would_not_start(
        tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, words: str, starts: bool,
) -> None:
    (tmp_path / "conf").write_text(f"[gpu]\n{text}\n")
    code = daemon.main(["--check", "--config", str(tmp_path / "conf")])
    said = capfd.readouterr()
    assert code == (ExitCode.OK if starts else ExitCode.BAD_CONFIG)
    assert words in said.err
    assert (said.out, len(said.err.splitlines())) == ("", bool(words))


def test_systemd_unit_names_a_single_state_directory() -> None:
    """systemd joins several directories with colons in the variable that the daemon reads."""
    unit = (Path(__file__).parents[2] / "systemd" / "nvshared.service").read_text()
    assert [line for line in unit.splitlines() if line.startswith("StateDirectory=")] == [
        "StateDirectory=nvshare"]
