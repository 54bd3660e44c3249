# SPDX-License-Identifier: Apache-2.0
"""Programs of every kind under the preloaded library: they find the wrappers, and nothing else
about them changes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded

HEADER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *owner(void *address)
{
    Dl_info info;
    if (address == NULL)
        return "nobody";
    return dladdr(address, &info) == 0 ? "unknown" : strrchr(info.dli_fname, '/') + 1;
}

static int call(void *entry)
{
    return entry == NULL ? -1 : ((int (*)(long, ...))entry)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

int cuLaunchKernel(long, ...);
"""


def compile_c(source: str, target: Path, *flags: object, compiler: str = "gcc") -> Path:
    """A program, or with -shared a library, from `source` after HEADER."""
    command = [compiler, "-x", "c", "-", "-x", "none", "-w", "-fPIC", "-o", str(target)]
    command += map(str, flags)
    subprocess.run(command, input=HEADER + source, text=True, check=True)
    return target


def run(program: Path, library: Path, driver: Path, *preloads: Path, stderr: str = "") -> list[str]:
    """The lines it prints."""
    done = subprocess.run(
        [program],
        env=recorded.environment(library, driver, *preloads),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, stderr)
    return done.stdout.splitlines()


LAUNCH = str(recorded.result_of("cuLaunchKernel"))


@pytest.mark.parametrize("optimisation", ["-O0", "-O2"])
@pytest.mark.parametrize("ask", ['dlsym(RTLD_NEXT, "chain")', 'dlvsym(RTLD_NEXT, "chain", "V")'])
def test_rtld_next_means_the_object_after_the_caller(
    library: Path, driver: Path, tmp_path: Path, optimisation: str, ask: str
) -> None:
    """Three libraries have a function of one name, each asks for the next. If the real dlsym()
    returned to us and not to the caller, the first would find itself again."""
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
            code,
            tmp_path / f"lib{name}.so",
            "-shared",
            optimisation,
            f'-DNAME="{name}"',
            f"-Wl,--version-script={version}",
        )
        for name in ("first", "second", "third")
    ]
    program = compile_c(
        "void chain(int); int main(void) { chain(0); }",
        tmp_path / "program",
        optimisation,
        "-Wl,--no-as-needed",
        *libraries,
        f"-Wl,-rpath,{tmp_path}",
    )
    assert run(program, library, driver) == ["first", "second", "third"]


def test_a_linked_program_calls_the_wrapper(library: Path, driver: Path, tmp_path: Path) -> None:
    program = compile_c(
        'int main(void) { printf("%s %d\\n", owner(cuLaunchKernel), call(cuLaunchKernel)); }',
        tmp_path / "program",
        f"-L{driver}",
        "-lcuda",
    )
    assert run(program, library, driver) == [f"libnvshare.so {LAUNCH}"]


def test_every_handle_finds_the_wrapper(library: Path, driver: Path, tmp_path: Path) -> None:
    """The driver's own handle, the whole program's, the default search, and from a library that
    stands behind us the next object too."""
    behind = compile_c(
        'void *next(void) { return dlsym(RTLD_NEXT, "cuLaunchKernel"); }',
        tmp_path / "libbehind.so",
        "-shared",
    )
    program = compile_c(
        """
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
        """,
        tmp_path / "program",
        behind,
        f"-Wl,-rpath,{tmp_path}",
    )
    assert run(program, library, driver) == [f"libnvshare.so {LAUNCH}"] * 5


def test_without_a_driver_nothing_is_found_and_dlerror_says_so(
    library: Path, tmp_path: Path
) -> None:
    program = compile_c(
        """
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            const char *error = dlerror();
            printf("%d %d\\n", driver == NULL, error != NULL);
            void *found = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
            error = dlerror();
            printf("%s %d\\n", owner(found), error != NULL && strstr(error, "cuLaunchKernel"));
            printf("%s\\n", owner(dlsym(RTLD_DEFAULT, "cuInit")));
        }
        """,
        tmp_path / "program",
    )
    assert run(program, library, tmp_path) == ["1 1", "nobody 1", "nobody"]


