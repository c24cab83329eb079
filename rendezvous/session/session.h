#pragma once

/*
 * The agent's side of its session with the rendezvous: a pure state machine between the node's worker group
 * and one connection that may break at any time. It takes events with their time and answers with actions.
 *
 * Two things are kept apart, because they fail apart:
 *
 *   the link    DOWN -> DIALING -> GREETING -> OPENING -> UP, back to DOWN whenever it breaks, and CLOSED
 *   the phase   what this node does (enum session_phase):
 *               STOPPING -> READY -> RUNNING -> DONE
 *                   ^                   |  \--> FAILED -> READY
 *                   +-------------------+
 *
 * A link that breaks changes nothing about the workers. The agent redials, at least once a second, for
 * cutoff_ns; its hello carries its phase, and the answer is what it has to do.
 *
 * Lease: the views of a job may name one, lease_ms. Then workers may run for so long after the agent has sent the last
 * message that was answered: its hello, by the first view of a connection, or a renewal, by the number in it. Shortly before
 * that the agent stops its workers (SESSION_DO_FENCE), and what is left of them at session_lease_end() has to be killed also
 * if this process does not run. The rendezvous lets no other node start before (rounds.h). From then on the agent has
 * nothing that another one could do twice, and can redial for as long as it waits for a round. A lease needs a clock that
 * goes on while the machine is suspended.
 *
 * How it ends (SESSION_DO_END): with the job's result; refused; the endpoint belongs to another kind of
 * server; the rendezvous could not be reached for too long. Or the agent leaves by itself.
 *
 * A TCPStore of PyTorch answers the greeting and closes the connection on the opening. So does a crund that is
 * deposed or ends at that moment. Therefore the endpoint is taken for another kind of server only when it is a single one, has done
 * that several times in a row and has never answered as a rendezvous. Of a list, the others are tried until the join timeout.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/session/session_message.h"

enum session_link {
    SESSION_LINK_DOWN,     /* between two attempts */
    SESSION_LINK_DIALING,  /* the connection is being established */
    SESSION_LINK_GREETING, /* VALIDATE and PING are sent */
    SESSION_LINK_OPENING,  /* the hello is sent */
    SESSION_LINK_UP,       /* the hello was answered */
    SESSION_LINK_CLOSED,
    SESSION_LINK_COUNT
};

enum session_event_kind {
    /* The connection. Between a DIAL and the CLOSE or LOST that ends it, events of others must not come. */
    SESSION_EVENT_START,
    SESSION_EVENT_CONNECTED,
    SESSION_EVENT_LOST,    /* text: why it could not be established, or broke, or was closed */
    SESSION_EVENT_ECHOED,  /* frame.h: FRAME_ECHO */
    SESSION_EVENT_OPENED,  /* frame.h: FRAME_OPENED */
    SESSION_EVENT_FOREIGN, /* its bytes are not our protocol; text: what is wrong with them */
    SESSION_EVENT_VERSION, /* it speaks another version; text: which */
    SESSION_EVENT_ALIVE,
    SESSION_EVENT_RENEWED, /* number: that renewal is answered */
    SESSION_EVENT_SLOW,    /* slack_ns: the silence may be the network's, and is no end before that */
    SESSION_EVENT_VIEW,
    SESSION_EVENT_TIMER, /* session_deadline() has passed */
    /* The worker group. */
    SESSION_EVENT_GROUP_READY,  /* nothing of it is left, and it could start; port, keeps_keys */
    SESSION_EVENT_GROUP_UNFIT,  /* nothing of it is left, and the health check failed; text: why */
    SESSION_EVENT_GROUP_FAILED, /* a worker failed by itself at when_ns; cause */
    SESSION_EVENT_GROUP_DONE,   /* all workers ended well */
    SESSION_EVENT_DRAIN,        /* this node will go away: the job should snapshot and end */
    SESSION_EVENT_QUIET,        /* no worker of this node makes progress, or they do again: is_quiet */
    SESSION_EVENT_LEAVE, /* this agent goes away now; text: why; number: signal that is to stop the whole job, or 0 */
    SESSION_EVENT_GROUP_GONE, /* after LEAVE: no process of the group is left */
    SESSION_EVENT_COUNT
};

struct session_event {
    enum session_event_kind kind;
    uint64_t now_ns;
    const char *text;
    const struct session_view *view;
    const struct session_cause *cause;
    uint64_t when_ns;
    uint32_t number;
    uint64_t
        slack_ns; /* beyond the node timeout; SESSION_SLACK_TIMEOUTS of these count at most, less where several crunds may lead */
    uint16_t port;
    bool keeps_keys;   /* GROUP_READY: as in session_report */
    uint32_t cut_from; /* GROUP_FAILED, GROUP_READY, VIEW of the kind "stop": the same */
    bool is_quiet;
};

enum session_action {
    SESSION_DO_DIAL, /* open a connection to s->redirect, or to the endpoint where it is ""; any other one is closed already */
    SESSION_DO_GREET,    /* send frame_put_greeting() */
    SESSION_DO_HELLO,    /* send frame_put_opening() and session_hello() */
    SESSION_DO_REPORT,   /* send session_report() */
    SESSION_DO_ALIVE,    /* send an empty frame */
    SESSION_DO_RENEW,    /* send s->renewal, which is a sign of life, too */
    SESSION_DO_CLOSE,    /* the connection, after its output was sent; no further event of it comes */
    SESSION_DO_START,    /* start the workers: event.view has the place */
    SESSION_DO_STOP,     /* the generation is over (s->cause): stop the workers, then GROUP_READY */
    SESSION_DO_FENCE,    /* the lease ends (s->cause): stop all workers, then GROUP_READY */
    SESSION_DO_FENCED,   /* the lease has ended the workers (s->cause) while this process did not run */
    SESSION_DO_DRAIN,    /* have the workers snapshot and end */
    SESSION_DO_QUIET,    /* no worker of any node makes progress */
    SESSION_DO_PROGRESS, /* event.view has the number of nodes that are ready */
    SESSION_DO_CHECK,    /* this unfit node is needed: run the health check again */
    SESSION_DO_LOG,      /* s->text is for people */
    SESSION_DO_END,      /* stop the workers, exit: s->end, s->verdict, s->cause, s->text */
    SESSION_ACTION_COUNT
};

