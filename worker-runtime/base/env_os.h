#pragma once

/*
 * What the library reads from the environment beside crw_env_read(). env_os.c is its only caller of getenv().
 */

#include "worker-runtime/crw.h"

/* The environment that a launcher would give to that rank, with all ranks on this host; address is
 * "tcp://HOST:PORT". CRW_E_ARGUMENT. */
int env_from_address(const char *address, int rank, int world_size, struct crw_env *ret_env);

/* How long a collective or the forming of the group may wait, from CRW_TIMEOUT_MS; 30 minutes when unset.
 * CRW_E_ENVIRONMENT when malformed. */
int env_timeout_ms(int *ret_timeout_ms);

/* Whether data between hosts is encrypted: CRW_ENCRYPT is 1, or it is not set and crun has set CRUN_SEAL. CRW_E_ENVIRONMENT when
 * CRW_ENCRYPT is neither 1 nor 0. */
int env_encrypt(bool *ret);

/* The value of a variable; NULL: unset or empty. */
const char *env_text(const char *name);

/* The open descriptor with the number in that variable; -1: the variable or the descriptor is missing. */
int env_inherited_fd(const char *name);

/* The worker memory that crun lends to this rank (proto/worker_memory.h); -1: none. Processes that this one starts do not
 * inherit it. */
int env_state_file(void);

/* Sets a variable for libraries that are opened later, unless it is set already. */
void env_set_default(const char *name, const char *value);
