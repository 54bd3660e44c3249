# SPDX-License-Identifier: Apache-2.0
"""Cost of the preloaded library for a program that does not use CUDA."""