enum { SESSION_ACTIONS_MAX = 6, SESSION_TROUBLE_SIZE = 512 };

struct session_actions {
    enum session_action items[SESSION_ACTIONS_MAX];
    size_t n_items;
};

enum session_end {
    SESSION_END_NONE,
    SESSION_END_VERDICT,     /* the job is over: verdict, cause */
    SESSION_END_REFUSED,     /* text: why */
    SESSION_END_FOREIGN,     /* text: what is at the endpoint instead */
    SESSION_END_UNREACHABLE, /* text: for how long the rendezvous was not reached */
    SESSION_END_COUNT
};

struct session_config {
    /* All of it but the report and the attempt; copied. */
    struct session_hello hello;
    const char *endpoint;    /* "host:port", for sentences; must live as long as the session */
    bool has_more_endpoints; /* it is a list of several */
    uint64_t
        cutoff_ns; /* how long to redial after having been connected; 0: SESSION_CUTOFF_MS, or with a lease the
                             join timeout */
};

enum { SESSION_CUTOFF_MS = 30000 };

struct session {
    struct session_hello hello; /* identity of this agent */
    const char *endpoint;
    uint64_t cutoff_ns;

    enum session_link link;
    uint64_t dialed_ns;            /* start of the last attempt */
    uint64_t link_until_ns;        /* DOWN: dial then; DIALING to OPENING: not waited for longer */
    uint64_t unreachable_since_ns; /* since when the rendezvous has not been reached */
    uint64_t heard_ns;             /* UP */
    uint64_t slow_until_ns;        /* UP: not taken for silent before */
    uint64_t alive_ns;             /* OPENING, UP: the next sign of life */
    uint64_t next_complaint_ns;    /* not to repeat the same complaint before */
    uint64_t patience_ns;          /* of the next greeting */
    uint32_t backoff_ms;
    uint64_t random;
    uint32_t lease_ms;      /* 0: none */
    uint64_t leased_ns;     /* when the last message was sent that was answered */
    uint64_t hello_ns;      /* of this connection */
    bool is_hello_answered; /* the same */
    uint32_t renewal;       /* number of the last one */
    uint64_t renewal_ns;    /* when it was sent */
    bool is_renewal_open;   /* and it has no answer yet */
    bool was_up;
    bool opened; /* OPENING: the peer has answered our opening, so it is a rendezvous */
    /* Why the rendezvous is not reached, as of the last attempt; "": not known. */
    char trouble[SESSION_TROUBLE_SIZE];
    unsigned n_rebuffs; /* times in a row that a TCPStore closed the connection on our opening */
    bool has_more_endpoints;
    bool is_crund;                    /* one of the endpoints has answered as a rendezvous */
    uint64_t term;                    /* the highest of all views; see session_view */
    char redirect[SESSION_ADDR_SIZE]; /* DIALING: this address, as a crund has named it; "": the endpoint's */
    bool was_redirected;              /* by the last answer */

    enum session_phase phase;
    uint64_t instance;
    int64_t generation;
    int32_t group_rank;
    uint16_t port;
    bool keeps_keys;                /* READY: reported */
    uint32_t cut_from;              /* as in session_report, of `generation` */
    char unfit[SESSION_UNFIT_SIZE]; /* STOPPING: why the last health check failed; "": it has not */
    uint32_t restarts, changes;
    bool drain; /* we asked for it */
    uint64_t drain_ns;
    bool drained;         /* SESSION_DO_DRAIN was given */
    bool quiet;           /* RUNNING: reported */
    bool leaving;         /* LEAVE has come, and workers are left whose end has to be reported */
    uint32_t stop_signal; /* from LEAVE; after SESSION_DO_END: of the view; 0: none */
    uint64_t failed_ns;

    /* FAILED: our own failure. Otherwise why the last generation is over; after SESSION_DO_END, the job. */
    struct session_cause cause;
    enum session_end end;
    enum session_verdict verdict;
    char text[SESSION_TEXT_SIZE + SESSION_TROUBLE_SIZE];
};

void session_init(struct session *s, const struct session_config *config);

/* Takes one event and answers with what to do now, in that order. */
void session_step(struct session *s, const struct session_event *event, struct session_actions *out);

/* The contents of a hello or a report sent now. */
void session_hello(const struct session *s, uint64_t now_ns, struct session_hello *ret);
void session_report(const struct session *s, uint64_t now_ns, struct session_report *ret);

/* The next SESSION_EVENT_TIMER declares the rendezvous lost: ask the kernel first whether the network is
 * the reason. */
bool session_is_overdue(const struct session *s, uint64_t now_ns);

/* No process of the workers may run from then on; UINT64_MAX: there is no lease. */
uint64_t session_lease_end(const struct session *s);

/* When SESSION_EVENT_TIMER is wanted, at the latest; UINT64_MAX: not at all. */
uint64_t session_deadline(const struct session *s);

/* "down", "dialing", ... */
extern const char *const session_link_names[SESSION_LINK_COUNT];
