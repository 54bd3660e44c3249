# SPDX-License-Identifier: Apache-2.0
"""Static pods of Kubernetes that run without the share of a GPU that they ask for.

Only nvshare-kubelet knows them. It keeps them in a file.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from nvshared.doctor.finding import Finding, warning
from nvshared.names import KUBELET_STATE, WITHOUT_GPU

FILE = Path(KUBELET_STATE) / WITHOUT_GPU


def findings() -> Iterator[Finding]:
    """One for each; none where there is no Kubernetes."""
    try:
        for words, advice in json.loads(FILE.read_text()):
            yield warning("static pod", words, advice)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        yield warning("static pod", f"{FILE} cannot be read: {error}", "restart nvshare-kubelet")
