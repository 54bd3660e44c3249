# SPDX-License-Identifier: Apache-2.0
"""The daemon's costs: decisions, memory, wake-ups, and the duration of commands."""
