# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs: decisions, memory, wake-ups, and the time commands take."""
