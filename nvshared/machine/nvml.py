# SPDX-License-Identifier: Apache-2.0
"""What the driver's management library (NVML) knows of the cards. Nobody else imports pynvml.

NVML calls can take seconds (a card being reset, a driver being unloaded), so
outside of start they are made in threads of their own, one for each card
(sampler.py). The library is found by the loader's rules, so LD_LIBRARY_PATH
leads to the simulated one.

Drivers and cards differ in what they answer, and pynvml raises more than NVMLError: for text that
is no UTF-8, for a function that the library lacks. So whatever a question about a card raises is
that card's trouble: its figure is absent, or the card is left out, and the others are not.
"""

import ctypes
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nvshared.errors import DriverUnready, GPULost, NoDriver, NoGPU, NvshareError
from nvshared.machine import host
from nvshared.machine.peer import printable

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# Errors (Xid) that a program causes, and that end with it: 13 and 31 are its wrong instructions
# and addresses, 43 and 45 its end after them, 68 the video processor's, 109 a switch of contexts.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
FAULT_WAIT = 60_000                     # milliseconds for which NVML waits for one
FAULT_PAUSE = 5.0                       # seconds after NVML has refused to wait

# There since the kernel module is loaded. Where our unit loads it, systemd has not known the
# numbers of its devices before, so the first daemon may not open them.
LOADED = Path("/proc/driver/nvidia/version")


def uuid_bytes(uuid: str) -> bytes:
    """A UUID, "GPU-" and 36 characters, as cuDeviceGetUuid gives it: 16 bytes."""
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


