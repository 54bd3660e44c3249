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
    """The plugin finds the C library's dlsym() and the driver first, as its flag requests, and runs
    as without the library."""
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
    environment = recorded.environment(library, driver)
    order = (other, library) if first else (library, other)
    environment["LD_PRELOAD"] = ":".join(map(str, order))
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"libnvshare.so {LAUNCH}", "asked 1"]


def test_other_preloaded_library_before_libnvshare_finds_wrappers_by_rtld_next(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """A library preloaded before this one is called first; its RTLD_NEXT finds the wrapper."""
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


THREADS = """
#include <pthread.h>
static void *work(void *driver)
{
    for (int i = 0; i < 200; i++) {
        call(dlsym(driver, "cuMemcpyAsync_ptsz"));
        call(dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
    }
    return NULL;
}
int main(void)
{
    pthread_t threads[4];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, driver);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%s %d\\n", owner(dlsym(driver, "cuLaunchKernel")), call(cuLaunchKernel));
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address", "undefined"])
def test_cuda_program_built_with_a_sanitizer_runs_with_the_library(
    library: Path, driver: Path, tmp_path: Path, sanitizer: str
) -> None:
    """Sanitizers look up the functions that they intercept through the library's dlsym(), before
    anything is initialised."""
    program = compile_c(
        THREADS, tmp_path / "program", f"-fsanitize={sanitizer}", "-g", "-pthread", f"-L{driver}",
        "-lcuda")
    assert run(program, library, driver) == [f"libnvshare.so {LAUNCH}"]


# Ends with an exit code other than 0 if it does not run as without the library. With an argument it
# writes that many bytes beyond its memory.
WITHOUT_CUDA = """
#include <pthread.h>
#include <sys/wait.h>
static void *started(void *argument) { return argument; }
int main(int given, char **text)
{
    int (*line)(const char *) = dlsym(RTLD_DEFAULT, "puts");
    int (*next)(const char *) = dlsym(RTLD_NEXT, "puts");
    if (line == NULL || next == NULL || dlsym(RTLD_DEFAULT, "cuInit_of_nobody") != NULL)
        return 2;
    pthread_t thread;
    if (pthread_create(&thread, NULL, started, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        return 4;
    char *bytes = malloc(10);
    bytes[given > 1 ? atoi(text[1]) : 0] = 1;
    free(bytes);
    line("runs");
    return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined", "leak"])
def test_program_built_with_a_sanitizer_runs_with_the_library_preloaded(
    library: Path, tmp_path: Path, sanitizer: str
) -> None:
    program = compile_c(
        WITHOUT_CUDA, tmp_path / "program", f"-fsanitize={sanitizer}", "-O0", "-pthread")
    assert run(program, library, tmp_path) == ["runs"]


def test_address_sanitizer_finds_faults_of_a_program_with_the_library_preloaded(
    library: Path, tmp_path: Path
) -> None:
    program = compile_c(WITHOUT_CUDA, tmp_path / "program", "-fsanitize=address", "-O0", "-pthread")
    done = subprocess.run(
        [program, "10"], env=recorded.environment(library, tmp_path), capture_output=True,
        text=True, check=False)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


def test_program_linked_with_musl_runs_with_the_library_preloaded(
    library: Path, tmp_path: Path
) -> None:
    if not shutil.which("musl-gcc"):
        pytest.skip("there is no musl-gcc on this machine; Debian has it in musl-tools")
    program = compile_c(WITHOUT_CUDA, tmp_path / "program", "-O0", compiler="musl-gcc")
    assert run(program, library, tmp_path) == ["runs"]


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
    """As with glibc before 2.34, where some functions are in libpthread, which the program does not
    load."""
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
