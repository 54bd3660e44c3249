# SPDX-License-Identifier: Apache-2.0
"""Tables of all verbs of nvsharectl, and the dashboard of `nvsharectl top`.

tables.py formats the daemon's data. live.py runs the dashboard: state.py holds and
changes its state, screen.py draws the state, and only terminal.py accesses a terminal."""
