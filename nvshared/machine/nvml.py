# SPDX-License-Identifier: Apache-2.0
"""Queries the driver's management library (NVML). Only this module imports pynvml.

NVML calls can take seconds, so after the start they are made in one thread per card (sampler.py).
Any exception of a query concerns only its card; pynvml raises others than NVMLError, too."""

import ctypes
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from threading import Condition
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from nvshared.errors import DriverMismatch, DriverUnready, GPULost, NoDriver, NoGPU, NvshareError
from nvshared.machine import host
from nvshared.machine.peer import printable
from nvshared.names import DRIVER_VERSION

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# Errors (Xid) that a program causes and that end with it: 13 invalid instructions, 31 invalid
# addresses, 43 and 45 the program's end, 68 video processor, 109 timeout of a context switch.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
FAULT_WAIT = 2_000                      # milliseconds that one NVML call waits for an error event
RENEW_PATIENCE = 4.0                    # seconds that renew() waits until no NVML call is under way
FAULT_PAUSE = 5.0                       # seconds from a failed wait for events to the next one

# This file exists once the kernel module is loaded. If nvshared.service itself loads the module,
# systemd lacked its device numbers for DeviceAllow=, so the first daemon can open no device.
LOADED = Path(DRIVER_VERSION)
PROC_GPUS = Path("/proc/driver/nvidia/gpus")     # has a folder for each card that the driver found


def uuid_bytes(uuid: str) -> bytes:
    """Converts a UUID of NVML ("GPU-" and 36 characters) to the 16 bytes of cuDeviceGetUuid."""
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


def uuid_text(uuid: bytes) -> str:
    """The reverse of uuid_bytes(). The module uuid would take 0.4 MiB of the daemon."""
    digits = uuid.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass(frozen=True)
