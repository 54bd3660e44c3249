# SPDX-License-Identifier: Apache-2.0
"""Bytes copied when one program takes over the card from another, and the duration."""
