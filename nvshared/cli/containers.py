# SPDX-License-Identifier: Apache-2.0
"""nvsharectl containers: the devices that containers can share."""

from nvshared.cli.verb import Options, argument, show, verb
from nvshared.errors import NvshareError

ACTIONS = ("status", "refresh")


@verb(
    "containers",
    argument("action", "ACTION", "status (the default): show the devices; refresh: write the "
             "specification again, as root", choices=ACTIONS, nargs="?", default="status"))
def containers(options: Options) -> None:
    """The devices with which containers share a GPU.

    Docker, Podman and others give a container the devices of a specification of the Container
    Device Interface (CDI). nvshared's, /var/run/cdi/nvshare.com-gpu.json, has a device for each GPU
    and one for all: NVIDIA's device of the same GPU, with the library and nvshared's socket. A unit
    of systemd, nvshare-cdi.path, writes it again when NVIDIA's specification changes.

        docker run --device nvshare.com/gpu=all IMAGE  # or podman; GPU 0: nvshare.com/gpu=0
        nvsharectl containers                          # the devices, or the missing part
        sudo nvsharectl containers refresh             # without systemd
    """
    from nvshared.containers import cdi

    offer = cdi.refresh() if options.action == "refresh" else cdi.offer()
    data = {"path": str(offer.path), "devices": list(offer.devices), "current": offer.current,
            "missing": offer.missing}

    def text() -> None:
        if offer.devices:
            print(f"{offer.path} gives containers these devices:")
            print("\n".join(f"  --device {one}" for one in offer.devices))
        if offer.missing:
            print(f"{offer.missing[:1].upper()}{offer.missing[1:]}.\n→ {offer.hint}")

    show(options, data, text)
    if not offer.current:
        raise NvshareError(f"{offer.path} is not current",
                           "write it again: sudo nvsharectl containers refresh")