@dataclass(frozen=True)
class Facts:
    """What does not change about a card."""

    index: int                          # NVML's, in the order of PCI addresses
    uuid: str                           # "GPU-" and 36 characters
    name: str                           # "NVIDIA H200"
    pci_bus_id: str                     # "00000000:17:00.0"
    memory_total: int                   # bytes
    mig: bool = False                   # divided into instances when it was found
    linked: frozenset[str] = frozenset()    # UUIDs of the cards that it reaches over NVLink,
    reached: frozenset[str] = frozenset()   # and of all whose memory it can use

    @cached_property
    def uuid_bytes(self) -> bytes:
        """As cuDeviceGetUuid gives it: 16 bytes."""
        return uuid_bytes(self.uuid)

    @cached_property
    def names(self) -> frozenset[str]:
        """All the names a person may call it by, in lower case."""
        pci = self.pci_bus_id.lower()
        return frozenset({
            str(self.index),
            self.uuid.lower(),
            self.uuid.lower().removeprefix("gpu-"),
            pci,
            pci.removeprefix("0000"),   # nvidia-smi's eight digits of domain, lspci's four
            pci.removeprefix("00000000:"),
        })


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a context on the card."""

    pid: int                            # in the pid namespace of the driver's view
    memory: int | None                  # bytes; None where the driver will not say
    host: int = 0                       # bytes of host memory that is its own


@dataclass(frozen=True, slots=True)
class Sample:
    """What changes; None where the card or its driver cannot say."""

    memory_used: int | None = None      # bytes, by everybody
    utilisation: float | None = None    # 0 to 1, share of the last period with a kernel running
    temperature: int | None = None      # degrees Celsius
    power: float | None = None          # watts
    processes: tuple[Process, ...] | None = None
    trouble: str = ""                   # why the first figure is absent; "": it is not


@dataclass(frozen=True, slots=True)
class Mode:
    """How the administrator has set a card; False where it cannot say."""

    exclusive: bool = False             # one process at a time, or none
    mig: bool = False                   # divided into instances


class NVML:
    """The library, initialised. Calls may block; make those about a card in one thread at a time.

    Cards are looked up when they are found, and again after a failure: to find one by its UUID
    the library may ask others, and would wait for one that does not answer.
    """

    def __init__(self) -> None:
        """Raises NoDriver with what to do about it."""
        self._nvml = _library()
        self._handles: dict[str, Any] = {}      # by UUID
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise _no_driver(self._nvml, error) from error

    def find(self) -> tuple[Facts, ...]:
        """All cards that answer. Raises NoGPU when there is none."""
        nvml = self._nvml
        try:
            found = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise _no_driver(self._nvml, error) from error
        cards = []
        for index in range(found):
            try:
                cards.append(self._facts(index))
            except Exception as error:
                logger.warning("GPU %d is left out: %s", index, self._words(error))
        if not cards:
            raise NoGPU(
                "the NVIDIA driver knows no GPU that can be shared",
                "see the lines above, and what nvidia-smi and dmesg say")
        return tuple(replace(
            card, linked=self._peers(card, cards, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
            reached=self._peers(card, cards, nvml.NVML_P2P_CAPS_INDEX_WRITE)) for card in cards)

    def _peers(self, card: Facts, cards: Iterable[Facts], capability: int) -> frozenset[str]:
        """UUIDs of the other cards that NVML says it reaches in this way."""
        nvml, handle = self._nvml, self._handles[card.uuid]

        def reaches(other: Facts) -> bool:
            try:
                status = self._ask(lambda: nvml.nvmlDeviceGetP2PStatus(
                    handle, self._handles[other.uuid], capability))
            except GPULost:
                return False            # its first sample says so, too
            return bool(status == nvml.NVML_P2P_STATUS_OK)

        return frozenset(
            other.uuid for other in cards
            if other is not card and not (card.mig or other.mig) and reaches(other))

    def driver(self) -> str:
        """The driver's version, "580.159"; "unknown" where it does not say."""
        return _text(self._ask(self._nvml.nvmlSystemGetDriverVersion) or "unknown")

    def mode(self, uuid: str) -> Mode:
        """How one card is set. Raises NvshareError when it does not answer."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            raise NvshareError(f"NVML does not find {uuid}: {self._words(error)}") from error
        compute = self._ask(lambda: nvml.nvmlDeviceGetComputeMode(handle))
        return Mode(
            exclusive=compute not in (None, nvml.NVML_COMPUTEMODE_DEFAULT), mig=self._mig(handle)
        )

    def sample(self, uuid: str) -> Sample:
        """Asks one card. Raises GPULost when it is gone, NvshareError when it is not found."""
        nvml = self._nvml
        try:
            handle = self._handles.get(uuid) or nvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            self._demand_card(error)
            raise NvshareError(f"NVML does not find {uuid}: {self._words(error)}") from error
        self._handles[uuid] = handle
        used, trouble = None, ""
        try:
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except Exception as error:
            del self._handles[uuid]     # the next question looks for the card anew
            self._demand_card(error)
            trouble = f"NVML does not say how much memory is in use: {self._words(error)}"
        utilisation = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Sample(
            memory_used=used,
            utilisation=None if utilisation is None else utilisation / 100,
            temperature=self._ask(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            power=None if milliwatts is None else milliwatts / 1000,
            processes=None if processes is None else tuple(
                Process(p.pid, p.usedGpuMemory, host.private(p.pid)) for p in processes
            ),
            trouble=trouble,
        )

    def watch_faults(self, uuids: Iterable[str], tell: Callable[[str, str], None]) -> None:
        """Calls `tell` with a card's UUID and words for each error that is no program's own.

        Blocks for as long as a card can say such things. A card that NVML loses is left out.
        """
        nvml = self._nvml
        uuids = tuple(uuids)
        try:
            while True:
                events = nvml.nvmlEventSetCreate()
                cards = self._register(events, uuids)
                if not cards:
                    return
                self._hear(events, cards, tell)
                nvml.nvmlEventSetFree(events)
                time.sleep(FAULT_PAUSE)
        except Exception as error:
            # Such as a driver that is unloaded: the figures of the cards say what becomes of them.
            logger.warning("errors of the GPUs are not heard: %s", self._words(error))

    def _register(self, events: Any, uuids: Iterable[str]) -> dict[int | None, str]:
        """Has cards put their errors into a set of events. Returns them by NVML's address."""
        nvml = self._nvml
        cards: dict[int | None, str] = {}
        for uuid in uuids:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                logger.debug("%s does not tell of errors: %s", uuid, error)
            else:
                cards[ctypes.cast(handle, ctypes.c_void_p).value] = uuid
        return cards

    def _hear(
        self, events: Any, cards: Mapping[int | None, str], tell: Callable[[str, str], None],
    ) -> None:
        """Tells of errors until NVML refuses to wait for more, as it does when one card is lost."""
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(events, FAULT_WAIT)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                logger.debug("NVML does not wait for errors of the GPUs: %s", error)
                return
            found = cards.get(ctypes.cast(event.device, ctypes.c_void_p).value)
            if found is not None and event.eventData not in OF_PROGRAMS:
                tell(found, f"Xid {event.eventData}")

    def _facts(self, index: int) -> Facts:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        if not UUID.fullmatch(uuid):
            raise NvshareError(f"its UUID is {uuid!r}")
        self._handles[uuid] = handle
        try:
            name = printable(_text(nvml.nvmlDeviceGetName(handle)))
        except UnicodeDecodeError as error:     # pynvml decodes it strictly
            name = printable(error.object.decode(errors="replace"))
        except Exception as error:
            logger.warning("GPU %d does not tell its name: %s", index, self._words(error))
            name = f"GPU {index}"
        return Facts(
            index=index,
            uuid=uuid,
            name=name,
            pci_bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            memory_total=self._memory_total(handle),
            mig=self._mig(handle),
        )

    def _memory_total(self, handle: Any) -> int:
        """Bytes. Raises NvshareError for a card without any of its own."""
        nvml = self._nvml
        total = 0
        try:
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                raise
        if not total:
            # Such as GB10 and Jetson: what left the card would lie in the same memory as before.
            raise NvshareError("it has no memory of its own, but the host's, which is not shared")
        return total

    def _mig(self, handle: Any) -> bool:
        mode = self._ask(lambda: self._nvml.nvmlDeviceGetMigMode(handle)[0])
        return bool(mode == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _ask(self, question: Callable[[], Value]) -> Value | None:
        """Cards differ in what they can say; what they cannot is unknown. Raises GPULost."""
        try:
            return question()
        except Exception as error:
            self._demand_card(error)
            logger.debug("NVML has no answer: %s", self._words(error))
            return None

    def _demand_card(self, error: Exception) -> None:
        """Raises GPULost if it says that the card is gone."""
        lost = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_NOT_FOUND)
        if getattr(error, "value", None) in lost:
            raise GPULost(self._words(error)) from error

    def _words(self, error: Exception) -> str:
        """NVML's own, ours, or those of a fault in pynvml."""
        plain = isinstance(error, (self._nvml.NVMLError, NvshareError))
        return str(error) if plain else f"{type(error).__name__}: {error}"


def _library() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NoDriver(
            "the Python package nvidia-ml-py is not installed",
            "install it with: pip install nvidia-ml-py",
        ) from error
    return pynvml


def _no_driver(nvml: Any, error: Exception) -> NoDriver:
    """What NVML's error at its start means."""
    match getattr(error, "value", None):
        case nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return NoDriver(
                "libnvidia-ml.so.1 is not installed, so no GPU can be managed",
                "install the NVIDIA driver, or in a container let its toolkit mount it",
            )
        case nvml.NVML_ERROR_DRIVER_NOT_LOADED if not LOADED.exists():
            return NoDriver(
                "the NVIDIA driver is not loaded",
                "load it with: modprobe nvidia, or see dmesg for why it is not",
            )
        case nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return NoDriver(
                "the NVIDIA kernel module and libraries are of different versions",
                "reboot, or unload and load the nvidia modules",
            )
        case nvml.NVML_ERROR_NO_PERMISSION:
            return DriverUnready(
                "/dev/nvidiactl may not be opened",
                "run as a user who may, or check the unit's DeviceAllow=",
            )
        case _:
            return DriverUnready(
                f"the NVIDIA driver does not answer: {error}", "see what nvidia-smi says"
            )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
