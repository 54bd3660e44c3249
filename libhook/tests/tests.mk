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

# The library with one more tier, tests/tier/second.c, before all others.
TIERED := $(BUILD)/tiered
TIERED_SOURCES := src/tier/tier.c src/tier/tiers.c tests/tier/second.c

all: $(TIERED)/libnvshare.so
$(TIERED)/tier/tiers.def: src/tier/tiers.def
	@mkdir -p $(@D)
	{ echo 'TIER(second)'; cat $<; } > $@

$(TIERED)/libnvshare.so: $(HOOK_OBJECTS) $(TIERED_SOURCES) $(TIERED)/tier/tiers.def src/libnvshare.map
	$(CC) -I$(TIERED) $(ALL_CFLAGS) -include src/driver/glibc.h -shared $(ALL_LDFLAGS) \
		-Wl,-Bsymbolic-functions -Wl,--version-script=src/libnvshare.map $(TIERED_SOURCES) \
		$(filter-out $(BUILD)/src/tier/tier.o $(BUILD)/src/tier/tiers.o,$(HOOK_OBJECTS)) -ldl -o $@
