#pragma once

/*
 * The sandbox of crund: what of the machine its options need, and nothing else.
 */

struct daemon_options;

/*
 * Starts crund within it, in the order that it needs: keeps libuv from making rings, which have to be refused before the loop is
 * made; calls open(), which makes the loop and reads what lies outside of its files; limits the files, before other threads
 * are started, and makes the folder of --state where it is missing; calls start(), after which crund listens; and limits the
 * system calls of all threads.
 *
 * 0, or what open() or start() has returned; -errno: the sandbox is required and cannot be had, and a sentence was printed.
 */
int daemon_sandbox_around(const struct daemon_options *options, int (*open)(void *data),
                          int (*start)(void *data), void *data);
