# SPDX-License-Identifier: Apache-2.0
"""The library beside plugins, other preloaded libraries and sanitizers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.programs import LAUNCH, compile_c, run


def test_plugin_opened_with_rtld_deepbind_calls_the_driver_without_wrappers(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """With this flag the plugin finds dlsym() of the C library and functions of the driver before
    the library's."""
    compile_c("""
        void plugin(void)
        {
            void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
            printf("%d %d\\n", call(entry), call(cuLaunchKernel));
        }
    """, tmp_path / "libplugin.so", "-shared", f"-L{driver}", "-lcuda")
    program = compile_c(f"""
        int main(void)
        {{
            void *plugin = dlopen("{tmp_path}/libplugin.so", RTLD_NOW | RTLD_DEEPBIND);
            ((void (*)(void))dlsym(plugin, "plugin"))();
            printf("%s\\n", owner(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel")));
        }}
    """, tmp_path / "program")
    assert run(program, library, driver) == [f"{LAUNCH} {LAUNCH}", "libnvshare.so"]


OTHER = """
static int asked;
void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    const char *versions[] = { "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34" };
    for (int i = 0; real == NULL && i < 3; i++)
        real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    asked += name[0] == 'c' && name[1] == 'u';
    return real(handle, name);
}
__attribute__((destructor)) static void report(void) { printf("asked %d\\n", asked != 0); }
"""


@pytest.mark.parametrize("first", [True, False])
def test_preloaded_library_that_defines_dlsym_finds_wrappers_in_either_preload_order(
    library: Path, driver: Path, tmp_path: Path, first: bool
) -> None:
    other = compile_c(OTHER, tmp_path / "libother.so", "-shared")
    program = compile_c("""
        int main(void)
        {
            void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
            printf("%s %d\\n", owner(entry), call(entry));
        }
    """, tmp_path / "program")
    lines = run(program, *((library, driver, other) if first else (other, driver, library)))
    assert lines == [f"libnvshare.so {LAUNCH}", "asked 1"]


