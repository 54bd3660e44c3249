# SPDX-License-Identifier: Apache-2.0
"""README's installation commands, on a Debian without the tools that build the packages."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import pages
from tests.integration.test_pages import offline
from tests.system.packages import ROOT

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Runs in an overlay on the tree, with this machine's network. Standard input: tar of the checkout.
WALK = f"""
mount -t tmpfs -o mode=755 tmpfs "$2" && mkdir "$2/upper" "$2/work" "$2/root" || exit
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/root" || exit
cd "$2/root" && mkdir root/checkout && tar --extract --directory=root/checkout || exit
for folder in proc sys dev; do mount --rbind "/$folder" "$folder" || exit; done
cp /etc/resolv.conf etc/resolv.conf
[ ! -e {CERTIFICATES} ] || cp {CERTIFICATES} root/certificates
echo 'APT::Get::Assume-Yes "true";' >etc/apt/apt.conf.d/yes
printf '#!/bin/sh\\nexit 101\\n' >usr/sbin/policy-rc.d && chmod +x usr/sbin/policy-rc.d
exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \\
    PIP_CERT=/root/certificates sh -ec "apt-get -qq update; cd /root/checkout; $3"
"""


def commands(block: str) -> list[str]:
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


def test_readme_commands_build_and_install_on_an_empty_debian(tree: Path, tmp_path: Path) -> None:
    if why := offline():
        pytest.skip(why)
    *lines, enable = commands(pages.block("README.md", "apt build-dep"))
    build = commands(pages.block("docs/install.md", "apt build-dep"))
    start = commands(pages.block("docs/install.md", "systemctl enable"))
    assert " && ".join(build[:2]) == lines[0]
    assert [*build[2:], start[0]] == [*lines[1:], enable]
    doctor = start[1]
    assert doctor == "nvsharectl doctor"
    # No systemd runs here, so no unit is started, and nvsharectl doctor exits with faults.
    lines += [f"{enable} || true", f"{doctor} || true", "nvsharectl --version"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, check=True).stdout
    there = b"\0".join(
        one for one in listed.split(b"\0") if one and Path(ROOT, os.fsdecode(one)).exists())
    packed = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=there,
        capture_output=True, check=True).stdout
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", WALK, "sh", tree, tmp_path, "\n".join(lines)],
        input=packed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-4000:]
    assert "multi-user.target.wants/nvshared.service" in said   # the service is enabled,
    assert "ok       library " in said                          # the doctor has run
    assert said.splitlines()[-1].startswith("nvsharectl ")
