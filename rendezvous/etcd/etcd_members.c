#include "rendezvous/etcd/etcd_members.h"

#define MS UINT64_C(1000000)

void etcd_members_begin(struct etcd_members *m, bool is_brief, uint64_t now_ns)
{
    m->until_ns = now_ns + ETCD_ALL_MS * MS;
    m->n_asked = 0;
    m->is_brief = is_brief;
}

/* The next one that is not avoided; all are: the next one. */
static size_t choose_member(const struct etcd_members *m, uint64_t now_ns)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->avoided_until_ns[(m->at + i) % m->n] <= now_ns)
            return (m->at + i) % m->n;
    return m->at;
}

bool etcd_members_next(struct etcd_members *m, uint64_t now_ns, uint64_t *ret_until_ns)
{
    uint64_t share_ns = (m->n_asked < m->n ? ETCD_FIRST_MS : ETCD_AGAIN_MS) * MS;

    /* Where each attempt fails at once, two for each member are enough. */
    if (now_ns >= m->until_ns || m->n_asked >= 2 * m->n)
        return false;
    m->at = choose_member(m, now_ns);
    m->n_asked++;
    *ret_until_ns =
        m->is_brief && m->n > 1 && now_ns + share_ns < m->until_ns ? now_ns + share_ns : m->until_ns;
    return true;
}

void etcd_members_fail(struct etcd_members *m, bool is_away, uint64_t now_ns)
{
    m->avoided_until_ns[m->at] = is_away ? now_ns + ETCD_AVOIDED_MS * MS : 0;
    m->at = (m->at + 1) % m->n;
}