def test_other_preloaded_library_before_libnvshare_finds_wrappers_by_rtld_next(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    tracer = compile_c("""
        int cuLaunchKernel(long a, ...)
        {
            printf("traced, next is %s\\n", owner(dlsym(RTLD_NEXT, "cuLaunchKernel")));
            return call(dlsym(RTLD_NEXT, "cuLaunchKernel"));
        }
    """, tmp_path / "libtracer.so", "-shared")
    program = compile_c(
        'int main(void) { printf("%d\\n", call(cuLaunchKernel)); }', tmp_path / "program",
        f"-L{driver}", "-lcuda")
    assert run(program, library, driver, tracer) == ["traced, next is libnvshare.so", LAUNCH]


# A library that sees calls of cuLaunchKernel, and hands them on to NEXT.
TRACER = """
#include <stdarg.h>
int cuLaunchKernel(long a, ...)
{
    int (*next)(long, ...) = NEXT;
    long b[8];
    va_list others;
    va_start(others, a);
    for (int i = 0; i < 8; i++)
        b[i] = va_arg(others, long);
    printf("NAME %d, next is %s\\n", a == 1 && b[0] == 2 && b[4] == 6 && b[7] == 9, owner(next));
    return next(a, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]);
}
"""
BY_ORDER = 'dlsym(RTLD_NEXT, "cuLaunchKernel")'
BY_NAME = 'dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuLaunchKernel")'
CALL_TWICE = """
int main(void)
{
    int (*found)(long, ...) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    printf("%d\\n", cuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9));
    printf("%d\\n", cuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9));
    printf("found %s %d\\n", owner(found), found(1, 2, 3, 4, 5, 6, 7, 8, 9));
}
"""


def tracer(folder: Path, name: str, following: str = BY_ORDER, more: str = "") -> Path:
    code = TRACER.replace("NEXT", following).replace("NAME", name)
    return compile_c(code + more, folder / f"lib{name}.so", "-shared")


@pytest.mark.parametrize("following", [BY_ORDER, BY_NAME])
def test_other_preloaded_library_behind_libnvshare_sees_each_call(
    library: Path, driver: Path, tmp_path: Path, following: str
) -> None:
    last = tracer(tmp_path, "last", following)
    program = compile_c(CALL_TWICE, tmp_path / "program", f"-L{driver}", "-lcuda")
    traced = ["last 1, next is libnvshare.so", LAUNCH]
    assert run(program, last, driver, library) == [
        *traced, *traced, f"found libnvshare.so {LAUNCH}"]


def test_other_preloaded_libraries_around_libnvshare_see_each_call_in_their_order(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    first, second, third = (tracer(tmp_path, name) for name in ("first", "second", "third"))
    program = compile_c(CALL_TWICE, tmp_path / "program", f"-L{driver}", "-lcuda")
    traced = ["first 1, next is libnvshare.so", "second 1, next is libthird.so",
              "third 1, next is libnvshare.so", LAUNCH]
    assert run(program, third, driver, first, library, second) == [
        *traced, *traced, f"found libnvshare.so {LAUNCH}"]


@pytest.mark.parametrize("following", [BY_ORDER, BY_NAME])
def test_library_that_the_program_is_linked_with_sees_each_call_of_its_function(
    library: Path, driver: Path, tmp_path: Path, following: str
) -> None:
    linked = tracer(tmp_path, "linked", following)
    program = compile_c(CALL_TWICE, tmp_path / "program", linked, f"-Wl,-rpath,{tmp_path}",
                        f"-L{driver}", "-lcuda")
    traced = ["linked 1, next is libnvshare.so", LAUNCH]
    assert run(program, library, driver) == [*traced, *traced, f"found libnvshare.so {LAUNCH}"]


def test_function_of_a_plugin_is_not_called_for_the_programs_calls(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    plugin = tracer(tmp_path, "plugin")
    program = compile_c(CALL_TWICE.replace(
        "{", f'{{ dlopen("{plugin}", RTLD_NOW);', 1), tmp_path / "program", f"-L{driver}", "-lcuda")
    assert run(program, library, driver) == [LAUNCH, LAUNCH, f"found libnvshare.so {LAUNCH}"]


def test_function_of_a_library_that_defines_dlsym_is_not_called_behind_libnvshare(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """Such a library may find the driver's own function, and its calls would bypass the library."""
    last = tracer(tmp_path, "last", more="""
        void *dlsym(void *handle, const char *name)
        {
            return NULL;
        }
    """)
    program = compile_c("""
        int main(void) { printf("%d\\n", cuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9)); }
    """, tmp_path / "program", f"-L{driver}", "-lcuda")
    assert run(program, last, driver, library) == [LAUNCH]


# Calls the driver, if there is one, in several threads, and forks. The exit code is not 0 if a call
# fails. With an argument the program writes a byte at that offset of 10 allocated bytes.
PROGRAM = """
#include <pthread.h>
#include <sys/wait.h>
static void *work(void *driver)
{
    for (int i = 0; i < 200 && driver != NULL; i++) {
        call(dlsym(driver, "cuMemcpyAsync_ptsz"));
        call(dlsym(driver, "cuLaunchKernel"));
    }
    return NULL;
}
int main(int given, char **text)
{
    int (*line)(const char *) = dlsym(RTLD_DEFAULT, "puts");
    int (*next)(const char *) = dlsym(RTLD_NEXT, "puts");
    if (line == NULL || next == NULL || dlsym(RTLD_DEFAULT, "cuInit_of_nobody") != NULL)
        return 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, work, driver) != 0)
            return 3;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        return 4;
    char *bytes = malloc(10);
    bytes[given > 1 ? atoi(text[1]) : 0] = 1;
    free(bytes);
    line(driver == NULL ? "no driver" : owner(dlsym(driver, "cuLaunchKernel")));
    return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined", "leak"])
def test_program_built_with_a_sanitizer_runs_with_the_library_preloaded(
    library: Path, driver: Path, tmp_path: Path, sanitizer: str
) -> None:
    """Sanitizers look up the functions that they intercept through the library's dlsym(), before
    anything is initialised."""
    program = compile_c(
        PROGRAM, tmp_path / "program", f"-fsanitize={sanitizer}", "-O0", "-pthread")
    assert run(program, library, tmp_path) == ["no driver"]
    assert run(program, library, driver) == ["libnvshare.so"]
    if sanitizer == "address":
        done = subprocess.run(
            [program, "10"], env=recorded.environment(library, driver), capture_output=True,
            text=True, check=False)
        assert done.returncode != 0
        assert "heap-buffer-overflow" in done.stderr


def test_program_linked_with_musl_runs_with_the_library_preloaded(
    library: Path, tmp_path: Path
) -> None:
    if not shutil.which("musl-gcc"):
        pytest.skip("there is no musl-gcc on this machine; Debian has it in musl-tools")
    program = compile_c(PROGRAM, tmp_path / "program", "-O0", compiler="musl-gcc")
    assert run(program, library, tmp_path) == ["no driver"]


SUBMITTING = """
#include <pthread.h>
int cuStreamBeginCapture_v2(long, ...);
static void submit(void)
{
    call(cuStreamBeginCapture_v2);
    printf("%d\\n", call(cuLaunchKernel));
}
"""


def test_program_that_took_all_thread_keys_keeps_their_values(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    program = compile_c(SUBMITTING + """
    static void *submits(void *unused)
    {
        static pthread_key_t keys[1 << 16];
        int count = 0, wrong = 0;
        while (pthread_key_create(&keys[count], NULL) == 0)
            pthread_setspecific(keys[count++], keys);
        submit();
        while (count-- > 0)
            wrong += pthread_getspecific(keys[count]) != keys;
        printf("%d\\n", wrong);
        return unused;
    }
    int main(void)
    {
        pthread_t thread;
        pthread_create(&thread, NULL, submits, NULL);
        pthread_join(thread, NULL);
    }
    """, tmp_path / "program", "-pthread", f"-L{driver}", "-lcuda")
    assert run(program, library, driver) == [LAUNCH, "0"]


def test_program_without_libpthread_submits_work_through_the_library(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """Before glibc 2.34 some functions of the C library are in libpthread; the changed copy of the
    library does not find these functions."""
    content = library.read_bytes()
    listed = Path("libhook/src/driver/glibc.h").read_text()
    for name in re.findall(r"OLDEST\((pthread_\w+)", listed):
        missing = b"\0" + name.replace("pthread", "nothing").encode() + b"\0"
        content = content.replace(b"\0" + name.encode() + b"\0", missing)
    lacking = tmp_path / library.name
    lacking.write_bytes(content)
    program = compile_c(
        SUBMITTING + "int main(void) { submit(); }", tmp_path / "program", f"-L{driver}", "-lcuda")
    assert run(program, lacking, driver) == [LAUNCH]
