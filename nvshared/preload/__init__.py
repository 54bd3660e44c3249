# SPDX-License-Identifier: Apache-2.0
"""Adds libnvshare.so to /etc/ld.so.preload, which all programs load, or removes it.

A wrong entry in the list can keep every program from starting, including those
that would repair the list. So, before the list is written, switch.py checks that
only root can change the library, and trial.py that programs run with the library
preloaded. listing.py replaces the list atomically. Removal needs no checks.

All functions also work on a system below a folder, such as an image (tree.py).
"""
