# SPDX-License-Identifier: Apache-2.0
"""Duration of a hand-over between two engines of reinforcement learning that alternate on a GPU."""
