# SPDX-License-Identifier: Apache-2.0
"""Programs with the preloaded library find the wrappers, and otherwise behave as without it."""

import socket
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.programs import LAUNCH, compile_c, run


@pytest.mark.parametrize("optimisation", ["-O0", "-O2"])
@pytest.mark.parametrize("ask", ['dlsym(RTLD_NEXT, "chain")', 'dlvsym(RTLD_NEXT, "chain", "V")'])
def test_dlsym_with_rtld_next_finds_the_object_after_the_caller(
    library: Path, driver: Path, tmp_path: Path, optimisation: str, ask: str
) -> None:
    """Three libraries define the same function, and each asks for the next definition. If the real
    dlsym() returned to the library instead of its caller, the first definition would find
    itself."""
    version = tmp_path / "version.map"
    version.write_text("V { global: chain; };\n")
    code = f"""
    void chain(int depth)
    {{
        void (*next)(int) = {ask};
        printf("%s\\n", NAME);
        if (next != NULL && depth < 9)
            next(depth + 1);
    }}
    """
    libraries = [
        compile_c(
            code, tmp_path / f"lib{name}.so", "-shared", optimisation, f'-DNAME="{name}"',
            f"-Wl,--version-script={version}")
        for name in ("first", "second", "third")
    ]
    program = compile_c(
        "void chain(int); int main(void) { chain(0); }", tmp_path / "program", optimisation,
        "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{tmp_path}")
    assert run(program, library, driver) == ["first", "second", "third"]


def test_dlsym_with_every_handle_finds_the_wrapper(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """The driver's handle, the handle of the whole program, RTLD_DEFAULT, and RTLD_NEXT, also from
    an object loaded after the library."""
    behind = compile_c(
        'void *next(void) { return dlsym(RTLD_NEXT, "cuLaunchKernel"); }',
        tmp_path / "libbehind.so", "-shared")
    program = compile_c("""
        void *next(void);
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            void *found[] = {
                dlsym(driver, "cuLaunchKernel"), dlsym(dlopen(NULL, RTLD_NOW), "cuLaunchKernel"),
                dlsym(RTLD_DEFAULT, "cuLaunchKernel"), dlsym(RTLD_NEXT, "cuLaunchKernel"), next(),
            };
            for (int i = 0; i < 5; i++)
                printf("%s %d\\n", owner(found[i]), call(found[i]));
        }
    """, tmp_path / "program", behind, f"-Wl,-rpath,{tmp_path}")
    assert run(program, library, driver) == [f"libnvshare.so {LAUNCH}"] * 5


def test_dlsym_finds_symbols_of_the_callers_own_dependencies(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """As a Python extension module, which is opened with RTLD_LOCAL, asks."""
    own = compile_c(
        "int curl_own(void) { return 7; } int cuOwn(void) { return 8; }", tmp_path / "libown.so",
        "-shared")
    plugin = compile_c("""
        void plugin(void)
        {
            int (*first)(void) = dlsym(RTLD_DEFAULT, "curl_own");
            int (*second)(void) = dlsym(RTLD_DEFAULT, "cuOwn");
            printf("%d %d\\n", first == NULL ? 0 : first(), second == NULL ? 0 : second());
        }
    """, tmp_path / "libplugin.so", "-shared", "-Wl,--no-as-needed", own, f"-Wl,-rpath,{tmp_path}")
    program = compile_c(f"""
        int main(void)
        {{
            dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
            ((void (*)(void))dlsym(dlopen("{plugin}", RTLD_NOW | RTLD_LOCAL), "plugin"))();
        }}
    """, tmp_path / "program")
    assert run(program, library, driver) == ["7 8"]


DLERROR = """
static void ask(void *handle, const char *name)
{
    const char *found = owner(dlsym(handle, name)), *error = dlerror();
    printf("%s %d", found, error != NULL && strstr(error, name));
    printf(" %d\\n", dlerror() == NULL);
}
int main(void)
{
    ask(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    ask(dlopen("libcuda.so.1", RTLD_NOW), "cuNothing");
    ask(RTLD_DEFAULT, "cuLaunchKernel");
}
"""


def test_dlsym_returns_null_and_sets_dlerror_only_on_failure(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    program = compile_c(DLERROR, tmp_path / "program")
    assert run(program, library, driver) == ["libnvshare.so 0 1", "nobody 1 1", "libnvshare.so 0 1"]
    assert run(program, library, tmp_path) == ["nobody 1 1"] * 3


def test_library_starts_no_thread_opens_no_file_and_loads_no_driver_in_a_program_without_cuda(
    library: Path, tmp_path: Path
) -> None:
    program = compile_c("""
        #include <dirent.h>
        #include <sys/wait.h>
        static int entries(const char *path)
        {
            int count = 0;
            DIR *directory = opendir(path);
            while (readdir(directory) != NULL)
                count++;
            closedir(directory);
            return count;
        }
        int main(void)
        {
            void *maths = dlopen("libm.so.6", RTLD_NOW);
            double (*root)(double) = dlsym(maths, "sqrt");
            printf("%g", root(9));
            printf(" %d\\n", dlclose(maths));
            printf("%d threads\\n", entries("/proc/self/task") - 2);
            printf("%d descriptors\\n", entries("/proc/self/fd") - 3);
            void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
            printf("%s\\n", driver == NULL ? "no driver" : "driver");
            fflush(stdout);
            if (fork() == 0)
                execl("/bin/echo", "echo", "child", NULL);
            int status;
            wait(&status);
            return status;
        }
    """, tmp_path / "program", "-lm")
    lines = run(program, library, tmp_path)
    assert lines == ["3 0", "1 threads", "3 descriptors", "no driver", "child"]


def test_process_that_gets_an_unknown_version_of_a_memory_function_stays_unshared(
    library: Path, tmp_path: Path
) -> None:
    """The driver returns an entry point for cuMemAlloc that the library does not know. The program
    gets it unchanged. If there is a daemon, one line says at the first context why the GPU is
    not shared."""
    driver = recorded.build(tmp_path, newer=frozenset({"cuMemAlloc"}))
    program = compile_c("""
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW), *entry, *context;
            int (*ask)(const char *, void **, int, long, int *);
            ask = dlsym(driver, "cuGetProcAddress_v2");
            *(int *)dlsym(driver, "result_of_cuCtxCreate_v2") = 0;
            *(int *)dlsym(driver, "result_of_cuDeviceGetUuid_v2") = 0;
            for (int i = 0; i < 2; i++) {
                ask("cuMemAlloc", &entry, LATEST, 0, NULL);
                printf("%d\\n", call(entry));
                ((int (*)(void **, int, int))dlsym(driver, "cuCtxCreate_v2"))(&context, 0, i);
            }
        }
    """, tmp_path / "program")
    daemon = tmp_path / "daemon"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(daemon))
        listener.listen()
        done = subprocess.run(
            [program], env=recorded.environment(library, driver) | {"NVSHARE_SOCKET": str(daemon)},
            capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["9999", "9999"]
    (line,) = done.stderr.splitlines()
    assert "newer cuMemAlloc" in line
    assert "unshared" in line


def test_library_reads_the_environment_by_secure_getenv_alone(library: Path) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "secure_getenv" in symbols
    assert " getenv" not in symbols
    assert "environ" not in symbols
