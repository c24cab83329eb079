#!/usr/bin/env python3
"""The form of the commits since BASE, the last commit from before these rules.

 - The subject names a place and what changes there: "launcher/output: write logs from a thread". At most 72 columns,
   no semicolon (that is two changes), no period at its end, and the first word of the change is no past or -s form.
 - A second line, if there is one, is empty.
 - A commit that changes more than 20 lines outside tests has a body with the reason. Lines of Markdown and of pictures
   are not counted: documents are the reason themselves.

Without git, or in a clone that does not reach back to BASE, the commits that are there are checked.

Usage: check_commits.py [BASE]
"""

import re
import subprocess
import sys

from tree import ROOT

BASE = "48f96ed1211411b6571f878a50ae6b568b738ec9"
SUBJECT_MAX = 72
LINES_WITHOUT_BODY = 20
SUBJECT = re.compile(r"^(?:[a-zA-Z0-9_.*{}-]+(?:[/,] ?[a-zA-Z0-9_.*{}-]+)*): (\S+)")
# The forms that a mood other than the imperative begins with here; no attempt at English grammar.
NOT_IMPERATIVE = re.compile(r"^(?:added|adds|adding|fixed|fixes|fixing|changed|changes|changing|removed|removes|moved|moves|"
                            r"made|makes|updated|updates|who|what|the|a|an|it|there|is|are|was|were|no|nobody)$", re.I)


def git(*args):
    p = subprocess.run(["git", "-C", str(ROOT), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p.stdout if p.returncode == 0 else None


def changed_outside_tests(commit):
    """Lines added and removed outside tests; moves count by what changed in them."""
    text = git("diff-tree", "--no-commit-id", "--numstat", "-r", "-M", "--root", commit, "--", ".", ":!tests", ":!*.md", ":!*.svg") or ""
    return sum(int(n) for line in text.splitlines() for n in line.split("\t")[:2] if n.isdigit())


def faults(commit, message):
    lines = message.split("\n")
    subject, found = lines[0], []
    form = SUBJECT.match(subject)
    if not form:
        found.append('not "place: what changes"')
    elif NOT_IMPERATIVE.match(form.group(1)):
        found.append(f"\"{form.group(1)}\" is no imperative")
    if len(subject) > SUBJECT_MAX:
        found.append(f"{len(subject)} columns, more than {SUBJECT_MAX}")
    if ";" in subject:
        found.append("a semicolon: two changes")
    if subject.endswith("."):
        found.append("a period at the end")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty")
    # The oldest commit of a shallow clone has lost its parents: its change would be the whole tree.
    has_parent = len((git("rev-list", "--parents", "-1", commit) or "").split()) > 1
    if not "".join(lines[1:]).strip() and has_parent:
        n = changed_outside_tests(commit)
        if n > LINES_WITHOUT_BODY:
            found.append(f"no body, and {n} lines outside tests change")
    return found


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else BASE
    if git("rev-parse", "--git-dir") is None:
        print("commits: this is no git checkout, nothing to look at")
        return 0
    reaches = git("merge-base", "--is-ancestor", base, "HEAD") is not None
    shallow = (git("rev-parse", "--is-shallow-repository") or "").strip() == "true"
    if not reaches and not shallow:
        print(f"commits: {base} is no ancestor of HEAD")
        return 1
    text = git("log", "--no-merges", "--format=%H%n%B%x00", f"{base}..HEAD" if reaches else "HEAD")
    entries = [e.strip("\n").split("\n", 1) for e in text.split("\0") if e.strip()]
    bad = 0
    for commit, message in (e if len(e) == 2 else (e[0], "") for e in entries):
        for fault in faults(commit, message.strip("\n")):
            bad += 1
            print(f"  {commit[:7]} {message.splitlines()[0][:90] if message else ''}: {fault}")
    print(f"commits: {len(entries)} since {base[:7] if reaches else 'the start of this shallow clone'}, {bad} faults (0)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
