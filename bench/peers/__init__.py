# SPDX-License-Identifier: Apache-2.0
"""The same programs under nvshared and under other projects that share a GPU, in one run."""
