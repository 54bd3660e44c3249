# SPDX-License-Identifier: Apache-2.0
"""A day of many tenants under the real scheduler, in virtual time: what a policy would do."""
