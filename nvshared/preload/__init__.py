# SPDX-License-Identifier: Apache-2.0
"""Adds libnvshare.so to /etc/ld.so.preload, which all programs load, or removes it.

A wrong entry can keep every program from starting, also programs that would repair the list. So
switch.py first checks that only root can change the library, and trial.py that programs run with
it. All functions also work on a system below a folder, such as an image (tree.py)."""
