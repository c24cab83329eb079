#pragma once

/*
 * Notifies the service manager: the sd_notify(3) datagram, without its library.
 */

/* state: "READY=1", "STOPPING=1". Nothing happens without $NOTIFY_SOCKET. Returns 0 or -errno. */
int sd_notify_send(const char *state);