def test_a_failed_search_leaves_its_own_error_and_a_successful_one_none(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    program = compile_c(
        """
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            dlsym(driver, "cuMemAlloc_v2");
            printf("%d\\n", dlerror() == NULL);
            dlsym(driver, "cuNothing");
            const char *error = dlerror();
            printf("%d", error != NULL && strstr(error, "cuNothing"));
            printf(" %d\\n", dlerror() == NULL);
        }
        """,
        tmp_path / "program",
    )
    assert run(program, library, driver) == ["1", "1 1"]


def test_constructors_before_ours_may_use_everything(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    early = """
    __attribute__((constructor(101))) static void start(void)
    {
        void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
        printf("%s %s %d %d\\n", NAME, owner(entry), call(entry), call(cuLaunchKernel));
    }
    """
    link = (f"-L{driver}", "-lcuda")
    preloaded = compile_c(
        early, tmp_path / "libpreloaded.so", "-shared", '-DNAME="preloaded"', *link
    )
    needed = compile_c(early, tmp_path / "libneeded.so", "-shared", '-DNAME="needed"', *link)
    program = compile_c(
        "int main(void) { return 0; }",
        tmp_path / "program",
        "-Wl,--no-as-needed",
        needed,
        f"-Wl,-rpath,{tmp_path}",
        *link,
    )
    lines = run(program, library, driver, preloaded)
    assert sorted(lines) == [
        f"{n} libnvshare.so {LAUNCH} {LAUNCH}" for n in ("needed", "preloaded")
    ]


def test_a_plugin_opened_with_deepbind_still_works(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """It finds the C library's dlsym() and its own driver first, as it asked for; and so it
    works as if nothing were preloaded."""
    compile_c(
        """
        void plugin(void)
        {
            void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
            printf("%d %d\\n", call(entry), call(cuLaunchKernel));
        }
        """,
        tmp_path / "libplugin.so",
        "-shared",
        f"-L{driver}",
        "-lcuda",
    )
    program = compile_c(
        f"""
        int main(void)
        {{
            void *plugin = dlopen("{tmp_path}/libplugin.so", RTLD_NOW | RTLD_DEEPBIND);
            ((void (*)(void))dlsym(plugin, "plugin"))();
            printf("%s\\n", owner(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel")));
        }}
        """,
        tmp_path / "program",
    )
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
def test_another_preload_with_a_dlsym_of_its_own_works_before_us_and_behind_us(
    library: Path, driver: Path, tmp_path: Path, first: bool
) -> None:
    other = compile_c(OTHER, tmp_path / "libother.so", "-shared")
    program = compile_c(
        """
        int main(void)
        {
            void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
            printf("%s %d\\n", owner(entry), call(entry));
        }
        """,
        tmp_path / "program",
    )
    environment = recorded.environment(library, driver)
    order = (other, library) if first else (library, other)
    environment["LD_PRELOAD"] = ":".join(map(str, order))
    done = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [f"libnvshare.so {LAUNCH}", "asked 1"]


def test_another_preload_may_hook_the_driver_too(
    library: Path, driver: Path, tmp_path: Path
) -> None:
    """One before us is called first and finds us as the next."""
    tracer = compile_c(
        """
        int cuLaunchKernel(long a, ...)
        {
            printf("traced, next is %s\\n", owner(dlsym(RTLD_NEXT, "cuLaunchKernel")));
            return call(dlsym(RTLD_NEXT, "cuLaunchKernel"));
        }
        """,
        tmp_path / "libtracer.so",
        "-shared",
    )
    program = compile_c(
        'int main(void) { printf("%d\\n", call(cuLaunchKernel)); }',
        tmp_path / "program",
        f"-L{driver}",
        "-lcuda",
    )
    assert run(program, library, driver, tracer) == ["traced, next is libnvshare.so", LAUNCH]


def test_a_program_without_cuda_is_left_alone(library: Path, tmp_path: Path) -> None:
    """No thread, no descriptor, no driver; and dlsym(), fork, exec and dlclose work."""
    program = compile_c(
        """
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
        """,
        tmp_path / "program",
        "-lm",
    )
    lines = run(program, library, tmp_path)
    assert lines == ["3 0", "1 threads", "3 descriptors", "no driver", "child"]


def test_a_driver_newer_than_we_are_keeps_the_process_unshared(
    library: Path, tmp_path: Path
) -> None:
    """It returns an entry point for cuLaunchKernel that we do not know. The program gets it
    untouched, and one line says why the GPU is not shared, when a context is made."""
    driver = recorded.build(tmp_path, newer=frozenset({"cuLaunchKernel"}))
    program = compile_c(
        """
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW), *entry, *context;
            int (*ask)(const char *, void **, int, long, int *);
            ask = dlsym(driver, "cuGetProcAddress_v2");
            *(int *)dlsym(driver, "result_of_cuCtxCreate_v2") = 0;
            for (int i = 0; i < 2; i++) {
                ask("cuLaunchKernel", &entry, 13000, 0, NULL);
                printf("%d\\n", call(entry));
                ((int (*)(void **, int, int))dlsym(driver, "cuCtxCreate_v2"))(&context, 0, i);
            }
        }
        """,
        tmp_path / "program",
    )
    done = subprocess.run(
        [program],
        env=recorded.environment(library, driver),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["9999", "9999"]
    (line,) = done.stderr.splitlines()
    assert "newer cuLaunchKernel" in line
    assert "unshared" in line


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
def test_a_program_with_a_sanitizer_works(
    library: Path, driver: Path, tmp_path: Path, sanitizer: str
) -> None:
    """They look up what they intercept through our dlsym(), before anything is initialised."""
    program = compile_c(
        THREADS,
        tmp_path / "program",
        f"-fsanitize={sanitizer}",
        "-g",
        "-pthread",
        f"-L{driver}",
        "-lcuda",
    )
    environment = recorded.environment(library, driver)
    environment["ASAN_OPTIONS"] = "verify_asan_link_order=0"
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"libnvshare.so {LAUNCH}"]


ARM = "aarch64-linux-gnu"


@pytest.mark.skipif(
    shutil.which(f"{ARM}-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler and emulator for aarch64 (gcc-aarch64-linux-gnu, qemu-user)",
)
def test_the_library_works_on_aarch64(tmp_path: Path) -> None:
    """The entry of dlsym() is written in assembly for it; here it is built and run."""
    build = tmp_path / "build"
    make = ["make", "-s", "-C", str(Path(__file__).parents[2]), f"CC={ARM}-gcc", f"BUILD={build}"]
    subprocess.run([*make, "hook"], check=True)
    driver = recorded.build(tmp_path, compiler=f"{ARM}-gcc")
    program = compile_c(
        """
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            void *entry = dlsym(driver, "cuLaunchKernel");
            printf("%s %d %d\\n", owner(entry), call(entry), call(cuLaunchKernel));
            printf("%s\\n", owner(dlsym(RTLD_NEXT, "strchr")));
            printf("%s\\n", owner(dlsym(RTLD_NEXT, "cuLaunchKernel")));
        }
        """,
        tmp_path / "program",
        f"-L{driver}",
        "-lcuda",
        compiler=f"{ARM}-gcc",
    )
    variables = {"LD_PRELOAD": build / "libnvshare.so", "LD_LIBRARY_PATH": driver}
    settings = [part for pair in variables.items() for part in ("-E", "=".join(map(str, pair)))]
    done = subprocess.run(
        ["qemu-aarch64", "-L", f"/usr/{ARM}", *settings, program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"libnvshare.so {LAUNCH} {LAUNCH}",
        "libc.so.6",
        "libnvshare.so",
    ]


def test_nothing_is_read_from_the_environment_by_name_but_through_secure_getenv(
    library: Path,
) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "secure_getenv" in symbols
    assert " getenv" not in symbols
    assert "environ" not in symbols
