# SPDX-License-Identifier: Apache-2.0
#   make coverage     COVERAGE.md: what is done with each function of the driver, and tested by what

.PHONY: coverage
coverage:
	cd .. && python3 -m libhook.coverage

include tests/fuzz/fuzz.mk
