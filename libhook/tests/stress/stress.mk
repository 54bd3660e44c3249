# SPDX-License-Identifier: Apache-2.0
# The program that knows what must come out; see stress.c.

.PHONY: stress
all: stress
stress: $(BUILD)/stress

$(BUILD)/stress: tests/stress/stress.c include/nvshare/cuda_types.h demo/kernels.ptx
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -Isrc -DKERNELS_PTX='"$(CURDIR)/demo/kernels.ptx"' $< -o $@ -ldl
