# SPDX-License-Identifier: Apache-2.0
# nvshare-checkpoint: links with libc alone and finds the driver when it runs.

.PHONY: checkpoint
all: checkpoint
checkpoint: $(BUILD)/nvshare-checkpoint

$(BUILD)/nvshare-checkpoint: $(wildcard checkpoint/*.c checkpoint/*.h)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(filter %.c,$^) -ldl -o $@
