#include "worker-runtime/programs/recovery.h"

int recovery_has(const struct recovery_offer *offer, int64_t number)
{
    return number != RECOVERY_NONE &&
           (offer->alive == number || offer->memory[0] == number || offer->memory[1] == number);
}

/* The first rank that holds the newest of those alive. */
static struct recovery_choice choose_alive(const struct recovery_offer *offers, int n)
{
    struct recovery_choice choice = {.kind = RECOVERY_FRESH, .number = RECOVERY_NONE};

    for (int i = 0; i < n; i++)
        if (offers[i].alive > choice.number)
            choice = (struct recovery_choice){.kind = RECOVERY_ALIVE, .number = offers[i].alive, .from = i};
    return choice;
}

static int is_in_all(const struct recovery_offer *offers, int n, int64_t number)
{
    for (int i = 0; i < n; i++)
        if (offers[i].memory[0] != number && offers[i].memory[1] != number)
            return 0;
    return 1;
}

/* The newest that all ranks have which hold a part of it: those of the first rank's host. */
static struct recovery_choice choose_memory(const struct recovery_offer *offers, int n)
{
    struct recovery_choice choice = {.kind = RECOVERY_FRESH, .number = RECOVERY_NONE};
    int n_parts = (int)offers[0].n_parts;

    if (n_parts < 1 || n_parts > n)
        return choice;
    for (int i = 0; i < 2; i++) {
        int64_t number = offers[0].memory[i];

        if (number > choice.number && is_in_all(offers, n_parts, number))
            choice = (struct recovery_choice){.kind = RECOVERY_MEMORY, .number = number, .n_parts = n_parts};
    }
    return choice;
}

struct recovery_choice recovery_choose(const struct recovery_offer *offers, int n)
{
    struct recovery_choice choice = choose_alive(offers, n);

    return choice.kind == RECOVERY_FRESH ? choose_memory(offers, n) : choice;
}
