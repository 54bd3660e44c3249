# SPDX-License-Identifier: Apache-2.0
"""What passes when one program takes over from another, and how fast."""
