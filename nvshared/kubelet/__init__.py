# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet: pods get shared GPUs. A device plugin of Kubernetes, or a DRA driver.

    kubelet ◄── gRPC ──► plugin ──► card: which GPUs can be shared, from nvshared over D-Bus and
                               │          kubelet's checkpoint file: devices in use
                               └──► container: what a container gets, by CDI if it is supported

    API server ◄─ api ─► pods ─► annotations: sets pods' names and terms in nvshared over D-Bus,
                    │      ▲     from annotations and claims
                    │      └── plugin: has claims prepared
                    └── slices: publishes the GPUs: labels, and devices for claims

It is a process of its own, since gRPC would double the daemon's memory."""
