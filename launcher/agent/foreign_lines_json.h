#pragma once

/*
 * The lines between crun --agent-fd and the agent that decides about its workers itself (torchrun with the plug-in
 * crun_launch.rendezvous): one JSON object a line, see crun(1), "A foreign agent". No I/O.
 */

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/session/session_message.h"

enum { FOREIGN_LINE_MAX = 4096 }; /* bytes of a line, its end included */

enum foreign_command_kind {
    FOREIGN_READY,  /* it has no workers, and wants a place in the next generation */
    FOREIGN_FAILED, /* a worker of the generation has failed by itself */
    FOREIGN_DONE,   /* all workers of the generation have ended well */
    FOREIGN_LEAVE,  /* it goes away for good */
    FOREIGN_COMMAND_COUNT
};

struct foreign_command {
    enum foreign_command_kind kind;
    bool is_fatal; /* FAILED: the job cannot go on */
    char text[SESSION_TEXT_SIZE];
};

enum { FOREIGN_FAULT_SIZE = 256 };

/* A line without its end. False, with a part of a sentence in fault, when it is no command. */
bool foreign_command_read(const char *line, size_t n_bytes, struct foreign_command *ret,
                          char fault[FOREIGN_FAULT_SIZE]);

/* Each is one line with its end, malloc'ed; NULL without memory. cause: a sentence, may be "". */
char *foreign_start_line(unsigned generation, const struct rank_assignment *assignment, const char *cause);
char *foreign_end_line(const char *event, const int *exit_code,
                       const char *cause); /* "stop"; or "end" with a code */
