/* SPDX-License-Identifier: Apache-2.0 */
/* The terms of a job, as --nvshare=memory=40G,weight=200 gives them. */

#ifndef NVSHARE_SLURM_TERMS_H
#define NVSHARE_SLURM_TERMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TERMS = 5 };

struct terms {
	bool given[TERMS];
	uint64_t value[TERMS]; /* 0: none */
};

/* The name of a term on the bus: SetTenantTerms of com.nvshare.Manager. */
extern const char *const term_on_the_bus[TERMS];

/* Adds what `text` gives to `terms`. Returns false for what makes no sense, with a sentence about
   it in `wrong`; `terms` is then undefined. An empty text gives nothing. */
bool terms_parse(const char *text, struct terms *terms, char *wrong, size_t size);

#endif
