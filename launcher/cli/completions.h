#pragma once

/*
 * Completion scripts for shells, written from the table of options, so that they cannot drift from it. Pure.
 * Each is malloc'ed text, or NULL without memory.
 */

char *completions_bash(void);
char *completions_zsh(void);
char *completions_fish(void);
