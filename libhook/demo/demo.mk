# SPDX-License-Identifier: Apache-2.0
# nvshare-workload: links with libc alone and finds the driver when it runs.

WORKLOAD_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard demo/*.c))

.PHONY: workload
all: workload
workload: $(BUILD)/nvshare-workload

$(BUILD)/demo/%.o: demo/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# The assembler reads kernels.ptx, so the dependencies that the compiler writes do not name it.
$(BUILD)/demo/device.o: demo/kernels.ptx

$(BUILD)/nvshare-workload: $(WORKLOAD_OBJECTS)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(WORKLOAD_OBJECTS) -ldl -o $@

-include $(WORKLOAD_OBJECTS:.o=.d)
