# SPDX-License-Identifier: Apache-2.0
"""What people see: tables and the live dashboard, drawn from a snapshot.

A snapshot goes in, and something that rich can print comes out (tables.py also
knows plain text). What the dashboard is to ask of the daemon is in commands.py;
whoever uses it hands that a connection.

The dashboard: actions.py says what keys and mouse do to the state (state.py), screen.py
draws the state, guide.py has the help; none of these knows a terminal. terminal.py is
the terminal, cli/looker.py asks the daemon in a thread, cli/watch.py puts them together.
Tests: unit/test_top_*.py, bus/test_top.py on a pty, bus/test_tmux.py in a real terminal.
"""
