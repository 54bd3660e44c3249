# SPDX-License-Identifier: Apache-2.0
"""The claims that kubelet has had us prepare, kept in a file: they outlive us and a reboot.

    /var/lib/nvshare-kubelet/claims.json
    [what the API server said of each: metadata and status]
"""

import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet.annotations import Claimed
from nvshared.kubelet.cdi import replace
from nvshared.kubelet.claims import Claim, read, terms
from nvshared.kubelet.pod import Pod

logger = logging.getLogger(__name__)

FILE = "claims.json"


class Prepared:
    """Several threads may use it."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._lock = threading.Lock()
        self._said: dict[str, Any] = {}         # by the claims' UIDs
        try:
            for said in json.loads(self._path.read_text()):
                self._said[read(said).uid] = said
        except FileNotFoundError:
            return
        except (OSError, NvshareError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Terms hold on in nvshared; kubelet asks for what a container needs that starts.
            logger.warning("%s is not used: %s", self._path, error)

    def claims(self) -> list[Claim]:
        """All of them."""
        with self._lock:
            return [read(said) for said in self._said.values()]

    def terms(self, *news: Claim, without: str = "", strictly: bool = False) -> Claimed:
        """For each pod of these claims, before and now, what all its claims give it; for all pods
        if there are no news.

        `without`: the UID of a claim that is let go of. Raises InvalidArgs where claims do not go
        together, if `strictly`.
        """
        before = {claim.uid: claim for claim in self.claims()}
        now = before | {claim.uid: claim for claim in news}
        concerned = {*(claim.uid for claim in news), without} - {""} or set(now)
        now.pop(without, None)
        pods = {
            Pod(claim.namespace, name, uid, f"pod:{uid}")
            for claims in (before, now) for key, claim in claims.items() if key in concerned
            for name, uid in claim.pods
        }
        return {
            pod: terms(
                (claim for claim in now.values() if pod.uid in claim.uids), strictly=strictly)
            for pod in pods
        }

    def devices(self, claim: Claim) -> set[str]:
        """All that the pods of a claim have, by it and by others."""
        return {
            share.device for one in (*self.claims(), claim) for share in one.shares
            if set(one.pods) & set(claim.pods)
        }

    def without(self, pod: str) -> list[Any]:
        """What is left of claims that other pods use, too, when this one is gone."""
        with self._lock:
            return [
                said | {"status": said["status"] | {"reservedFor": [
                    one for one in said["status"]["reservedFor"] if one["uid"] != pod]}}
                for said in self._said.values()
                if (claim := read(said)).is_shareable and pod in claim.uids
            ]

    def keep(self, said: Any) -> None:
        """Remembers a claim. Raises NvshareError."""
        with self._lock:
            wanted = ("namespace", "name", "uid", "ownerReferences")
            meta = {key: one for key, one in said["metadata"].items() if key in wanted}
            self._said[meta["uid"]] = {"metadata": meta, "status": said["status"]}
            self._write()

    def forget(self, uid: str) -> None:
        """It is not prepared any more. Raises NvshareError."""
        with self._lock:
            if self._said.pop(uid, None) is not None:
                self._write()

    def forget_but(self, pods: Collection[str]) -> None:
        """Forgets claims that none of these pods uses."""
        for claim in self.claims():
            if not any(uid in pods for uid in claim.uids):
                logger.info("claim %s is gone", claim)
                self.forget(claim.uid)

    def _write(self) -> None:
        try:
            replace(self._path, json.dumps(list(self._said.values())).encode())
        except OSError as error:
            raise NvshareError(f"cannot write to {self._path}: {error.strerror}") from error
