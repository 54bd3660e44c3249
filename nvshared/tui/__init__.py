# SPDX-License-Identifier: Apache-2.0
"""Tables of all verbs of nvsharectl, and the dashboard of `nvsharectl top`.

figures.py and tables.py format the daemon's data as text. The dashboard: state.py holds
its whole state, changes the state on keys, mouse events and snapshots, and issues commands for the
daemon. screen.py draws the state, with panels.py (GPUs), programs.py and
canvas.py. Only terminal.py accesses a terminal. live.py runs the dashboard.
Tests: unit/test_top_*.py, bus/test_top.py on a pty, bus/test_tmux.py in a terminal.
"""
