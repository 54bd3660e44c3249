# SPDX-License-Identifier: Apache-2.0
"""What parking, waking and moving a program takes."""
