# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet: pods get shared GPUs. A device plugin of Kubernetes, or a DRA driver.

    kubelet ◄── gRPC ──► plugin or driver ──► offer: which cards can be shared; container: what a
                                                ▲    container gets, by CDI if it is supported
                                      card ─────┘  asks nvshared over D-Bus, and reads kubelet's
                                                   checkpoint file: devices in use

    API server ◄─ api ─► pods ─► annotations: sets pods' names and terms in nvshared over D-Bus,
                    │      ▲     from annotations and claims
                    │      └── driver: has claims prepared
                    └── slices: publishes the GPUs: labels, and devices for claims

nvshare-kubelet is a process of its own, since gRPC would double the daemon's memory. It makes no
scheduling decisions: it offers shares of GPUs, and refuses them while nvshared does not reply.
"""
