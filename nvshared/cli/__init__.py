# SPDX-License-Identifier: Apache-2.0
"""nvsharectl: the command line. Verbs that belong together share a module."""
