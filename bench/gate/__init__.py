# SPDX-License-Identifier: Apache-2.0
"""What the gate adds to a launch."""
