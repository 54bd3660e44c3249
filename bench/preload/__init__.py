# SPDX-License-Identifier: Apache-2.0
"""What a preloaded library costs a program that does not use CUDA."""
