# SPDX-License-Identifier: Apache-2.0
"""Whether hours of hand-overs leave anything behind."""
