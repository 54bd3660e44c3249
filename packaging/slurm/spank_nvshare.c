/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin of SLURM with which jobs share GPUs. It adds the option --nvshare, and gives each job
 * that has shards of a GPU, or that option, the library and its terms.
 *
 * Where things happen:
 *
 * - sbatch, salloc, srun: the option is checked, nothing else. These run on machines without
 *   nvshared. Whoever gets around it is told by the job's step, which fails.
 * - slurmd before the job's first program, as root: `nvshare-slurm begin` sets the job's terms. If
 *   it fails, so does the prolog: SLURM drains the node, on which nothing would be shared.
 * - slurmstepd: the library joins what the job preloads itself. When the batch script has ended,
 *   `nvshare-slurm account` notes what the job had; later, the controller takes no notes.
 * - slurmd after the job's last program, as root: `nvshare-slurm end`.
 *
 * Arguments in plugstack.conf are terms too. They hold for jobs that do not say otherwise.
 */

#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "terms.h"

SPANK_PLUGIN(nvshare, 1)

extern char **environ;

static bool wanted; /* the option was given */
static bool shares; /* the step of this slurmstepd has the library */

static int check(int, const char *, int);

static struct spank_option option = {
	"nvshare", "TERM=VALUE[,...]",
	"share the GPU with other jobs, on these terms:\n"
	"\t\t\t      memory=SIZE       what the job may allocate on each GPU\n"
	"\t\t\t                        (by default its share of the shards; or none)\n"
	"\t\t\t      host-memory=SIZE  host memory for what may leave the GPUs\n"
	"\t\t\t      compute=PERCENT   the greatest share of the time, 1 to 100\n"
	"\t\t\t      weight=NUMBER     its share among the user's jobs, 1 to 1000\n"
	"\t\t\t      priority=background|normal",
	1, 0, check};

static int check(int value, const char *text, int remote)
{
	(void)value, (void)remote;
	struct terms terms = {0};
	char wrong[256] = "out of memory";
	if (!terms_parse(text, &terms, wrong, sizeof wrong)) {
		slurm_error("--nvshare: %s", wrong);
		return -1;
	}
	wanted = true;
	return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

/* Runs nvshare-slurm, whose words go to slurmd's log. */
static int run(char **argv)
{
	pid_t child;
	int status = -1;
	int error = posix_spawn(&child, HELPER, NULL, NULL, argv, environ);
	if (error) {
		slurm_error("nvshare: %s cannot be run: %s", HELPER, strerror(error));
		return -1;
	}
	return waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

static bool has_gpu(void)
{
	return getenv("SLURM_JOB_GPUS") != NULL;
}

int slurm_spank_job_prolog(spank_t spank, int argc, char **argv)
{
	struct terms terms = {0};
	char *text = NULL, wrong[256] = "out of memory";
	bool asked = spank_option_getopt(spank, &option, &text) == ESPANK_SUCCESS;

	if (!asked && !has_gpu())
		return 0;
	/* Then sbatch was got around, and the step will fail. The node is no worse for it. */
	if (asked && !terms_parse(text, &terms, wrong, sizeof wrong))
		terms = (struct terms){0};
	for (int i = 0; i < argc; i++) {
		struct terms usual = {0};
		if (!terms_parse(argv[i], &usual, wrong, sizeof wrong)) {
			slurm_error("nvshare: in plugstack.conf, %s", wrong);
			return -1;
		}
		for (int term = 0; term < TERMS; term++)
			if (usual.given[term] && !terms.given[term]) {
				terms.given[term] = true;
				terms.value[term] = usual.value[term];
			}
	}
	uint32_t job = 0;
	char id[16], given[TERMS][48], *command[TERMS + 4] = {HELPER, "begin", id};
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return -1;
	snprintf(id, sizeof id, "%" PRIu32, job);
	for (int term = 0, at = 3; term < TERMS; term++)
		if (terms.given[term]) {
			snprintf(given[term], sizeof given[term], "%s=%" PRIu64,
				 term_on_the_bus[term], terms.value[term]);
			command[at++] = given[term];
		}
	return run(command);
}

int slurm_spank_job_epilog(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	uint32_t job = 0;
	char id[16], *text = NULL;
	/* Of a job that the controller has lost, SLURM tells neither options nor GPUs. So all jobs
	 * give back their terms; but only those that surely had some can fail. */
	bool had = spank_option_getopt(spank, &option, &text) == ESPANK_SUCCESS || has_gpu();
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return -1;
	snprintf(id, sizeof id, "%" PRIu32, job);
	int done = run((char *[]){HELPER, "end", id, NULL});
	return had ? done : 0;
}

/* What the job preloads itself stays, and comes first, as in `nvsharectl run`. */
static int preload(spank_t spank)
{
	static char others[1 << 16], all[(1 << 16) + 256];
	spank_err_t found = spank_getenv(spank, "LD_PRELOAD", others, sizeof others);
	if (found == ESPANK_NOSPACE) {
		slurm_error("nvshare: LD_PRELOAD of the job is too long");
		return -1;
	}
	if (found != ESPANK_SUCCESS)
		others[0] = '\0';
	if (strstr(others, "libnvshare.so"))
		return 0;
	snprintf(all, sizeof all, "%s%s%s", others, others[0] ? ":" : "", LIBRARY);
	return spank_setenv(spank, "LD_PRELOAD", all, 1) == ESPANK_SUCCESS ? 0 : -1;
}

int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	char shards[16];
	if (!wanted && spank_getenv(spank, "SLURM_SHARDS_ON_NODE", shards, sizeof shards))
		return 0;
	shares = true;
	/* Where nvshared does not run it waits, instead of taking what is others'. */
	spank_setenv(spank, "NVSHARE_REQUIRED", "1", 0);
	return preload(spank);
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	uint32_t job = 0, step = 0, array = 0, task = 0;
	char id[16], name[32], kind[16] = "";

	if (!shares || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		return 0;
	spank_getenv(spank, "ENVIRONMENT", kind, sizeof kind);
	if (step != SLURM_BATCH_SCRIPT && strcmp(kind, "BATCH") == 0)
		return 0; /* a step of a batch script, which will end, too */
	snprintf(id, sizeof id, "%" PRIu32, job);
	/* By its number alone, the last job of an array is the whole array. */
	strcpy(name, id);
	if (spank_get_item(spank, S_JOB_ARRAY_ID, &array) == ESPANK_SUCCESS && array != 0 &&
	    spank_get_item(spank, S_JOB_ARRAY_TASK_ID, &task) == ESPANK_SUCCESS)
		snprintf(name, sizeof name, "%" PRIu32 "_%" PRIu32, array, task);
	if (run((char *[]){HELPER, "account", id, name, NULL}) != 0)
		slurm_info("nvshare: what job %s used is in nvsharectl history alone", id);
	return 0;
}
