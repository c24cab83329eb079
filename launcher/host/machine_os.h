#pragma once

/* What job_init() has to know of the machine beside its GPUs (struct job_machine). */

/* CPUs that this process may use. */
int machine_count_cpus(void *unused);

/* The text of Slurm's configuration, malloc'ed; NULL outside a job of Slurm, or when it cannot be read. */
char *machine_slurm_conf(char *const *environment);

/* A random UUID in text: 36 characters and a NUL. */
void machine_uuid(char out[37]);
