# SPDX-License-Identifier: Apache-2.0
# The simulated GPU: libcuda.so.1 and libnvidia-ml.so.1 in $(BUILD)/simulator.
# A program finds them with LD_LIBRARY_PATH=build/simulator.
#   make test-simulator [SANITIZE=thread|address]     its own tests

SIMULATOR := $(BUILD)/simulator
# Its rooms, not those of the library, some of which have the same names.
SIMULATOR_CFLAGS := $(filter-out -Isrc,$(ALL_CFLAGS)) -Isimulator
NVML_SOURCES := $(wildcard simulator/nvml/*.c simulator/shared/*.c)
CUDA_SOURCES := $(filter-out simulator/nvml/%,$(wildcard simulator/*/*.c))
CUDA_OBJECTS := $(addprefix $(BUILD)/,$(CUDA_SOURCES:.c=.o))
NVML_OBJECTS := $(addprefix $(BUILD)/,$(NVML_SOURCES:.c=.o))
SIMULATOR_TESTS := $(addprefix $(BUILD)/tests/simulator/,flight)

.PHONY: simulator simulator-tests test-simulator
all: simulator
simulator: $(SIMULATOR)/libcuda.so.1 $(SIMULATOR)/libnvidia-ml.so.1 $(SIMULATOR)/libcuda.a

$(BUILD)/simulator/%.o: simulator/%.c
	@mkdir -p $(@D)
	$(CC) $(SIMULATOR_CFLAGS) -MMD -MP -c $< -o $@

# Calls within the library stay within it, whatever is preloaded.
$(SIMULATOR)/libcuda.so.1: $(CUDA_OBJECTS)
	$(CC) $(ALL_CFLAGS) -shared $(ALL_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 \
		$(CUDA_OBJECTS) -o $@

# For drivers that tests make of this one: exactly the objects of today's sources.
$(SIMULATOR)/libcuda.a: $(CUDA_OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $(CUDA_OBJECTS)

$(SIMULATOR)/libnvidia-ml.so.1: $(NVML_OBJECTS)
	$(CC) $(ALL_CFLAGS) -shared $(ALL_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,libnvidia-ml.so.1 \
		$(NVML_OBJECTS) -o $@

-include $(CUDA_OBJECTS:.o=.d) $(NVML_OBJECTS:.o=.d)

$(SIMULATOR_TESTS): $(BUILD)/tests/simulator/%: tests/simulator/%.c $(wildcard tests/simulator/*.h) $(SIMULATOR)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(SIMULATOR_CFLAGS) $< -o $@ -L$(SIMULATOR) -l:libcuda.so.1

simulator-tests: $(SIMULATOR_TESTS)

# With two simulated cards that no other process uses.
test-simulator: simulator-tests
	@set -e; directory=$$(mktemp -d); trap 'rm -rf $$directory' EXIT; \
	export LD_LIBRARY_PATH=$(SIMULATOR) NVSHARE_SIM_GPUS=2 NVSHARE_SIM_MEMORY=1G \
		NVSHARE_SIM_DIR=$$directory; \
	for test in $(SIMULATOR_TESTS); do $$test; done
