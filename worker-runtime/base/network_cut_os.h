#pragma once

/*
 * The rank of another host that has stopped answering this one, in the memory that crun lends (proto/worker_memory.h). The first one is
 * kept. Where there is no such memory nothing happens.
 */

void network_cut_note(int rank);
