# SPDX-License-Identifier: Apache-2.0
"""The part of the build that is not Python: libhook/ is compiled and shipped.

`pip install .` needs gcc and make and nothing else. The compiled files go to
`nvshared/lib/` of the installed package, where nvshared.library looks for
them; the source tree is only read. A checkout that is used in place (an
editable install) has them in libhook/build/ instead, put there by make.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.install import install

ROOT = Path(__file__).parent
# make's target, and what of it belongs into the package: name there, name here.
SHIPPED = {
    "libnvshare.so": "libnvshare.so",
    "nvshare-workload": "nvshare-workload",
    "simulator/libcuda.so.1": "simulator/libcuda.so.1",
    "simulator/libnvidia-ml.so.1": "simulator/libnvidia-ml.so.1",
}


class BuildLibhook(Command):
    """Compiles libhook in a temporary folder and copies what is shipped."""

    description = "compile libnvshare.so, the simulated GPU and the workload program"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.build_temp: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options(
            "build", ("build_lib", "build_lib"), ("build_temp", "build_temp")
        )

    def run(self) -> None:
        if self.editable_mode:
            return
        assert self.build_lib is not None
        assert self.build_temp is not None
        compiled = Path(self.build_temp).absolute() / "libhook"
        jobs = os.cpu_count() or 1
        command = ["make", "-C", "libhook", f"BUILD={compiled}", "WERROR=", f"-j{jobs}"]
        command += ["hook", "simulator", "workload"]
        subprocess.run(command, cwd=ROOT, check=True)
        for name, target in self._targets(Path(self.build_lib)).items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(compiled / name, target)

    def _targets(self, build_lib: Path) -> dict[str, Path]:
        return {name: build_lib / "nvshared" / "lib" / there for name, there in SHIPPED.items()}

    # What setuptools asks of a part of `build`.
    def get_source_files(self) -> list[str]:
        sources = [*ROOT.glob("libhook/**/*.[chS]"), *ROOT.glob("libhook/**/*.m[ak][kp]")]
        return [
            str(path.relative_to(ROOT)) for path in sources
            if not path.relative_to(ROOT).parts[1].startswith("build")
        ]

    def get_outputs(self) -> list[str]:
        assert self.build_lib is not None
        return [str(path) for path in self._targets(Path(self.build_lib)).values()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands: ClassVar = [*build.sub_commands, ("build_libhook", None)]


class Install(install):
    """Puts the package where compiled code goes."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.install_lib = self.install_platlib


class Wheel(bdist_wheel):
    """For any Python 3, but for one kind of machine."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={
        "bdist_wheel": Wheel,
        "build": Build,
        "build_libhook": BuildLibhook,
        "install": Install,
    }
)
