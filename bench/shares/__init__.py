# SPDX-License-Identifier: Apache-2.0
"""Each program's part of a shared card, compared with the part that it should get."""
