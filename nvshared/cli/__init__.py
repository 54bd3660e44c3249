# SPDX-License-Identifier: Apache-2.0
"""nvsharectl, the command line of nvshared. Each module has one verb or several related verbs."""
