# SPDX-License-Identifier: Apache-2.0
"""What people see: tables and the live dashboard, drawn from a snapshot.

A snapshot goes in, and something that rich can print comes out (tables.py also
knows plain text). What the dashboard is to ask of the daemon is in commands.py;
whoever uses it hands that a connection.
"""
