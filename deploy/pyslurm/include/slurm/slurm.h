/*
 * In front of Slurm's own slurm.h, for PySlurm 25.11 and Slurm 26.05. In 26.05 a job is named by a slurm_step_id_t
 * where 25.11 took its number, one function has another name, and one error that PySlurm lists is gone.
 */
#ifndef GLEANER_PYSLURM_H
#define GLEANER_PYSLURM_H
#include_next <slurm/slurm.h>

static inline slurm_step_id_t gleaner_job(uint32_t number)
{
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
	id.job_id = number;
	return id;
}

static inline int gleaner_job_of_process(pid_t process, uint32_t *number)
{
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
	int status = slurm_pid2jobid(process, &id);
	*number = id.job_id;
	return status;
}

#define slurm_load_job(answer, number, flags) slurm_load_job(answer, gleaner_job(number), flags)
#define slurm_kill_job(number, signal, flags) slurm_kill_job(gleaner_job(number), signal, flags)
#define slurm_suspend(number) slurm_suspend(gleaner_job(number))
#define slurm_resume(number) slurm_resume(gleaner_job(number))
#define slurm_requeue(number, flags) slurm_requeue(gleaner_job(number), flags)
#define slurm_notify_job(number, message) slurm_notify_job(gleaner_job(number), message)
#define slurm_get_rem_time(number) slurm_get_rem_time(gleaner_job(number))
#define slurm_get_end_time(number, end) slurm_get_end_time(gleaner_job(number), end)
#define slurm_job_node_ready(number) slurm_job_node_ready(gleaner_job(number))
#define slurm_pid2jobid(process, number) gleaner_job_of_process(process, number)
#define slurm_free_ctl_conf slurm_free_conf

#ifndef ESLURM_ERROR_ON_DESC_TO_RECORD_COPY
#define ESLURM_ERROR_ON_DESC_TO_RECORD_COPY 2029 /* never returned any more */
#endif
#endif
