#pragma once

#include <stdbool.h>
#include <stddef.h>

struct agent_host;
struct disk_texts;
struct failures_source;
struct guardian_report;

/* Asks for the files that belong to a report of the guardian. */
void agent_texts_want(const struct failures_source *source, const struct guardian_report *report);

/* How long the report waits for them, in ms; 0: not at all. */
unsigned agent_texts_patience(const struct agent_host *host, const struct disk_texts *texts,
                              const struct guardian_report *report);

/* The other nodes have got the failure of worker i, without the text that is there now. */
bool agent_texts_is_late(const struct agent_host *host, const struct disk_texts *texts, size_t i);
