#pragma once

/*
 * Lets clients into a server from the addresses of a job's nodes alone: see fence_uv.c. Internal to the server.
 */

struct conn_owner;
struct fence_shell;
struct server;

/* 0 or -ENOMEM. Its timer is a handle of the server from here on. */
int fence_shell_create(struct fence_shell **ret, struct server *s);

/* Takes an accepted socket. 0 or -errno; fd is closed then. */
int fence_admit(struct fence_shell *f, int fd, const struct conn_owner *owner);

/* Closes all visitors; later ones are admitted as before. */
void fence_close_visitors(struct fence_shell *f);

/* Closes all visitors and the timer. */
void fence_shell_stop(struct fence_shell *f);

/* When all handles of the server are closed. NULL is fine. */
void fence_shell_destroy(struct fence_shell *f);
