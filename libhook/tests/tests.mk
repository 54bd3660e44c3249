# SPDX-License-Identifier: Apache-2.0
#   make coverage     COVERAGE.md: what is done with each function of the driver, and tested by what
#   make protocol     include/nvshare/messages.h and tables of ../docs/internals/connections.md, from the table in
#                     ../nvshared/hook/protocol.py

.PHONY: coverage protocol
coverage:
	cd .. && python3 -m libhook.coverage

protocol:
	cd .. && python3 -m libhook.messages

include tests/fuzz/fuzz.mk
