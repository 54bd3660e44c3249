# SPDX-License-Identifier: Apache-2.0
"""Containers outside of Kubernetes: their devices, their names, and why one does not share.

`cdi` writes the specification by which runtimes give containers GPUs, also for nvshare-kubelet;
`names` asks Docker and Podman for names; `unshared` finds why a container does not share its GPU.
"""
