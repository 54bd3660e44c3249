# SPDX-License-Identifier: Apache-2.0
# The simulated GPU: libcuda.so.1 and libnvidia-ml.so.1 in $(BUILD)/simulator.
# A program finds them with LD_LIBRARY_PATH=build/simulator.

SIMULATOR := $(BUILD)/simulator
SIMULATOR_SHARED := simulator/shared_state.c simulator/process.c
NVML_SOURCES := simulator/nvml.c $(SIMULATOR_SHARED)
CUDA_SOURCES := $(filter-out simulator/nvml%.c,$(wildcard simulator/*.c))
CUDA_OBJECTS := $(addprefix $(BUILD)/,$(CUDA_SOURCES:.c=.o))
NVML_OBJECTS := $(addprefix $(BUILD)/,$(NVML_SOURCES:.c=.o))

.PHONY: simulator test-simulator
all: simulator
simulator: $(SIMULATOR)/libcuda.so.1 $(SIMULATOR)/libnvidia-ml.so.1

$(BUILD)/simulator/%.o: simulator/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# Calls within the library stay within it, whatever is preloaded.
$(SIMULATOR)/libcuda.so.1: $(CUDA_OBJECTS)
	$(CC) $(ALL_CFLAGS) -shared $(ALL_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 \
		$(CUDA_OBJECTS) -o $@

$(SIMULATOR)/libnvidia-ml.so.1: $(NVML_OBJECTS)
	$(CC) $(ALL_CFLAGS) -shared $(ALL_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,libnvidia-ml.so.1 \
		$(NVML_OBJECTS) -o $@

-include $(CUDA_OBJECTS:.o=.d) $(NVML_OBJECTS:.o=.d)
