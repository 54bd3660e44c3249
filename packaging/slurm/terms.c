/* SPDX-License-Identifier: Apache-2.0 */

#include "terms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DIGITS "0123456789"

enum { MEMORY, HOST_MEMORY, COMPUTE, WEIGHT, PRIORITY };

const char *const term_on_the_bus[TERMS] = {"memory-limit", "host-memory-limit", "compute-limit",
					    "weight", "priority"};

static const struct {
	const char *name, *right;
} known[TERMS] = {
	[MEMORY] = {"memory", "a size such as 40G or 512M, or none"},
	[HOST_MEMORY] = {"host-memory", "a size such as 64G, or none"},
	[COMPUTE] = {"compute", "a percentage of the time from 1 to 100"},
	[WEIGHT] = {"weight", "a whole number from 1 to 1000"},
	/* Those of high priority go before everybody: that is for the administrator to give. */
	[PRIORITY] = {"priority", "background or normal"},
};

static const struct {
	const char *name;
	uint64_t bytes;
} units[] = {
	{"", 1},           {"b", 1},           {"k", 1ull << 10},   {"m", 1ull << 20},
	{"g", 1ull << 30}, {"t", 1ull << 40},  {"kib", 1ull << 10}, {"mib", 1ull << 20},
	{"gib", 1ull << 30}, {"tib", 1ull << 40}, {"kb", 1000},      {"mb", 1000000},
	{"gb", 1000000000}, {"tb", 1000000000000},
};

#define UNITLESS_LEAST (1 << 20)     /* bytes; a smaller number without a unit is a mistake */

/* 0 for what is no size of a byte or more. Sizes are those of nvshared/quantity.py. */
static uint64_t size_of(const char *text)
{
	size_t digits = strspn(text, DIGITS);
	if (digits < 1 || digits > 15)
		return 0;
	const char *unit = text + digits;
	if (*unit == '.') {
		digits = strspn(unit + 1, DIGITS);
		if (digits < 1 || digits > 15)
			return 0;
		unit += 1 + digits;
	}
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (strcasecmp(unit, units[i].name) == 0) {
			double bytes = strtod(text, NULL) * (double)units[i].bytes;
			if (*unit == '\0' && bytes < UNITLESS_LEAST)
				return 0;
			return bytes < 0x1p64 ? (uint64_t)bytes : 0;
		}
	return 0;
}

/* 0 for what is no whole number from 1 to `most`, of so many digits, perhaps with a sign behind. */
static uint64_t whole(const char *text, unsigned long most, size_t longest, const char *sign)
{
	size_t digits = strspn(text, DIGITS);
	if (digits < 1 || digits > longest || (text[digits] && strcmp(text + digits, sign) != 0))
		return 0;
	unsigned long number = strtoul(text, NULL, 10);
	return number <= most ? number : 0;
}

static bool understood(int term, const char *text, uint64_t *value)
{
	if ((term == MEMORY || term == HOST_MEMORY) && strcmp(text, "none") == 0) {
		*value = 0;
		return true;
	}
	switch (term) {
	case MEMORY:
	case HOST_MEMORY:
		*value = size_of(text);
		break;
	case COMPUTE:
		*value = whole(text, 100, 3, "%");
		break;
	case WEIGHT:
		*value = whole(text, 1000, 4, "");
		break;
	default:
		*value = strcmp(text, "background") == 0 ? 1 : strcmp(text, "normal") == 0 ? 2 : 0;
	}
	return *value != 0;
}

static bool take(char *item, struct terms *terms, char *wrong, size_t size)
{
	char *value = strchr(item, '=');
	if (!value) {
		snprintf(wrong, size, "\"%.40s\" is no term with a value, such as memory=40G", item);
		return false;
	}
	*value++ = '\0';
	for (int term = 0; term < TERMS; term++) {
		if (strcmp(item, known[term].name) != 0)
			continue;
		if (terms->given[term]) {
			snprintf(wrong, size, "%s is given twice", item);
			return false;
		}
		terms->given[term] = true;
		if (understood(term, value, &terms->value[term]))
			return true;
		snprintf(wrong, size, "%s cannot be \"%.40s\", give %s", item, value,
			 known[term].right);
		return false;
	}
	snprintf(wrong, size,
		 "there is no term \"%.40s\", only memory, host-memory, compute, weight, priority",
		 item);
	return false;
}

bool terms_parse(const char *text, struct terms *terms, char *wrong, size_t size)
{
	char *items = strdup(text), *rest = items;
	bool good = items != NULL;
	for (char *item; good && rest && *text && (item = strsep(&rest, ","));)
		good = take(item, terms, wrong, size);
	free(items);
	return good;
}
