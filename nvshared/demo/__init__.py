# SPDX-License-Identifier: Apache-2.0
"""The demonstration: two programs that do not fit together share one GPU."""
