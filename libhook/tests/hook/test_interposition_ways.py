# SPDX-License-Identifier: Apache-2.0
"""Programs, libraries, plugins and early constructors find the wrapper of each entry point: by
linking with the driver, by dlopen() and dlsym(), and by cuGetProcAddress with all recorded versions
and both kinds of default stream."""

from dataclasses import replace
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.programs import compile_c, run

# Prints, for each function linked, found by dlsym() or returned by cuGetProcAddress, the object
# that defines the function and the result of a call, which no other driver function returns.
SURVEY = """
#include <stdint.h>

/* The name of a function; of a stub, which has none, the number that its function returns. */
static const char *known(void *address)
{
    static char number[16];
    Dl_info info;
    if (address == NULL || dladdr(address, &info) == 0)
        return "nothing";
    snprintf(number, sizeof number, "%d", info.dli_sname == NULL ? call(address) : 0);
    return info.dli_sname == NULL ? number : info.dli_sname;
}

static int result(const char *name, void *entry)
{
    return strncmp(name, "cuGetProcAddress", 16) == 0 || strncmp(name, "cuIpcOpen", 9) == 0
        ? 0 : call(entry);
}

static void survey(const char *way)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (unsigned i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *name = entries[i].name;
        void *found = dlsym(driver, name);
        printf("%s linked %s %s %d\\n", way, name, known(entries[i].entry),
               result(name, entries[i].entry));
        printf("%s found %s %s %s %d\\n", way, name, owner(found), known(found),
               result(name, found));
    }
    for (unsigned i = 0; i < sizeof questions / sizeof *questions; i++) {
        void *old = NULL, *new = NULL;
        cuGetProcAddress(questions[i].symbol, &old, questions[i].version, questions[i].flags);
        cuGetProcAddress_v2(questions[i].symbol, &new, questions[i].version, questions[i].flags,
                            NULL);
        printf("%s asked %s %d %d %s %s %s\\n", way, questions[i].symbol, questions[i].version,
               (int)questions[i].flags, owner(new), known(new), old == new ? "same" : "differ");
    }
}
"""
# Not called: SURVEY itself uses cuGetProcAddress, and cuIpcOpen* takes a structure by value.
UNCALLED = ("cuGetProcAddress", "cuIpcOpen")
PROGRAM = 'int main(void) { survey("program"); return 0; }'
CONSTRUCTOR = '__attribute__((constructor(101))) static void early(void) { survey(NAME); }'
# Runs before the constructors of all libraries; only programs have this section.
EARLIEST = """
static void earliest(void) { survey("earliest"); }
__attribute__((section(".preinit_array"))) static void (*const first)(void) = earliest;
int main(void) { return 0; }
"""
PLUGIN = 'void plugin(void) { survey("plugin"); }'


def questions() -> list[recorded.Answer]:
    """All recorded answers of cuGetProcAddress. Flags 0 mean the legacy default stream."""
    plain = [replace(one, flags=0) for one in recorded.recorded() if one.flags == recorded.LEGACY]
    return [*recorded.recorded(), *plain]


def tables() -> str:
    """The driver's entry points, and the recorded questions, as C tables."""
    lines = ["int cuGetProcAddress(const char *, void **, int, unsigned long);"]
    lines += ["int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);"]
    for entry in recorded.entries():
        if not entry.startswith("cuGetProcAddress") and entry != "cuLaunchKernel":
            lines.append(f"int {entry}(long, ...);")
    lines.append("static const struct { const char *name; void *entry; } entries[] = {")
    lines += [f'    {{ "{entry}", (void *){entry} }},' for entry in recorded.entries()]
    lines.append("};")
    lines.append("static const struct { const char *symbol; int version; unsigned long flags; }")
    lines.append("questions[] = {")
    for answer in questions():
        lines.append(f'    {{ "{answer.symbol}", {answer.version}, {answer.flags} }},')
    return "\n".join([*lines, "};\n"])


def compiled(code: str, target: Path, driver: Path, *flags: object, compiler: str = "gcc") -> Path:
    flags = ("-Wl,--no-as-needed", *flags, f"-L{driver}", "-lcuda")
    return compile_c(tables() + SURVEY + code, target, *flags, compiler=compiler)


def expected(way: str) -> list[str]:
    lines = []
    for entry in recorded.entries():
        result = 0 if entry.startswith(UNCALLED) else recorded.result_of(entry)
        lines.append(f"{way} linked {entry} {entry} {result}")
        lines.append(f"{way} found {entry} libnvshare.so {_known(entry)} {result}")
    for answer in questions():
        lines.append(
            f"{way} asked {answer.symbol} {answer.version} {answer.flags} "
            f"libnvshare.so {_known(answer.entry)} same")
    return lines


def _known(entry: str) -> str | int:
    """How the survey prints an entry point: a wrapper by name, a stub by its function's result."""
    return entry if entry in recorded.hooks() else recorded.result_of(entry)


@pytest.mark.parametrize(
    "flags", [["-pie", "-Wl,-z,now"], ["-pie", "-Wl,-z,lazy"], ["-no-pie"]], ids=" ".join)
def test_program_linked_with_any_flags_finds_every_wrapper(
    library: Path, driver: Path, tmp_path: Path, flags: list[str]
) -> None:
    program = compiled(PROGRAM, tmp_path / "program", driver, *flags)
    assert run(program, library, driver) == expected("program")


def test_constructors_before_the_librarys_find_every_wrapper(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """In a library preloaded before this one, in a library that the program needs, and in the
    program's .preinit_array."""
    preloaded = compiled(
        CONSTRUCTOR, tmp_path / "libpreloaded.so", driver, "-shared", '-DNAME="preloaded"')
    needed = compiled(CONSTRUCTOR, tmp_path / "libneeded.so", driver, "-shared", '-DNAME="needed"')
    program = compiled(EARLIEST, tmp_path / "program", driver, needed, f"-Wl,-rpath,{tmp_path}")
    lines = run(program, library, driver, preloaded)
    assert lines[: len(expected("earliest"))] == expected("earliest")
    for way in ("earliest", "preloaded", "needed"):
        assert [line for line in lines if line.startswith(way)] == expected(way)


def test_plugin_opened_by_dlopen_finds_every_wrapper(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """With RTLD_LOCAL, as Python opens its modules: each has a scope of its own."""
    plugin = compiled(PLUGIN, tmp_path / "libplugin.so", driver, "-shared")
    program = compile_c(f"""
        int main(void)
        {{
            void *plugin = dlopen("{plugin}", RTLD_NOW | RTLD_LOCAL);
            ((void (*)(void))dlsym(plugin, "plugin"))();
        }}
    """, tmp_path / "program")
    assert run(program, library, driver) == expected("plugin")
