# SPDX-License-Identifier: Apache-2.0
"""Benchmarks; README.md says what each measures."""
