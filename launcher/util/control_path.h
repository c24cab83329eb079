#pragma once

/*
 * Where the sockets of crun, the history and the secret of a user are: composed from the environment, nothing is opened. Pure.
 *
 *   socket   $XDG_RUNTIME_DIR/crun/JOB.sock, else /run/crun/JOB.sock for root, else /tmp/crun-UID/JOB.sock: a folder that
 *            crunctl finds whatever TMPDIR and --log-dir of a job are, and that outlives its run folder. An XDG_RUNTIME_DIR
 *            below which the address of a socket (108 bytes) would be too long is not used, by crun and crunctl alike
 *   front    the name of an abstract socket: that of a socket, with front.PID for JOB.sock
 *   history  $XDG_STATE_HOME/crun/history.jsonl, else ~/.local/state/crun/history.jsonl
 *   secret   $XDG_CONFIG_HOME/crun/secret, else ~/.config/crun/secret
 */

#include <stdbool.h>

enum { CONTROL_PATH_SIZE = 4096, CONTROL_NAME_SIZE = 54 };

/* The folder of the sockets of this user. */
void control_folder(char *const *environment, unsigned user, char ret[CONTROL_PATH_SIZE]);

/* The name of a job's socket without its folder. Bytes other than letters, digits, ".", "-" and "_" become "_". pid: 0, or
 * that of crun where another one has the plain name. */
void control_socket_name(const char *job, int pid, char ret[CONTROL_NAME_SIZE]);

/* The name of the socket of a front. pid: 0: the beginning of all such names of the user. */
void control_front_name(char *const *environment, unsigned user, int pid, char ret[CONTROL_PATH_SIZE]);

/* False: neither variable is set. */
bool control_history_path(char *const *environment, char ret[CONTROL_PATH_SIZE]);

/* 0; -ENOENT: neither variable is set; -ENAMETOOLONG. */
int control_secret_path(char *const *environment, char ret[CONTROL_PATH_SIZE]);
