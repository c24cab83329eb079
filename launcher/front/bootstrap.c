#include "launcher/front/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/strbuf.h"

/* Whether all shells leave the text as written, in quotes and outside. */
static bool is_plain_text(const char *text)
{
    return text && *text &&
           !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+/-")];
}

/* Looks for an installed crun. $v: output of --version. f: fails with a sentence; without quotes in f a sentence of several lines
 * becomes a single line, and set -f keeps patterns in a sentence. i: executes $1 if it has the version. */
static const char installed[] =
    "f() { echo " BOOTSTRAP_FAILED
    "$*; exit 1; }; "
    "i() { command -v $1 >/dev/null && [ \"$($1 --version 2>/dev/null </dev/null)\" = \"$v\" ] && exec $1 " BOOTSTRAP_MARK
    "; }; "
    "i crun; i crun-launch; ";

/* The path of the front's crun: another user of the host may have made such a path, as below /tmp. In a folder of the own user,
 * entered before the test, no other user can replace the file. */
static void add_own_path(struct strbuf *out, const char *path)
{
    const char *slash = is_plain_text(path) ? strrchr(path, '/') : NULL;

    if (slash && slash > path)
        strbuf_add(out, "cd %.*s 2>/dev/null && unset OLDPWD && [ -O . ] && [ -O .%s ] && i .%s; ",
                   (int)(slash - path), path, slash, slash);
}

/* $m: type of the machine. $h: hash of the build for it. */
static void add_choice_of_build(struct strbuf *out, const struct bootstrap *b)
{
    strbuf_add(out, "m=$(uname -m); case $m in ");
    for (size_t i = 0; i < b->n_builds; i++)
        if (is_plain_text(b->builds[i].machine) && is_plain_text(b->builds[i].hash))
            strbuf_add(out, "%s) h=%s;; ", b->builds[i].machine, b->builds[i].hash);
    strbuf_add(out,
               "*) f \"$v is not on PATH there, and no build of it for a machine $m is here to be copied\";; "
               "esac; ");
}

/* $p: the copy. $u: umask of the login. k: checks the hash of a file. r: executes the copy; a library may be missing, or the file system has noexec. */
static const char cached[] =
    "u=$(umask); umask 077; d=${XDG_CACHE_HOME:-$HOME/.cache}/crun/bin; p=$d/$h; "
    "k() { [ \"$(sha256sum <\"$1\")\" = \"$h  -\" ]; }; "
    "r() { e=$(\"$p\" --version 2>&1 </dev/null); [ \"$e\" = \"$v\" ] || "
    "f \"the copy of crun, $p, does not run there: $e\"; umask $u; exec \"$p\" --front-channel; }; "
    "command -v sha256sum >/dev/null || f \"sha256sum is missing there, by which a copy of crun is checked\"; "
    "e=$( { mkdir -p \"$d\" && chmod 700 \"$d\"; } 2>&1) || f \"no folder for a copy of crun there: $e\"; "
    "[ -O \"$d\" ] || f \"the folder for a copy of crun there, $d, has another owner\"; "
    "[ -d \"$p\" ] && f \"a folder is in the place of the copy of crun there: remove $p\"; "
    "[ -f \"$p\" ] && k \"$p\" && r; ";

/* $n: number of bytes. $t: temporary name. */
static const char copied[] =
    "echo " BOOTSTRAP_NEEDS
    "$m $h; read -r n || f \"the launch command passes no standard input on, by which crun is copied\"; "
    "[ \"$n\" -gt 0 ] || f \"$v is not on PATH there, and its build for a machine $m cannot be read here\"; "
    "t=$d/.$h.$(uname -n).$$; x() { rm -f \"$t\"; }; trap x EXIT; trap \"exit 1\" HUP INT PIPE TERM; "
    "e=$(head -c \"$n\" 2>&1 >\"$t\") || f \"cannot write a copy of crun into $d there: $e\"; "
    "k \"$t\" || f \"the copy of crun arrived there with another checksum\"; "
    "e=$( { chmod 700 \"$t\" && mv -f \"$t\" \"$p\"; } 2>&1) || f \"cannot write $p there: $e\"; r";

char *bootstrap_script(const struct bootstrap *b)
{
    struct strbuf out = {0};

    strbuf_add(&out, "set -f; v=\"crun %s\"; %s", b->version, installed);
    add_own_path(&out, b->executable);
    if (!b->may_copy) {
        strbuf_add(&out, "f \"$v is not on PATH there, and --no-copy forbids to copy it\"");
        return strbuf_steal(&out);
    }
    add_choice_of_build(&out, b);
    strbuf_add(&out, "%s%s", cached, copied);
    return strbuf_steal(&out);
}

char *bootstrap_command(const char *script)
{
    char *command = NULL;

    return script && asprintf(&command, "/bin/sh -c '%s'", script) >= 0 ? command : NULL;
}
