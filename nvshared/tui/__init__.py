# SPDX-License-Identifier: Apache-2.0
"""What people see: tables of all verbs, and the dashboard of `nvsharectl top`.

figures.py, terms.py and tables.py make text of what the daemon said. The dashboard: state.py is all
that it shows; actions.py changes that at keys, mouse and news, and asks the daemon for changes;
screen.py draws it, of panels.py (the GPUs) and programs.py with canvas.py, and past.py keeps the
last minutes. None of these knows a terminal: terminal.py does, and live.py puts all together.
Tests: unit/test_top_*.py, bus/test_top.py on a pty, bus/test_tmux.py in a terminal.
"""
