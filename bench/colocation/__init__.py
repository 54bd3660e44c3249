# SPDX-License-Identifier: Apache-2.0
"""Duration of programs that share a card, next to their duration alone."""
