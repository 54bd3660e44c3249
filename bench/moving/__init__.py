# SPDX-License-Identifier: Apache-2.0
"""Duration of parking, waking and moving a program."""
