# SPDX-License-Identifier: Apache-2.0
"""Search for leaks after hours of hand-overs."""
