#pragma once

/*
 * Notifies the service manager: the sd_notify(3) datagram, without its library.
 */

/* Opens the socket, as the sandbox lets none be opened later. Nothing happens without $NOTIFY_SOCKET. Returns 0 or -errno. */
int sd_notify_open(void);

/* state: "READY=1", "STOPPING=1". Nothing happens without an open socket. Returns 0 or -errno. */
int sd_notify_send(const char *state);
