# SPDX-License-Identifier: Apache-2.0
# The simulated GPU: libcuda.so.1 and libnvidia-ml.so.1 in $(BUILD)/simulator.
# A program finds them with LD_LIBRARY_PATH=build/simulator.

SIMULATOR := $(BUILD)/simulator
# Its rooms, not those of the library, some of which have the same names.
SIMULATOR_CFLAGS := $(filter-out -Isrc,$(ALL_CFLAGS)) -Isimulator
NVML_SOURCES := $(wildcard simulator/nvml/*.c simulator/shared/*.c)
CUDA_SOURCES := $(filter-out simulator/nvml/%,$(wildcard simulator/*/*.c))
CUDA_OBJECTS := $(addprefix $(BUILD)/,$(CUDA_SOURCES:.c=.o))
NVML_OBJECTS := $(addprefix $(BUILD)/,$(NVML_SOURCES:.c=.o))

.PHONY: simulator
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
