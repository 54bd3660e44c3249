# SPDX-License-Identifier: Apache-2.0
"""nvshare-save takes orders from root and the owner of its socket's file alone."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nvshared import saver

OWNER, OTHER = 64321, 64322             # users; the first has the socket, as nvshare by the unit
PATIENCE = 60                           # seconds until a caller must have connected
CALL = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
try:
    one.sendall(b'{"order": "list"}\\n')
    print(one.makefile().readline(), end="")
except ConnectionError:
    pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize(("uid", "served"), [(0, True), (OWNER, True), (OTHER, False)])
def test_orders_are_taken_only_from_root_and_the_owner_of_the_socket(
    tmp_path: Path, uid: int, served: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        path = Path(name) / "save.sock"
        path.parent.chmod(0o755)
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(PATIENCE)
        path.chmod(0o666)
        os.chown(path, OWNER, OWNER)
        with subprocess.Popen(
            ["setpriv", f"--reuid={uid}", "--clear-groups", "/usr/bin/python3", "-I",
             "-c", CALL, str(path)],
            stdout=subprocess.PIPE, text=True) as caller:
            taken, _ = listening.accept()
            with taken:
                helper = subprocess.Popen(
                    [sys.executable, "-I", saver.__file__], stdin=taken.fileno(),
                    stdout=taken.fileno(),
                    stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "NVSHARE_SAVED": str(tmp_path / "saved")})
            said, _ = caller.communicate()
        _, line = helper.communicate()
    if served:
        assert (said, helper.returncode, line) == ('{"done": "", "entries": []}\n', 0, "")
    else:
        assert (said, helper.returncode) == ("", 3)
        assert line.endswith(f"of uid {OTHER}: this is not the user of nvshared\n")
