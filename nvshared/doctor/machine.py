# SPDX-License-Identifier: Apache-2.0
"""Checks the installation, host memory for swapped memory, and Kubernetes' static pods."""

import json
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from nvshared import __version__, library
from nvshared.doctor.cards import Seen
from nvshared.doctor.finding import Finding, fault, note, ok, warning
from nvshared.errors import NvshareError
from nvshared.machine import host
from nvshared.names import KUBELET_STATE, WITHOUT_GPU
from nvshared.preload import switch, trial
from nvshared.preload.tree import Tree
from nvshared.quantity import rounded
from nvshared.settings import files
from nvshared.settings.config import Config
from nvshared.units import GIB

MACHINE = Tree(Path("/"))


def installed() -> Iterator[Finding]:
    """Findings about nvsharectl, libnvshare.so, and the lists of preloaded libraries."""
    yield ok("nvsharectl", f"version {__version__}, in {Path(__file__).parents[1]}")
    yield _library()
    yield _preload()
    for entry in os.environ.get(library.PRELOAD, "").replace(":", " ").split():
        if Path(entry).name == library.HOOK:
            yield note("environment", f"LD_PRELOAD names {entry} here")


def _library() -> Finding:
    try:
        path = library.hook().resolve()
        trial.check(MACHINE, path)
    except NvshareError as error:
        return fault("library", error.message, error.hint or "install it again")
    return ok("library", f"{path} can be loaded by this machine's programs")


def _preload() -> Finding:
    try:
        state = switch.look(MACHINE)
    except NvshareError as error:
        return warning("preload", error.message, error.hint or "see: nvsharectl preload status")
    if state.fault:
        return fault(
            "preload", f"{state.place} has a fault: {state.fault}",
            "repair it with: nvsharectl preload enable, or disable",
        )
    if state.enabled:
        return ok("preload", f"every program loads {state.entries[0]}, listed in {state.place}")
    return note(
        "preload", "only programs that are started with the library share their GPU",
        "for one program: nvsharectl run -- PROGRAM; for every program: nvsharectl preload enable",
    )


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PLENTY = GIB                            # bytes; a program may reach a lower limit of locked memory


def host_memory(seen: Seen) -> Iterator[Finding]:
    """Findings about the swap budget, huge pages, and the limit of locked memory."""
    yield _budget(sum(card.facts.memory_total for card in seen.cards))
    yield _huge_pages()
    yield _locked()


def neighbour_mode() -> str:
    """The setting `neighbour`; off if `tiers` excludes it; the default if the file is invalid."""
    try:
        config = files.load(None, os.environ, {})
    except NvshareError:
        config = Config()
    return config.neighbour if "neighbour" in config.tiers else "off"


def _budget(cards: int) -> Finding:
    """The finding about the swap budget. `cards`: bytes of all cards together."""
    topic = "swap budget"
    try:
        settings = files.load(None, os.environ, {})
    except NvshareError as error:
        return fault(
            "configuration", error.message.replace("\n", "; "),
            error.hint or "correct it, see with nvshared --check, and restart nvshared",
        )
    total, free = host.total(), host.free()
    if settings.swap_budget is None:
        budget, how = host.safe_budget(), "80 % of the free memory, for a daemon that starts now"
    else:
        budget, how = settings.swap_budget.of(total), "as configured"
    words = f"{rounded(budget)} of host memory, {how}"
    more = "give more with swap-budget in /etc/nvshare/nvshared.conf, or add memory"
    if budget > total:
        return fault(topic, f"{words}, and the host has {rounded(total)}", "configure less")
    if budget > free:
        return warning(
            topic, f"{words}, of which {rounded(free)} are free now",
            "swapped memory could exhaust host memory: configure less",
        )
    if budget < cards:
        return warning(
            topic, f"{words}, less than the {rounded(cards)} of the cards",
            f"programs together can have {rounded(cards + budget)} at most: {more}",
        )
    return ok(topic, words)


def _huge_pages() -> Finding:
    topic = "huge pages"
    try:
        text = HUGE_PAGES.read_text()
    except OSError:
        return note(topic, "this kernel has no transparent huge pages",
                    "allocating host memory takes longer")
    chosen = re.search(r"\[(\w+)\]", text)
    word = chosen[1] if chosen else "unknown"
    if word in ("always", "madvise"):
        return ok(topic, f"transparent huge pages: {word}")
    return warning(
        topic, f"transparent huge pages: {word}, so host memory is allocated several times slower",
        f"echo madvise > {HUGE_PAGES}; permanently: the kernel option transparent_hugepage=madvise",
    )


def _locked() -> Finding:
    topic = "locked memory"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return ok(topic, "no limit")
    words = f"{soft >> 10} KiB for programs started from here"
    if soft >= PLENTY:
        return ok(topic, words)
    return note(
        topic, words,
        "if a program fails to pin host memory, raise the limit: ulimit -l unlimited, or "
        "LimitMEMLOCK=infinity in its unit",
    )


FILE = Path(KUBELET_STATE) / WITHOUT_GPU


def static_pods() -> Iterator[Finding]:
    """A finding for each static pod that lacks its GPU; none without Kubernetes."""
    try:
        for words, advice in json.loads(FILE.read_text()):
            yield warning("static pod", words, advice)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        yield warning("static pod", f"{FILE} cannot be read: {error}", "restart nvshare-kubelet")
