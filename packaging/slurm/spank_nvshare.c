/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin of SLURM with which jobs share GPUs. It adds the option --nvshare, and gives each job
 * that has shards of a GPU, or that option, the library and its terms.
 *
 * Where things happen:
 *
 * - sbatch, salloc, srun: the option is checked, nothing else. These run on machines without
 *   nvshared.
 * - slurmd before the job's first program, as root: `nvshare-slurm begin` sets the job's terms.
 * - slurmstepd: the library joins what the job preloads itself. Sentences that `begin` has left for
 *   the job's user are printed on the job's stderr. When the batch script has ended,
 *   `nvshare-slurm account` notes what the job had; later, the controller takes no notes.
 * - slurmd after the job's last program, as root: `nvshare-slurm end`.
 *
 * SLURM drains a node whose prolog or epilog fails, or whose slurmstepd fails before the job's first
 * program. No job may cause that, so none of these functions fails for anything that a job can give.
 * A task whose job went round the check fails itself, in slurm_spank_task_init(). Where nvshared does
 * not answer, prolog and epilog fail only if plugstack.conf says drain-on-failure.
 *
 * Other arguments in plugstack.conf are terms. They hold for jobs that do not say otherwise.
 */

#include <fcntl.h>
#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "terms.h"

#define NOTES "/run/nvshare-slurm/"  /* as in nvshare-slurm */
#define DRAIN_ON_FAILURE "drain-on-failure"

SPANK_PLUGIN(nvshare, 1)

extern char **environ;

static bool wanted; /* the option was given */
static bool shares; /* the step of this slurmstepd has the library */
static char refused[320]; /* why the tasks of this slurmstepd cannot run; "": they can */

static int check(int, const char *, int);

static struct spank_option option = {
	"nvshare", "TERM=VALUE[,...]",
	"share the GPU on these terms: memory=SIZE, host-memory=SIZE, compute=PERCENT, "
	"weight=NUMBER, priority=background (see docs/slurm.md of nvshared)",
	1, 0, check};

static int check(int value, const char *text, int remote)
{
	(void)value;
	struct terms terms = {0};
	char wrong[256] = "out of memory";
	wanted = true;
	if (terms_parse(text, &terms, wrong, sizeof wrong))
		return 0;
	if (remote) {
		snprintf(refused, sizeof refused, "--nvshare: %s", wrong);
		return 0;
	}
	slurm_error("--nvshare: %s", wrong);
	return -1;
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

static bool drains_on_failure(int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], DRAIN_ON_FAILURE) == 0)
			return true;
	return false;
}

static bool has_gpu(void)
{
	return getenv("SLURM_JOB_GPUS") != NULL;
}

/* Adds what plugstack.conf gives to jobs that do not say otherwise. False if it is wrong. */
static bool add_usual_terms(struct terms *terms, int argc, char **argv)
{
	char wrong[256] = "out of memory";
	bool right = true;
	for (int i = 0; i < argc; i++) {
		struct terms usual = {0};
		if (strcmp(argv[i], DRAIN_ON_FAILURE) == 0)
			continue;
		if (!terms_parse(argv[i], &usual, wrong, sizeof wrong)) {
			slurm_error("nvshare: in plugstack.conf, %s", wrong);
			right = false;
			continue;
		}
		for (int term = 0; term < TERMS; term++)
			if (usual.given[term] && !terms->given[term]) {
				terms->given[term] = true;
				terms->value[term] = usual.value[term];
			}
	}
	return right;
}

int slurm_spank_job_prolog(spank_t spank, int argc, char **argv)
{
	struct terms terms = {0};
	char *text = NULL, wrong[256];
	bool asked = spank_option_getopt(spank, &option, &text) == ESPANK_SUCCESS;

	if (!asked && !has_gpu())
		return 0;
	/* Then the check was gone round, and the job's tasks will fail. */
	if (asked && !terms_parse(text, &terms, wrong, sizeof wrong))
		terms = (struct terms){0};
	bool right = add_usual_terms(&terms, argc, argv);
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
	right = run(command) == 0 && right;
	return right || !drains_on_failure(argc, argv) ? 0 : -1;
}

int slurm_spank_job_epilog(spank_t spank, int argc, char **argv)
{
	uint32_t job = 0;
	char id[16], *text = NULL;
	/* Of a job that the controller has lost, SLURM tells neither options nor GPUs. So all jobs
	 * give back their terms; but only those that surely had some can fail. */
	bool had = spank_option_getopt(spank, &option, &text) == ESPANK_SUCCESS || has_gpu();
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return -1;
	snprintf(id, sizeof id, "%" PRIu32, job);
	int done = run((char *[]){HELPER, "end", id, NULL});
	return had && drains_on_failure(argc, argv) ? done : 0;
}

/* What the job preloads itself stays, and comes first, as in `nvsharectl run`. */
static void preload(spank_t spank)
{
	static char others[1 << 16], all[(1 << 16) + 256];
	spank_err_t found = spank_getenv(spank, "LD_PRELOAD", others, sizeof others);
	if (found == ESPANK_NOSPACE) {
		snprintf(refused, sizeof refused, "LD_PRELOAD of the job is too long for one more");
		return;
	}
	if (found != ESPANK_SUCCESS)
		others[0] = '\0';
	if (strstr(others, "libnvshare.so"))
		return;
	snprintf(all, sizeof all, "%s%s%s", others, others[0] ? ":" : "", LIBRARY);
	if (spank_setenv(spank, "LD_PRELOAD", all, 1) != ESPANK_SUCCESS)
		snprintf(refused, sizeof refused, "LD_PRELOAD of the job cannot be set");
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
	preload(spank);
	return 0;
}

static bool in_batch_job(spank_t spank)
{
	char kind[16] = "";
	spank_getenv(spank, "ENVIRONMENT", kind, sizeof kind);
	return strcmp(kind, "BATCH") == 0;
}

/* On the task's stderr, a line each. */
static void print_notes(uint32_t job)
{
	char path[64], text[4096];
	snprintf(path, sizeof path, NOTES "%" PRIu32, job);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
	if (file >= 0)
		close(file);
	if (length <= 0)
		return;
	text[length] = '\0';
	for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
		if (*line)
			dprintf(STDERR_FILENO, "nvshare: %s\n", line);
}

/* In the process that becomes the task, whose stderr is the job's already. */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	uint32_t job = 0, step = 0, task = 0;
	if (!shares || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS)
		return 0;
	/* Once for a job: by its batch script, or else by its first step. */
	if (task == 0 && step == (in_batch_job(spank) ? SLURM_BATCH_SCRIPT : 0))
		print_notes(job);
	if (!refused[0])
		return 0;
	dprintf(STDERR_FILENO, "nvshare: %s\n", refused);
	return -1;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	uint32_t job = 0, step = 0, array = 0, task = 0;
	char id[16], name[32];

	if (!shares || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		return 0;
	if (step != SLURM_BATCH_SCRIPT && in_batch_job(spank))
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
