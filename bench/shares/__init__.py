# SPDX-License-Identifier: Apache-2.0
"""Each program's part of a shared card, next to the part that it should get."""
