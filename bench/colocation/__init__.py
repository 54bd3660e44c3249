# SPDX-License-Identifier: Apache-2.0
"""Duration of programs that share a card, compared with their duration alone."""
