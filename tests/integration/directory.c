/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into the daemon: a directory of users and hosts, as LDAP is one, that answers late.
 *
 * Lines of the file $NVSHARE_TEST_DIRECTORY: a number of seconds that each answer takes, then NAME
 * NUMBER for each user and group. Each lookup appends its name to the file with .asked behind, with
 * " in the loop" if the process's first thread made it, whose event loop must not wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *lookup)
{
	char line[128], path[512];

	snprintf(path, sizeof path, "%s.asked", getenv("NVSHARE_TEST_DIRECTORY"));
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	int length = snprintf(line, sizeof line, "%s%s\n", lookup,
	    syscall(SYS_gettid) == getpid() ? " in the loop" : "");
	if (write(file, line, length) != length)
		abort();
	close(file);
}

/* Waits as long as the directory takes. Returns the number of an entry, or the length of its name
 * for a number (name[0] is '\0'), or -1. */
static long look_up(const char *lookup, char *name, long number)
{
	char one[64];
	long seconds = 0, known, found = -1;

	note(lookup);
	FILE *file = fopen(getenv("NVSHARE_TEST_DIRECTORY"), "re");
	if (!file || fscanf(file, "%ld", &seconds) != 1)
		seconds = 0;
	while (file && found < 0 && fscanf(file, "%63s %ld", one, &known) == 2)
		if (name[0] ? !strcmp(name, one) : known == number) {
			strcpy(name, one);
			found = known;
		}
	if (file)
		fclose(file);
	/* In pieces: the file may say meanwhile that the directory is quick again. */
	for (long left = seconds * 10; left > 0; left--) {
		usleep(100000);
		if ((file = fopen(getenv("NVSHARE_TEST_DIRECTORY"), "re"))) {
			if (fscanf(file, "%ld", &seconds) == 1 && !seconds)
				left = 0;
			fclose(file);
		}
	}
	return found;
}

static int user(long number, char *name, struct passwd *into, char *buffer, struct passwd **result)
{
	static char empty[] = "", root[] = "/";

	*result = NULL;
	if (number < 0)
		return 0;
	strcpy(buffer, name);
	*into = (struct passwd){.pw_name = buffer, .pw_passwd = empty, .pw_gecos = empty,
	    .pw_dir = root, .pw_shell = root, .pw_uid = number, .pw_gid = number};
	*result = into;
	return 0;
}

int getpwnam_r(const char *name, struct passwd *into, char *buffer, size_t size,
    struct passwd **result)
{
	char found[64];

	(void)size;
	snprintf(found, sizeof found, "%s", name);
	return user(look_up("getpwnam", found, 0), found, into, buffer, result);
}

int getpwuid_r(uid_t number, struct passwd *into, char *buffer, size_t size,
    struct passwd **result)
{
	char found[64] = "";

	(void)size;
	return user(look_up("getpwuid", found, number), found, into, buffer, result);
}

int getgrnam_r(const char *name, struct group *into, char *buffer, size_t size,
    struct group **result)
{
	static char *nobody[] = {NULL}, empty[] = "";
	char found[64];

	(void)size;
	snprintf(found, sizeof found, "%s", name);
	long number = look_up("getgrnam", found, 0);
	*result = NULL;
	if (number < 0)
		return 0;
	strcpy(buffer, found);
	*into = (struct group){.gr_name = buffer, .gr_passwd = empty, .gr_gid = number,
	    .gr_mem = nobody};
	*result = into;
	return 0;
}

int getgrgid_r(gid_t number, struct group *into, char *buffer, size_t size, struct group **result)
{
	(void)number, (void)into, (void)buffer, (void)size;
	look_up("getgrgid", (char[64]){""}, -2);
	*result = NULL;
	return 0;
}

/* A user is in the group of the same number, and in the group "staff". */
int getgrouplist(const char *name, gid_t group, gid_t *groups, int *count)
{
	char staff[64] = "staff";

	(void)name;
	long number = look_up("getgrouplist", staff, 0);
	int needed = 1 + (number >= 0), has = *count;
	*count = needed;
	if (has < needed)
		return -1;
	groups[0] = group;
	if (number >= 0)
		groups[1] = number;
	return needed;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
    struct addrinfo **result)
{
	(void)name, (void)service, (void)hints, (void)result;
	look_up("getaddrinfo", (char[64]){""}, -2);
	return EAI_AGAIN;
}
