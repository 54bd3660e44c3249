# SPDX-License-Identifier: Apache-2.0
"""nvsharectl: the command line. One module per verb, its parser and its action side by side."""
