# SPDX-License-Identifier: Apache-2.0
# The program that calls the driver at random; see random.c.

RANDOM_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/random/*.c))

.PHONY: random
all: random
random: $(BUILD)/random

$(BUILD)/tests/random/%.o: tests/random/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -Isimulator -DKERNELS_PTX='"$(CURDIR)/demo/kernels.ptx"' -MMD -MP -c $< -o $@

# The assembler reads the kernels, so the dependencies the compiler writes do not name them.
$(BUILD)/tests/random/launches.o: demo/kernels.ptx

$(BUILD)/random: $(RANDOM_OBJECTS)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(RANDOM_OBJECTS) -ldl -o $@

-include $(RANDOM_OBJECTS:.o=.d)
