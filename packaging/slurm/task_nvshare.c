/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task plugin of SLURM that takes a job's memory off the GPU before `scontrol suspend` stops it.
 *
 * A stopped process cannot move its memory any more, so this has to come first. slurmd asks its
 * task plugins before it signals the job's processes, and again after they go on; it is the only
 * place where SLURM asks anybody. Of the plugin's other functions SLURM wants to see the symbols.
 * Their arguments are SLURM's own structures, which are nowhere looked into.
 */

#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;
extern void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

const char plugin_name[] = "jobs leave the GPU before they are suspended";
const char plugin_type[] = "task/nvshare";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int init(void)
{
	return SLURM_SUCCESS;
}

int fini(void)
{
	return SLURM_SUCCESS;
}

static int tell(char *what, uint32_t job)
{
	char id[16];
	snprintf(id, sizeof id, "%" PRIu32, job);
	pid_t child;
	int status = -1;
	int error = posix_spawn(&child, HELPER, NULL, NULL, (char *[]){HELPER, what, id, NULL},
				environ);
	if (error)
		slurm_error("nvshare: %s cannot be run: %s", HELPER, strerror(error));
	else if (waitpid(child, &status, 0) == child && status == 0)
		return SLURM_SUCCESS;
	else
		slurm_error("nvshare: %s %s %s failed", HELPER, what, id);
	return SLURM_ERROR;
}

int task_p_slurmd_suspend_job(uint32_t job)
{
	return tell("suspend", job);
}

int task_p_slurmd_resume_job(uint32_t job)
{
	return tell("resume", job);
}

/* clang-format off */
int task_p_slurmd_batch_request(void *request) { (void)request; return SLURM_SUCCESS; }
int task_p_slurmd_launch_request(void *request, uint32_t node, char **error)
{ (void)request, (void)node, (void)error; return SLURM_SUCCESS; }
int task_p_pre_setuid(void *job) { (void)job; return SLURM_SUCCESS; }
int task_p_pre_launch(void *job) { (void)job; return SLURM_SUCCESS; }
int task_p_pre_set_affinity(void *job, uint32_t task) { (void)job, (void)task; return SLURM_SUCCESS; }
int task_p_set_affinity(void *job, uint32_t task) { (void)job, (void)task; return SLURM_SUCCESS; }
int task_p_post_set_affinity(void *job, uint32_t task) { (void)job, (void)task; return SLURM_SUCCESS; }
int task_p_post_term(void *job, void *task) { (void)job, (void)task; return SLURM_SUCCESS; }
int task_p_post_step(void *job) { (void)job; return SLURM_SUCCESS; }
int task_p_add_pid(pid_t pid) { (void)pid; return SLURM_SUCCESS; }
