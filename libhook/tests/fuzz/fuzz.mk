# SPDX-License-Identifier: Apache-2.0
# The hook against a daemon that may send anything; see fuzz.h.
#   make fuzz [SECONDS=60]     libFuzzer, where clang is; what it finds stays in build/fuzz
#   make fuzz-random           $(BUILD)/fuzz/random: the same without it, always the same inputs

CLANG ?= clang
SECONDS ?= 60
FUZZ := $(BUILD)/fuzz
FUZZ_SOURCES := $(filter-out tests/fuzz/random.c,$(wildcard tests/fuzz/*.c))
# The fuzzer's own dlsym() must stay the C library's.
FUZZ_HOOK := $(filter-out src/lookup.c,$(wildcard src/*.c))
FUZZ_FLAGS := -std=gnu11 -O1 -g -pthread -Iinclude -Isrc -Itests/fuzz -fno-omit-frame-pointer \
	-DNVSHARE_ANY_GLIBC
# An old-style path, which counts for a dlopen() that the sanitizer passes on, too.
FUZZ_LINK := -ldl -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../simulator'
FUZZ_NEEDS := $(FUZZ_HOOK) $(FUZZ_SOURCES) $(wildcard src/*.h src/*.def tests/fuzz/*.h include/nvshare/*.h)

.PHONY: fuzz fuzz-random
fuzz: $(FUZZ)/orders $(SIMULATOR)/libcuda.so.1
	@mkdir -p $(FUZZ)/corpus
	$(FUZZ)/orders -max_total_time=$(SECONDS) -timeout=120 -max_len=400 -print_final_stats=1 \
		-artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus

fuzz-random: $(FUZZ)/random $(SIMULATOR)/libcuda.so.1

$(FUZZ)/orders: $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		$(FUZZ_HOOK) $(FUZZ_SOURCES) $(FUZZ_LINK) -o $@

$(FUZZ)/random: $(FUZZ_NEEDS) tests/fuzz/random.c
	@mkdir -p $(@D)
	$(CC) $(FUZZ_FLAGS) $(WARN) -fsanitize=address,undefined -fno-sanitize-recover=all \
		$(FUZZ_HOOK) $(FUZZ_SOURCES) tests/fuzz/random.c $(FUZZ_LINK) -o $@
