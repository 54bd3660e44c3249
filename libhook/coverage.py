# SPDX-License-Identifier: Apache-2.0
"""Which functions of the driver the library stands in front of, what it does there, and what
tests it: python -m libhook.coverage writes COVERAGE.md.

With the path of a libcuda.so.1 it lists instead what that driver exports and this table does not
know: a newer driver's new functions, of which nobody has decided yet whether they need a hook.

The table is made of what is there already: the hooks (src/driver/hooks.def), the reasons for
having none (src/driver/unhooked.def), the entry points of a real driver
(tests/hook/entry_points.txt), the tests' own text, and the wrappers after the preprocessor, where
it is seen which parts of the library each calls.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from libhook.tests.hook import recorded_driver as recorded

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "src"
TABLE = FOLDER / "COVERAGE.md"
GATED = "api/gated.c"

# What a wrapper does is seen from what it calls, itself or through functions of its own file.
DOES = {
    "gated": "gate_enter",
    "counted": "pinned_(?!end)|pools_recount|driver_pool_",
    "swapped": "memory_allocate|memory_free|managed_allocate|managed_free"
               "|vmm_(?!access_of|range_of|properties|mapped_in|pin_)"
               "|pool_(?!of|add_figures)",
    "pinned": "vmm_pin_(in_place|range_in_place)|ipc_export_pin",
    "shared": "ipc_(export|import_(open|close))",
    "peers": "peer_access",
    "answered": "memory_(describe|information|total|is_ours|set_sync_memops)"
                "|managed_last_prefetch"
                "|vmm_(access_of|range_of|properties|mapped_in)|pool_(of|add_figures)",
    "context": "client_attach|client_awaits_context|context_ends",
    "capture": "capture_(new|over)",
    "repeated": "room_begin",
    "translated": "hook_wrapper",
}
LEGEND = """\
* **gated**: waits at the gate until the program may use the GPU, and is seen inside while it calls
  the driver.
* **swapped**: the memory is the library's, which leaves the card and comes back at the same
  address.
* **pinned**: memory that could leave the card is kept there from then on, as others will hold its
  physical address.
* **shared**: the memory is passed to the other process as a descriptor, and stays on the card.
* **peers**: which GPUs may reach the memory is known, and so again after each return.
* **counted**: the memory is the driver's and stays; it is taken when there is room, and counted
  until it is given back.
* **answered**: what the program asks about its memory is answered as the driver would answer for
  its own.
* **context**, **capture**: the library follows which contexts exist, and whether a capture is going
  on.
* **repeated**: where the driver has no memory for itself, others make room, and it is called again.
* **noted**: remembered for what another of the functions here will do.
* **translated**: the entry point that the driver returns is exchanged for its wrapper.
"""
EVERY = """\
What every hook is tested for, in `tests/hook`, against a driver that tells which of its entry
points was called:

* found by a program linked with the driver, by `dlopen` and `dlsym`, and from constructors that run
  before the library's own (`test_interposition_ways`);
* found through `cuGetProcAddress` and `cuGetProcAddress_v2` with every CUDA version and default
  stream for which a real driver's answers were recorded (`test_interposition_entry_points`);
* hands its arguments to its own entry point and the result back
  (`test_interposition_entry_points`);
* is declared as in NVIDIA's `cuda.h` (`test_interposition_list`).

The last column names what looks at more than that: the files `test_interposition_*.py` there, the
programs `random`, `stress` and `workload`, and the fuzzer. Programs of every kind on the simulated
and on real cards (`tests/integration`, `tests/gpu`) are not listed by function.
"""
# Where to look for a function's name, and how the table calls it.
TESTS = (
    ("tests/hook/test_*.py", ""),
    ("tests/random/*.[ch]", "random"),
    ("tests/stress/*.[ch]", "stress"),
    ("tests/fuzz/*.[ch]", "fuzz"),
    ("demo/*.c", "workload"),
)
NOT_TESTS = {"test_interposition_coverage"}
# Of the driver, but not of its interface for computing.
FOREIGN = re.compile(r"cu(?![A-Z])|cu(GL|EGL|VDPAU|D3D\d+|WGL|Graphics)|cuda|cuProfilerInit")
SUFFIX = re.compile(r"((?:_v\d+)?(?:_ptsz|_ptds)?)$")


def base(entry: str) -> str:
    """The function that an entry point is a version or variant of."""
    return SUFFIX.sub("", entry)


@cache
def reasons() -> dict[str, str]:
    """The patterns of unhooked.def with their reasons."""
    lines = (SOURCE / "driver" / "unhooked.def").read_text().splitlines()
    pairs = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a pattern stands twice in unhooked.def")
    return dict(pairs)


def reason(entry: str) -> str | None:
    """Why this entry point has no hook; None: unhooked.def does not say."""
    return next((why for pattern, why in reasons().items() if fnmatchcase(entry, pattern)), None)


def exported(driver: Path) -> set[str]:
    """The names of the functions that a libcuda.so.1 exports.

    Raises subprocess.CalledProcessError if it is no shared library.
    """
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", driver], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] in "TtWi"}


def unknown(names: set[str]) -> list[str]:
    """Those of a driver's functions about which nothing is written down anywhere."""
    known = set(recorded.entries()) | set(recorded.hooks())
    return sorted(
        name for name in names - known
        if name.startswith("cu") and not FOREIGN.match(name) and reason(name) is None
    )


@dataclass(frozen=True, slots=True)
class Section:
    """Hooks whose wrappers are in one file."""

    title: str
    file: str
    hooks: list[str]


