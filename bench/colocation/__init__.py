# SPDX-License-Identifier: Apache-2.0
"""How long programs take that share a card, next to what they take alone."""
