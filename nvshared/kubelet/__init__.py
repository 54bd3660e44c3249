# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet: pods get shared GPUs. A device plugin of Kubernetes, or a DRA driver.

    kubelet ◄── gRPC ──► plugin or driver ──► offer: which cards can be shared; container: what a
                                                ▲    container gets, by CDI if it is supported
                                      card ─────┘  asks nvshared over D-Bus, and reads what kubelet
                                                   gave away

    API server ◄─ api ─► pods ─► annotations: tells nvshared over D-Bus pods' names and terms, by
                    │      ▲     annotations and by claims
                    │      └── driver: has claims prepared
                    └── slices: says which cards there are to claim

A process of its own, since gRPC would double the daemon's memory. It decides nothing about the
cards: it offers their shares, and refuses them while nvshared does not answer.
"""
