# SPDX-License-Identifier: Apache-2.0
"""Manual pages: examples run, lists are complete, and mandoc and groff accept the pages."""

import argparse
import asyncio
import importlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from nvshared.bus import Publication
from nvshared.cli.main import VERBS
from nvshared.errors import ExitCode, NvshareError
from nvshared.kubelet import claims, ready, settings
from nvshared.kubelet.annotations import ANNOTATION_TERMS
from nvshared.names import (
    BUS_VARIABLE,
    DEBUG_VARIABLE,
    KUBELET_STATE,
    SOCKET_VARIABLE,
    WITHOUT_GPU,
    client_path,
)
from nvshared.settings.config import options
from nvshared.sharing.manager import Manager
from nvshared.terms import TERMS
from nvshared.units import SECOND
from tests.bus.service import PrivateBus, a_client

ROOT = Path(__file__).parents[2]
MAN = ROOT / "packaging" / "man"
PAGES = sorted(path.name.removesuffix(".in") for path in MAN.glob("*.in"))
sys.path.append(str(MAN))               # of page.py and its modules


@cache
def page(name: str) -> str:
    text = importlib.import_module("page").completed(MAN / f"{name}.in", "1.0", "/lib/x")
    assert isinstance(text, str)
    return text


def plain(text: str) -> str:
    for mark, meant in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ti", "~"), (r"\e", "\\"), (r"\&", "")):
        text = text.replace(mark, meant)
    return text


async def test_man_page_com_nvshare_has_an_example_client_that_runs(
        manager: Manager, publication: Publication, private: PrivateBus) -> None:
    program = (MAN / "client.py").read_text()
    assert program.rstrip("\n") in plain(page("com.nvshare.5"))
    assert max(map(len, program.splitlines())) <= 80
    first = a_client(manager, manager.gpus[0])
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(MAN / "client.py"), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": private.address, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line.decode() == f"{client_path(first.id)} {first.peer.pid} idle\n"
    said = asyncio.ensure_future(process.stdout.readline())
    arrived: list[str] = []
    while not said.done():              # the example may print before it listens for signals
        arrived.append(client_path(a_client(manager, manager.gpus[1]).id))
        await asyncio.wait([said], timeout=0.2)
    assert said.result().decode().removesuffix(" came\n") in arrived
    assert await process.wait() == 0
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [20, 20]


@pytest.mark.parametrize("name", PAGES)
def test_man_page_is_rendered_by_mandoc_and_groff_without_warnings(
        name: str, tmp_path: Path) -> None:
    text = page(name)
    assert argparse.SUPPRESS not in text
    assert not re.findall(r"@[A-Z]+@", text)
    for tool in (["mandoc", "-Tlint", "-Wwarning"], ["groff", "-man", "-Tutf8", "-ww", "-z"]):
        if shutil.which(tool[0]):
            path = tmp_path / name
            path.write_text(text)
            ended = subprocess.run([*tool, str(path)], check=False, capture_output=True, text=True)
            assert ended.stdout + ended.stderr == ""


def test_man_page_nvshared_conf_describes_every_setting_and_placeholder() -> None:
    text = plain(page("nvshared.conf.5"))
    for option in options():
        assert f"\\fB{option.name} = " in text
        assert option.variable in text
        assert option.variable_words in text
        assert option.metavar not in ("SIZE", "TIME", "PERCENT") or f".I {option.metavar}\n" in text
    for term in TERMS:
        assert f"\\fB{term} = " in text
    assert text.count(".SS [") == len({option.section for option in options()})


def test_man_page_nvshare_kubelet_describes_every_annotation_and_kept_file() -> None:
    text = plain(page("nvshare-kubelet.8"))
    assert [name for name in ANNOTATION_TERMS if f"{name} = " not in text] == []
    for name in (claims.FILE, ready.FILE, settings.KEPT, WITHOUT_GPU):
        assert f"{KUBELET_STATE}/{name}" in text


def test_man_page_nvshared_conf_names_only_existing_settings_terms_and_verbs() -> None:
    known = {*(one.name for one in options()), *TERMS, *(verb.name for verb in VERBS)}
    bold = re.findall(r"^\.BR? (?!systemctl)(.+)$", (MAN / "nvshared.conf.5.in").read_text(),
                      re.MULTILINE)
    names = {name.replace("\\", "") for line in bold
             for name in re.findall(r"(?<![\w\\-])[a-z]+(?:\\-[a-z]+)+", line)}
    assert len(names) > 5
    assert names - known == set()


def test_man_page_nvsharectl_describes_every_verb_example_and_environment_variable() -> None:
    text = plain(page("nvsharectl.1"))
    for verb in VERBS:
        assert f"nvsharectl {verb.name}" in text
        for command, _ in verb.examples:
            assert command in text
    for variable in (BUS_VARIABLE, SOCKET_VARIABLE, DEBUG_VARIABLE):
        assert f"\n.B {variable}\n" in text
    # In names and commands, roff must print ASCII hyphens.
    assert "\nlibnvshare.so as the system's programs find it" in text
    assert "\nThe same as: nvsharectl anti-thrash." in text
    assert "--set-tq TIME|auto" in text


def test_man_pages_explain_every_exit_status() -> None:
    text = page("nvsharectl.1") + page("nvshared.8")
    explained = {int(number) for line in re.findall(r"^\.BR? (\d[^\n]*)", text, re.MULTILINE)
                 for number in re.findall(r"\d+", line)}
    assert explained == set(ExitCode)


def test_man_page_com_nvshare_names_only_existing_dbus_errors() -> None:
    def names(kind: type[NvshareError]) -> set[str]:
        return {kind.bus_name}.union(*map(names, kind.__subclasses__()))

    listed = set(re.findall(r"^\.B (\S+Error\.\S+)", page("com.nvshare.5"), re.MULTILINE))
    assert {"com.nvshare.Error.NoSuchGPU", "com.nvshare.Error.GPULost"} < listed
    assert listed <= names(NvshareError)
