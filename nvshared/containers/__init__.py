# SPDX-License-Identifier: Apache-2.0
"""Containers outside of Kubernetes: what they get of nvshared, and what they are called.

`cdi` writes the specification with which runtimes give them GPUs, also for nvshare-kubelet;
`names` asks Docker and Podman for names; `unshared` finds why a container does not share its GPU.
"""
