# SPDX-License-Identifier: Apache-2.0
"""How long requests to many models on one card take, and where the time goes."""
