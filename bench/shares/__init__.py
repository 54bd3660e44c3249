# SPDX-License-Identifier: Apache-2.0
"""What each program gets of a card that it shares, next to what it should get."""
