#pragma once

/*
 * The loop of a front (crun --hosts). It turns what happens at channels and with signals into events of the core (front.h), and carries
 * out the actions.
 *
 * End: the last host has ended, or a third signal came. Then held lines and output are shown, launch commands get a moment to be
 * reaped, and the rendezvous stops. Whatever is left then ends with this process: launch commands by their parent-death signal,
 * the far ends by the end of their input.
 */

struct front_copies;
struct front_plan;
struct job;
struct secret;

struct front_setup {
    const struct front_plan *plan;
    const char *launch_file; /* path of the launch command */
    const struct front_copies *copies;
    const struct secret *secret; /* without bytes: the job is open */
    const struct job *job;       /* settings of output */
    char *const *environment;
    int signal_fd;
    unsigned grace_ms; /* see struct front_config */
};

/* The exit code. */
int front_run(const struct front_setup *setup);
