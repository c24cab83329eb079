/* A program with functions of its own that have the names of functions inside libcrw. It links the installed static
 * library; the group and the snapshot call the library's own. */

#include "worker-runtime/crw.h"

#include <stdio.h>

int reduce(void);
int net_send(void);
int store_set(void);
int store_conn_set(void);
int buf_append(void);
int fail(void);

int reduce(void)
{
    return 1;
}

int net_send(void)
{
    return 2;
}

int store_set(void)
{
    return 3;
}

int buf_append(void)
{
    return 4;
}

int store_conn_set(void)
{
    return 6;
}

int fail(void)
{
    return 5;
}

static int average_ranks(struct crw_group *group, void *data)
{
    double rank = crw_rank(group);
    int received = 0, r;

    r = crw_all_reduce(group, &rank, 1, CRW_F64, CRW_SUM);
    if (r)
        return r;
    r = crw_rank(group) == 0 ? crw_send(group, &(int){42}, sizeof(int), 1)
                             : crw_recv(group, &received, sizeof(int), 0);
    if (r)
        return r;
    return rank == 1 && (crw_rank(group) == 0 || received == 42) ? 0 : CRW_E_DATA;
}

int main(void)
{
    if (reduce() + net_send() + store_set() + buf_append() + fail() + store_conn_set() != 21)
        return 1;
    if (crw_launch(average_ranks, NULL, 2)) {
        fprintf(stderr, "%s\n", crw_error_message());
        return 1;
    }
    return 0;
}
