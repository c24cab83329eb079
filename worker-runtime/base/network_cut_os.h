#pragma once

/*
 * The rank of another host that does not answer this one, in the memory that crun lends (proto/worker_memory.h). The first one is
 * kept. Where there is no such memory nothing happens.
 */

void network_cut_note(int rank);

/* That rank has answered: where it is the one that is noted, none is. */
void network_cut_withdraw(int rank);