def sections() -> list[Section]:
    """Those of hooks.def, in its order."""
    parts = re.split(r"^/\* ([^*]*): (\w+/\w+\.c) \*/$", recorded.HOOKS.read_text(), flags=re.M)
    return [
        Section(title, file, list(recorded.hooks(text)))
        for title, file, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    ]


@cache
def bodies(file: str) -> dict[str, str]:
    """Every function that a file of src/ defines or includes, macros expanded."""
    text = subprocess.run(
        ["gcc", "-E", "-P", f"-I{FOLDER / 'include'}", f"-I{FOLDER / 'src'}", str(SOURCE / file)],
        capture_output=True, text=True, check=True,
    ).stdout
    found: dict[str, str] = {}
    for start in re.finditer(r"\b(\w+)\s*\([^(){};]*(?:\([^(){};]*\)[^(){};]*)*\)\s*\{", text):
        depth, end = 1, start.end()
        while depth > 0:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if start[1] not in ("if", "for", "while", "switch"):
            found.setdefault(start[1], text[start.end() : end])
    return found


def calls(file: str, function: str) -> set[str]:
    """What `function` calls, itself and through others of its file, up to the first in DOES."""
    marks = re.compile("|".join(DOES.values()))
    seen: set[str] = set()
    left = [function]
    while left:
        for called in re.findall(r"\b(\w+)\s*\(", bodies(file).get(left.pop(), "")):
            if called not in seen:
                seen.add(called)
                if not marks.match(called):
                    left.append(called)
    return seen


def file_of(section: Section, hook: str) -> str:
    """The file that has the wrapper."""
    return section.file if hook in bodies(section.file) else GATED


def does(section: Section, hook: str) -> list[str]:
    """What the wrapper does, in the words of the legend."""
    called = calls(file_of(section, hook), hook)
    return [word for word, mark in DOES.items() if any(re.match(mark, name) for name in called)]


@cache
def texts() -> dict[str, set[str]]:
    """The words of each test, by the name that the table has for it."""
    found: dict[str, set[str]] = {}
    for pattern, name in TESTS:
        for path in sorted(FOLDER.glob(pattern)):
            if path.stem not in NOT_TESTS:
                words = set(re.findall(r"\bcu[A-Z]\w+", path.read_text()))
                short = name or path.stem.removeprefix("test_interposition_")
                found.setdefault(short, set()).update(words)
    return found


def only_gated(done: list[str]) -> bool:
    """It waits at the gate, and unless memory runs out that is all."""
    return done in (["gated"], ["gated", "repeated"])


def tested_by(hook: str, done: list[str]) -> list[str]:
    """The tests that look at this hook in particular."""
    found = {name for name, words in texts().items() if hook in words}
    if only_gated(done):
        found.add("coverage")
    return sorted(found)


def entry_points(names: list[str]) -> str:
    """`cuMemcpy`, `_ptds`: the first in full, of the rest what differs."""
    function = base(names[0])
    return ", ".join(f"`{name.removeprefix(function) or 'plain'}`" for name in names)


def rows(section: Section) -> Iterator[str]:
    """The section's part of the table: a line for all variants to which the same is done."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for hook in section.hooks:
        done = does(section, hook)
        tests = ", ".join(tested_by(hook, done))
        grouped.setdefault((base(hook), ", ".join(done) or "noted", tests), []).append(hook)
    for (function, done_words, tests), names in grouped.items():
        yield f"| `{function}` | {entry_points(names)} | {done_words} | {tests} |"


def table() -> str:
    """COVERAGE.md."""
    hooks, entries = recorded.hooks(), recorded.entries()
    without = [entry for entry in entries if entry not in hooks and reason(entry)]
    harmless = [entry for entry in entries if entry not in hooks and not reason(entry)]
    functions = {base(hook) for hook in hooks}
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Made by python -m libhook.coverage; a test fails when it is out of date. -->",
        "# What the library does with each function of the driver",
        "",
        f"{len(functions)} functions in {len(hooks)} versions and variants are hooked, "
        f"{len(without)} more of the {len(entries)} entry points of the driver of CUDA "
        f"{recorded.LATEST // 1000}.{recorded.LATEST % 1000 // 10} have a reason for having no "
        f"hook, and {len(harmless)} neither submit work nor take, give "
        "back or touch device memory nor tell of it. Variants: `plain` is the function's own "
        "name, `_v2` and so on are later versions, `_ptsz` and `_ptds` are for programs whose "
        "default stream is one per thread.",
        "",
        LEGEND,
        EVERY,
        "## Hooked",
    ]
    for section in sections():
        lines += ["", f"### {section.title} (`src/{section.file}`)", ""]
        lines += ["| function | entry points | what is done | looked at by |", "|---|---|---|---|"]
        lines += rows(section)
    lines += ["", "## Not hooked, and why", ""]
    lines += ["| functions | entry points | reason |", "|---|---|---|"]
    for pattern, why in reasons().items():
        fitting = [entry for entry in without if fnmatchcase(entry, pattern)]
        named = ", ".join(f"`{entry}`" for entry in fitting)
        lines.append(f"| `{pattern}` | {named or 'none of this driver'} | {why} |")
    lines += ["", "## Neither submit nor concern device memory", ""]
    lines += [", ".join(f"`{entry}`" for entry in harmless) + "."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the table, or lists what a driver exports and it does not know."""
    if len(sys.argv) > 1:
        names = unknown(exported(Path(sys.argv[1])))
        print("\n".join(names) or f"{sys.argv[1]} exports nothing that is not in {TABLE.name}")
        return 1 if names else 0
    TABLE.write_text(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
