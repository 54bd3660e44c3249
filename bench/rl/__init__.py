# SPDX-License-Identifier: Apache-2.0
"""What a hand-over takes between two engines of reinforcement learning that have a GPU in turns."""
