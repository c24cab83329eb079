#pragma once

/*
 * Completion scripts for shells, written from the table of options, so that they cannot drift from it. Pure.
 * Each is malloc'ed text, or NULL without memory.
 */

char *completions_bash(void);
char *completions_zsh(void);
char *completions_fish(void);
char *completions_tcsh(void);

/* The script for "bash", "zsh", "tcsh" or "fish"; NULL for another shell, too. */
char *completions_script(const char *shell);
