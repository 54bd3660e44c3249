# SPDX-License-Identifier: Apache-2.0
"""Runs the sections of conformance.txt. The head of that file explains the format.

    python3 -m libhook.tests.simulator.conformance [SECTION...]     asks the driver of this machine
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

HERE = Path(__file__).parent
LIBHOOK = HERE.parents[1]
KERNELS = LIBHOOK / "demo" / "kernels.ptx"
QUESTION = re.compile(r"( *)(.*) => (.*)")
HANDLER = "_handler"
DRIVER = """
#include "nvshare/cuda_types.h"
#define HOOK(name, parameters) CUresult name parameters;
#include "../driver.def"
#undef HOOK
"""
Runs = dict[str, list[str]]              # the lines of each run


def read_sections(script: str = "conformance") -> Runs:
    """The lines of each run. A section without columns is one run; with columns, one run for each
    name."""
    runs: Runs = {}
    text = re.sub(r"^#.*\n", "", (HERE / f"{script}.txt").read_text(), flags=re.MULTILINE)
    for section in re.split(r"^\[", text, flags=re.MULTILINE)[1:]:
        head, *lines = section.rstrip().splitlines()
        name, _, columns = head.removesuffix("]").partition(":")
        for column, names in enumerate(columns.split("|")):
            for one in names.split(",") if columns else [""]:
                run = "_".join(filter(None, (name, one.strip())))
                runs[run] = [in_column(line, column, one.strip()) for line in lines]
    return runs


def in_column(line: str, column: int, name: str) -> str:
    """A line of a section for the run `name`: with the answer of its column only."""
    if question := QUESTION.fullmatch(line):
        answers = question[3].split(" | ")
        return f"{question[1]}{question[2]} => {answers[column if len(answers) > 1 else 0]}"
    return line.replace("COLUMN", name)


def questions(runs: Runs, run: str) -> list[str]:
    """The questions of a run with their answers, in the order in which they are asked."""
    return [line.strip() for line in runs[run] + runs.get(run + HANDLER, [])
            if QUESTION.fullmatch(line)]


def in_c(line: str) -> str:
    """The C code of a line of a section; the recorded answer decides what a question prints."""
    if question := QUESTION.fullmatch(line):
        prints = "print_number" if re.fullmatch(r"-?\d+", question[3]) else "print_result"
        return f"{question[1]}{prints}({question[2]});"
    return line


def define_names() -> list[str]:
    """Lines of C that define each function's name as its latest version, as cuda.h does. The latest
    cuLaunchHostFunc is newer than the recorded driver."""
    listed = subprocess.run(
        ["gcc", "-E", "-P", "-x", "c", "-"], capture_output=True, text=True, check=True,
        input=f'#define HOOK(name, parameters) name\n#include "{HERE.parent}/driver.def"\n').stdout
    latest: dict[str, int] = {}
    for name, version in re.findall(r"(\w+)_v(\d+)\b", listed):
        latest[name] = max(int(version), latest.get(name, 0))
    return ["#define cuGraphInstantiate cuGraphInstantiateWithFlags",
            *(f"#define {name} {name}_v{version}" for name, version in latest.items()
              if name not in ("cuGraphInstantiate", "cuLaunchHostFunc"))]


def build(runs: Runs, folder: Path, *flags: str) -> Path:
    """Compiles all runs to one program in `folder`."""
    program = folder / "conformance"
    sections = " ".join(f"SECTION({run})" for run in runs)
    source = [DRIVER, *define_names(), f"#define SECTIONS {sections}", '#include "conformance.h"']
    for run, lines in runs.items():
        source += [f"static void {run}(void)", "{", *map(in_c, lines), "}"]
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
         f"-I{LIBHOOK / 'include'}", f"-I{HERE}", f'-DKERNELS_PTX="{KERNELS}"', "-x", "c", "-",
         "-x", "none", "-o", program, *flags],
        input="\n".join(source) + "\n", text=True, check=True)
    return program


def ask(
    program: Path, runs: Runs, run: str, environment: Mapping[str, str] | None = None,
) -> list[str]:
    """The questions of a run with the answers of the driver that the program loads."""
    done = subprocess.run(
        [program, run], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    answers = done.stdout.splitlines()
    if done.returncode != 0:
        answers.append(f"ended by signal {-done.returncode}" if done.returncode < 0
                       else f"exit code {done.returncode}")
    expressions = [line.partition(" => ")[0] for line in questions(runs, run)]
    return [" => ".join(pair) for pair in zip_longest(expressions, answers, fillvalue="missing")]


def main() -> int:
    wrong, runs = 0, read_sections()
    with tempfile.TemporaryDirectory() as folder:
        program = build(runs, Path(folder), "-lcuda")
        for run in sys.argv[1:] or [run for run in runs if not run.endswith(HANDLER)]:
            for pair in zip_longest(questions(runs, run), ask(program, runs, run)):
                if pair[0] != pair[1]:
                    wrong += 1
                    print(f"{run}: recorded {pair[0]}\n{run}: answered {pair[1]}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
