# SPDX-License-Identifier: Apache-2.0
# The hook against a daemon, and other programs, that may send anything; see fuzz.h.
#   make fuzz [SECONDS=60]     libFuzzer, where clang is; what it finds stays in build/fuzz
#   make fuzz-sharing [...]    the same with processes that share memory
#   make fuzz-random           $(BUILD)/fuzz/random, sharing-random: without it, always the same inputs

CLANG ?= clang
SECONDS ?= 60
FUZZ := $(BUILD)/fuzz
FUZZ_ORDERS := $(addprefix tests/fuzz/,orders.c peer.c program.c state.c)
FUZZ_SHARING := $(addprefix tests/fuzz/,sharing.c peer.c program.c visitors.c liar.c)
# The fuzzer's own dlsym() must stay the C library's.
FUZZ_HOOK := $(filter-out src/driver/lookup.c src/driver/dlsym.S,$(wildcard src/*/*.c src/*/*.S))
FUZZ_FLAGS := -std=gnu11 -O1 -g -pthread -Iinclude -Isrc -Itests/fuzz -fno-omit-frame-pointer \
	-DNVSHARE_ANY_GLIBC
# An old-style path, which counts for a dlopen() that the sanitizer passes on, too.
FUZZ_LINK := -ldl -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../simulator'
FUZZ_NEEDS := $(FUZZ_HOOK) $(wildcard tests/fuzz/*.c src/*/*.h src/*/*.def tests/fuzz/*.h include/nvshare/*.h)

FUZZ_CLANG = $(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
FUZZ_RANDOM = $(CC) $(FUZZ_FLAGS) $(WARN) -fsanitize=address,undefined -fno-sanitize-recover=all

.PHONY: fuzz fuzz-sharing fuzz-random
fuzz: $(FUZZ)/orders
fuzz-sharing: $(FUZZ)/sharing
# print_funcs starts a program that holds pipes open, which counts as a leak.
fuzz fuzz-sharing: $(SIMULATOR)/libcuda.so.1
	@mkdir -p $(FUZZ)/corpus-$@
	$(filter $(FUZZ)/%,$^) -max_total_time=$(SECONDS) -timeout=120 -max_len=400 -print_final_stats=1 -print_funcs=0 \
		-artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus-$@

fuzz-random: $(FUZZ)/random $(FUZZ)/sharing-random $(SIMULATOR)/libcuda.so.1

$(FUZZ)/orders: $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	$(FUZZ_CLANG) $(FUZZ_HOOK) $(FUZZ_ORDERS) $(FUZZ_LINK) -o $@

$(FUZZ)/sharing: $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	$(FUZZ_CLANG) $(FUZZ_HOOK) $(FUZZ_SHARING) $(FUZZ_LINK) -o $@

$(FUZZ)/random: $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	$(FUZZ_RANDOM) $(FUZZ_HOOK) $(FUZZ_ORDERS) tests/fuzz/random.c $(FUZZ_LINK) -o $@

$(FUZZ)/sharing-random: $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	$(FUZZ_RANDOM) $(FUZZ_HOOK) $(FUZZ_SHARING) tests/fuzz/random.c $(FUZZ_LINK) -o $@
