# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet: pods get shared GPUs. A device plugin of Kubernetes, as a process of its own.

    kubelet ◄── gRPC ──► plugin ──► offer: which shares there are, and what a container gets
                                      ▲
                            watch ────┘  asks nvshared over D-Bus, and reads what kubelet gave away

    API server ◄─ api ──► pods ──► annotations: tells nvshared over D-Bus pods' names and terms

A process of its own, since gRPC would double the daemon's memory. It decides nothing about the
cards: it offers their shares, and refuses them while nvshared does not answer.
"""
