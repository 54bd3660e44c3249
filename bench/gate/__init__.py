# SPDX-License-Identifier: Apache-2.0
"""The time that the gate adds to a kernel launch."""