class Facts:
    index: int                          # NVML's index, which follows the order of PCI addresses
    uuid: str                           # "GPU-" and 36 characters
    name: str                           # "NVIDIA H200"
    pci_bus_id: str                     # "00000000:17:00.0"
    memory_total: int                   # bytes
    mig: bool = False                   # MIG mode was on when find() ran
    linked: frozenset[str] = frozenset()    # UUIDs of cards with a peer-to-peer path over NVLink
    reached: frozenset[str] = frozenset()   # UUIDs of all cards with memory this card can write to
    serial: str = field(default="", compare=False)  # of its board; "": the driver does not tell it

    @cached_property
    def uuid_bytes(self) -> bytes:
        return uuid_bytes(self.uuid)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names of the card that users can give, in lower case."""
        pci, uuid = self.pci_bus_id.lower(), self.uuid.lower()
        # nvidia-smi writes the PCI domain with eight digits, lspci with four.
        return frozenset({str(self.index), uuid, uuid.removeprefix("gpu-"), pci,
                          pci.removeprefix("0000"), pci.removeprefix("00000000:")})


class Process(NamedTuple):
    pid: int                            # in the pid namespace that the driver's reports use
    memory: int | None                  # bytes on the card; None: the driver does not report it
    host: int = 0                       # bytes of the process's private host memory


@dataclass(frozen=True, slots=True)
class Sample:
    """The changing figures of a card; None: the card or its driver does not report the figure."""

    memory_used: int | None = None      # bytes used by all processes and by the driver
    utilisation: float | None = None    # 0 to 1, share of the last period with a kernel running
    temperature: int | None = None      # degrees Celsius
    power: float | None = None          # watts
    processes: tuple[Process, ...] | None = None
    trouble: str = ""                   # why `memory_used` is absent; "": it is present


Parameters = ParamSpec("Parameters")


def _entered(function: Callable[Concatenate["NVML", Parameters], Value]
             ) -> Callable[Concatenate["NVML", Parameters], Value]:
    """A method of NVML during which the library is not initialised anew."""
    @wraps(function)
    def call(self: "NVML", /, *given: Parameters.args, **named: Parameters.kwargs) -> Value:
        with self._idle:
            self._idle.wait_for(lambda: not self._renewing)
            self._calls += 1
        try:
            return function(self, *given, **named)
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    return call


class NVML:
    """The initialised library. Calls may block; query a card in one thread at a time.

    Handles of cards are kept: a lookup by UUID may wait for another card that does not respond. The
    library finds cards when it is initialised, so renew() precedes a find() of added ones."""

    def __init__(self) -> None:
        """Raises NoDriver."""
        try:
            import pynvml
        except ImportError as error:
            raise NoDriver("the Python package nvidia-ml-py is not installed",
                           "install it with: pip install nvidia-ml-py") from error
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}      # NVML's device handles by UUID
        self._idle = Condition()        # protects the next two; notified at the end of each call
        self._calls = 0                 # calls under way of methods that are _entered
        self._renewing = False
        self.renewals = 0               # how often the library was initialised anew
        # Failures that were logged, lest repeated calls log them again: by index of the card and
        # query, or "watch".
        self._logged: dict[tuple[int, str] | str, str] = {}
        self.seen: tuple[object, ...] | None = None     # the last fingerprint() of watch_faults()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise _no_driver(self._nvml, error) from error

    def renew(self) -> bool:
        """Initialises the library anew, so that find() sees cards that were added or repaired.

        False: another call has not returned, or the library cannot be initialised now."""
        with self._idle:
            self._renewing = True
            try:
                if not self._idle.wait_for(lambda: not self._calls, RENEW_PATIENCE):
                    return False
                with suppress(self._nvml.NVMLError):    # an earlier renew() failed half-way
                    self._nvml.nvmlShutdown()
                self._handles.clear()
                self.renewals += 1
                self._nvml.nvmlInit()
            except self._nvml.NVMLError as error:
                logger.debug("NVML cannot be initialised: %s", error)
                return False
            finally:
                self._renewing = False
                self._idle.notify_all()
        return True

    @_entered
    def fingerprint(self) -> tuple[object, ...]:
        """A value that changes when the driver finds more or fewer cards."""
        try:
            there = tuple(sorted(one.name for one in PROC_GPUS.iterdir()))
        except OSError:
            there = ()
        return (self._query(self._nvml.nvmlDeviceGetCount), there)

    @_entered
    def find(self) -> tuple[Facts, ...]:
        """Returns all cards that respond. Raises NoGPU if there is none."""
        nvml = self._nvml
        try:
            found = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise _no_driver(nvml, error) from error
        cards: dict[Facts, Any] = {}    # with handles: a failing sample drops those of _handles
        for index in range(found):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                cards[self._facts(index, handle)] = handle
                self._logged.pop((index, "facts"), None)
            except Exception as error:
                self._log((index, "facts"), f"GPU {index} is left out: {self._describe(error)}")
        if not cards:
            raise NoGPU("the NVIDIA driver knows no GPU that can be shared",
                        "see the lines above, and what nvidia-smi and dmesg say")
        return tuple(replace(
            card, linked=self._peers(card, cards, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
            reached=self._peers(card, cards, nvml.NVML_P2P_CAPS_INDEX_WRITE)) for card in cards)

    def _peers(self, card: Facts, cards: Mapping[Facts, Any], capability: int) -> frozenset[str]:
        """Returns UUIDs of the cards that this card reaches with a peer-to-peer capability."""
        nvml = self._nvml

        def reaches(other: Facts) -> bool:
            try:
                status = self._query(lambda: nvml.nvmlDeviceGetP2PStatus(
                    cards[card], cards[other], capability))
            except GPULost:
                return False            # the first sample reports the loss
            return bool(status == nvml.NVML_P2P_STATUS_OK)

        return frozenset(
            other.uuid for other in cards
            if other is not card and not (card.mig or other.mig) and reaches(other))

    @_entered
    def driver(self) -> str:
        """Returns the driver's version, such as "580.159"; "unknown" if the query fails."""
        return self._query(self._nvml.nvmlSystemGetDriverVersion) or "unknown"

    @_entered
    def is_exclusive(self, uuid: str) -> bool:
        """Whether a card's compute mode is exclusive or prohibited. Raises as sample()."""
        nvml, handle = self._nvml, self._handle(uuid)
        mode = self._query(lambda: nvml.nvmlDeviceGetComputeMode(handle))
        return mode not in (None, nvml.NVML_COMPUTEMODE_DEFAULT)

    @_entered
    def sample(self, uuid: str) -> Sample:
        """Samples one card. Raises GPULost if it is lost, NvshareError if it is not found."""
        nvml, handle = self._nvml, self._handle(uuid)
        used, trouble = None, ""
        try:
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except Exception as error:
            self._handles.pop(uuid, None)   # the next sample looks the card up again
            self._raise_if_lost(error)
            trouble = f"NVML does not say how much memory is in use: {self._describe(error)}"
        utilisation = self._query(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        milliwatts = self._query(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = self._query(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Sample(
            memory_used=used,
            utilisation=None if utilisation is None else utilisation / 100,
            temperature=self._query(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power=None if milliwatts is None else milliwatts / 1000,
            processes=None if processes is None else tuple(
                Process(p.pid, p.usedGpuMemory, host.private(p.pid)) for p in processes),
            trouble=trouble)

    @_entered
    def memory(self, uuid: str, pid: int | None = None) -> int | None:
        """Returns the bytes of a card in use now, or used by a process; None: NVML does not say.

        Faster than sample(), so the figure is younger. Raises as sample()."""
        nvml, handle = self._nvml, self._handle(uuid)
        if pid is None:
            return self._query(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
        listed = self._query(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        return next((one.usedGpuMemory for one in listed if one.pid == pid), None)

    def _handle(self, uuid: str) -> Any:
        """Returns the handle of a card. Raises as sample()."""
        try:
            return self._handles.get(uuid) or self._handles.setdefault(
                uuid, self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        except Exception as error:
            self._raise_if_lost(error)
            raise NvshareError(f"NVML does not find {uuid}: {self._describe(error)}") from error

    def watch_faults(self, uuids: Iterable[str], report: Callable[[str, str], None]) -> None:
        """Calls `report` with a card's UUID and a text for each error not caused by a program.

        Blocks while at least one card reports errors. Cards that NVML loses are left out. After
        renew(), `uuids` is read again. Updates `seen` after each wait, as the thread runs then."""
        self.seen = None
        try:
            while (watched := self._register(uuids)).cards:
                self._logged.pop("watch", None)
                self.seen = self.fingerprint()
                while self._report_fault(watched, report):
                    self.seen = self.fingerprint()
                if watched.renewals == self.renewals:
                    time.sleep(FAULT_PAUSE)
        except Exception as error:
            # For example, the driver was unloaded: then the samples of the cards fail, too.
            self._log("watch", f"errors of the GPUs are not reported: {self._describe(error)}")

    @_entered
    def _register(self, uuids: Iterable[str]) -> "_Watched":
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        cards: dict[int | None, str] = {}
        for uuid in tuple(uuids):
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                logger.debug("%s reports no errors: %s", uuid, error)
            else:
                cards[ctypes.cast(handle, ctypes.c_void_p).value] = uuid
        return _Watched(events, cards, self.renewals)

    @_entered
    def _report_fault(self, watched: "_Watched", report: Callable[[str, str], None]) -> bool:
        """Waits for an error. False: NVML's wait fails, as it does after a card is lost, or the
        library was initialised anew."""
        nvml = self._nvml
        if watched.renewals != self.renewals:
            return False
        try:
            event = nvml.nvmlEventSetWait_v2(watched.events, FAULT_WAIT)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return True
            logger.debug("NVML does not wait for errors of the GPUs: %s", error)
            nvml.nvmlEventSetFree(watched.events)
            return False
        found = watched.cards.get(ctypes.cast(event.device, ctypes.c_void_p).value)
        if found is not None and event.eventData not in OF_PROGRAMS:
            report(found, f"Xid {event.eventData}")
        return True

    def _facts(self, index: int, handle: Any) -> Facts:
        nvml = self._nvml
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if not UUID.fullmatch(uuid):
            raise NvshareError(f"its UUID is {uuid!r}")
        self._handles[uuid] = handle
        try:
            name = printable(nvml.nvmlDeviceGetName(handle))
        except UnicodeDecodeError as error:     # pynvml decodes names as strict UTF-8
            name = printable(error.object.decode(errors="replace"))
        except Exception as error:
            self._log((index, "name"),
                      f"GPU {index}: its name cannot be read: {self._describe(error)}")
            name = f"GPU {index}"
        return Facts(index=index, uuid=uuid, name=name,
                     pci_bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId,
                     memory_total=self._memory_total(handle), mig=self._mig(handle),
                     serial=str(self._query(lambda: nvml.nvmlDeviceGetSerial(handle)) or ""))

    def _memory_total(self, handle: Any) -> int:
        """Returns the card's memory in bytes. Raises NvshareError if it has no own memory."""
        nvml = self._nvml
        try:
            if total := int(nvml.nvmlDeviceGetMemoryInfo(handle).total):
                return total
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                raise
        # GB10 and Jetson, for example: evicted memory would stay in the same physical memory.
        raise NvshareError("it has no memory of its own, but the host's, which is not shared")

    def _mig(self, handle: Any) -> bool:
        mode = self._query(lambda: self._nvml.nvmlDeviceGetMigMode(handle)[0])
        return bool(mode == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _query(self, query: Callable[[], Value]) -> Value | None:
        """Makes a query. Returns None if it fails. Raises GPULost if the card is lost."""
        try:
            return query()
        except Exception as error:
            self._raise_if_lost(error)
            logger.debug("a query failed: %s", self._describe(error))
            return None

    def _raise_if_lost(self, error: Exception) -> None:
        lost = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_NOT_FOUND)
        if getattr(error, "value", None) in lost:
            raise GPULost(self._describe(error)) from error

    def _log(self, key: tuple[int, str] | str, words: str) -> None:
        if self._logged.get(key) != words:
            logger.warning("%s", words)
        self._logged[key] = words

    def _describe(self, error: Exception) -> str:
        """Returns an error's text; before it the type, unless the error is NVML's or nvshared's."""
        plain = isinstance(error, (self._nvml.NVMLError, NvshareError))
        return str(error) if plain else f"{type(error).__name__}: {error}"


class _Watched(NamedTuple):
    """NVML's set of the error events of some cards."""

    events: Any
    cards: Mapping[int | None, str]     # UUIDs by address of NVML's handle
    renewals: int                       # NVML.renewals when it was made


def _no_driver(nvml: Any, error: Exception) -> NoDriver:
    match getattr(error, "value", None):
        case nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return NoDriver("libnvidia-ml.so.1 is not installed, so no GPU can be managed",
                            "install the NVIDIA driver, or in a container let its toolkit mount it"
                            "; to try nvshared without a GPU: nvsharectl trial start")
        case nvml.NVML_ERROR_DRIVER_NOT_LOADED if not LOADED.exists():
            return NoDriver("the NVIDIA driver is not loaded",
                            "load it with: modprobe nvidia, or see dmesg for why it is not")
        case nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return DriverMismatch(
                "the NVIDIA kernel module and libraries are of different versions",
                "reboot, or unload and load the nvidia modules")
        case nvml.NVML_ERROR_NO_PERMISSION:
            return DriverUnready("/dev/nvidiactl may not be opened",
                                 "run as a user who may, or check the unit's DeviceAllow=")
        case _:
            return DriverUnready(
                f"the NVIDIA driver does not answer: {error}", "see what nvidia-smi says")
