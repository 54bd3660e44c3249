# SPDX-License-Identifier: Apache-2.0
"""What people see: tables and the live dashboard, drawn from a snapshot.

Nothing here asks the daemon anything. A snapshot goes in, and something that
rich can print comes out (tables.py also knows plain text).
"""
