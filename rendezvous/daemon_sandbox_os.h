#pragma once

/*
 * The sandbox of crund: what of the machine its options need, and nothing else.
 */

struct daemon_options;

/* Before the loop is made: see sandbox_refuse_rings(). As below. */
int daemon_sandbox_prepare(const struct daemon_options *options);

/* Before other threads are started: limits the files. Makes the folder of --state where it is missing. 0; -errno: the sandbox is
 * required and cannot be had; a sentence was printed. */
int daemon_sandbox_begin(const struct daemon_options *options);

/* Once it listens: limits the system calls of all threads. As above. */
int daemon_sandbox_close(const struct daemon_options *options);
