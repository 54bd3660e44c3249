# SPDX-License-Identifier: Apache-2.0
"""Duration of requests to many models on one card, and its parts."""
