#!/usr/bin/env python3
"""The language of the C and CUDA sources outside tests, of the Python package, and of the manual pages, measured.

 - Dialect: words of the list below per 1,000 words of comment, for each folder and in total. Comments are
   technical English: they name the actor (worker, agent, guardian, crund) instead of "who" and the system's verb
   instead of "says" or "hears".
 - The same words in string literals, which users read as messages, and in manual pages: none.
 - Shared names: the share of the functions that have the name of a function in another file. Such functions
   cannot be told apart in a backtrace or found with grep.
 - External functions and structs that are defined twice.
 - Pointing words ("it", "that", "which", "one", ...) per 1,000 words of comment, and of docstring in Python, for each file
   that is new since POINTING_BASE or changed since then by more than moves: a reader searches for what such a word
   stands for. Without git, or when the clone does not reach that commit, nothing is counted.

Usage: check_language.py [--words] [--names]     --words and --names list each finding with its place
       check_language.py --pointing [PATH...]    the rate of each file that is bound, worst first, or of these files
"""

import argparse
import ast
import collections
import io
import os
import re
import subprocess
import sys
import tokenize

from tree import ROOT, files, sources

DIALECT = re.compile(r"\b(?:who|whom|whose|whoever|nobody|somebody|everybody|anybody|says?|said|tells?|told|hears?|heard|"
                     r"strangers?|neighbours?)\b", re.I)
DIALECT_MAX = 3.0      # per 1,000 words of comment
SHARED_MAX = 9.0       # per cent of the functions
POINTING = re.compile(r"\b(?:its?|itself|this|that|these|those|ones?|what|which|they|them|their)\b", re.I)
POINTING_BASE = "7d9fc52c6ba2757f5238de688aa06702d8d6b81a"    # files that are as old as this commit are not bound
POINTING_MAX_NEW = 50      # per 1,000 words of comment
POINTING_MAX_CHANGED = 65
POINTING_LINES = 20        # as many changed lines make a changed file
POINTING_WORDS = 60        # fewer words of comment have no rate

# A comment, or a string or character literal, which may hold what looks like one.
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
WORD = re.compile(r"[A-Za-z][A-Za-z']*")
# A definition at the start of a line, as clang-format leaves it: the brace of a function has a line of its own.
FUNCTION = re.compile(r"^(?!\s|#|/|\*|typedef|struct \w+ \{|enum)([A-Za-z_][\w\s\*]*?[\s\*])(\w+)\([^;{}]*\)\s*\n\{", re.M)
ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)\s*")
ANONYMOUS = re.compile(r"^namespace\s*\{.*?^\} // namespace", re.M | re.S)
STRUCT = re.compile(r"^struct (\w+) \{$", re.M)


def comments(text):
    """(line, text) of each comment."""
    return [(text.count("\n", 0, m.start()) + 1, m.group()) for m in TOKEN.finditer(text) if m.group()[0] == "/"]


def dialect(texts, listing):
    folders = collections.defaultdict(lambda: [0, 0])
    for path, text in texts.items():
        folder = folders[os.path.dirname(path)]
        for line, comment in comments(text):
            folder[1] += len(WORD.findall(comment))
            for m in DIALECT.finditer(comment):
                folder[0] += 1
                if listing:
                    print(f"{path}:{line + comment.count(chr(10), 0, m.start())}: {m.group()}")
    return folders


def printed_texts(texts):
    """(path, line, text) of each string literal, and of each line of the manual pages."""
    for path, text in texts.items():
        for m in TOKEN.finditer(text):
            begin = text.rfind("\n", 0, m.start()) + 1
            if m.group()[0] == '"' and not text[begin:m.start()].lstrip().startswith("#"):
                yield path, text.count("\n", 0, m.start()) + 1, m.group()
    for path in sorted((ROOT / "man").iterdir()):
        if re.search(r"\.\d(?:\.in)?$", path.name):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield path.relative_to(ROOT), number, line


def print_printed(texts):
    n_texts = n_found = 0
    for path, line, text in printed_texts(texts):
        n_texts += 1
        for m in DIALECT.finditer(text):
            n_found += 1
            print(f"  {path}:{line}: {m.group()}")
    print(f"dialect: {n_found} in {n_texts} strings and lines of manual pages (0)")
    return n_found == 0


def print_dialect(folders):
    total = [sum(f[i] for f in folders.values()) for i in (0, 1)]
    for name, (found, words) in sorted(folders.items()):
        print(f"  {name:30} {found:5} of {words:6} words  {1000 * found / max(words, 1):5.1f}")
    rate = 1000 * total[0] / max(total[1], 1)
    print(f"dialect: {total[0]} of {total[1]} words of comment, {rate:.1f} per 1,000 (fewer than {DIALECT_MAX:g})")
    return rate < DIALECT_MAX


def git(*args):
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, errors="replace")
    return done.stdout if done.returncode == 0 else None


def shape(line):
    """A line without its names in code, so that a renamed function or struct is no change."""
    return re.sub(r"\w*_\w*", "_", line).strip()


def pointing_bounds(paths):
    """path -> bound, for each file that is new or changed by more than moves; None without the commit to compare with."""
    diff = git("diff", "-M", "-l4000", "--no-color", "--no-ext-diff", "-U0", POINTING_BASE, "--")
    if diff is None:
        return None
    bounds = {}
    for part in re.split(r"^diff --git ", diff, flags=re.M)[1:]:
        head, _, hunks = part.partition("\n@@")
        path = re.search(r"^\+\+\+ b/(.*?)\t?$", head, re.M)
        if not path or path.group(1) not in paths:
            continue
        lines = [line for line in hunks.split("\n") if line[:1] in ("+", "-") and not re.match(r".\s*(?:#\s*include\b.*)?$", line)]
        added, removed = (collections.Counter(shape(line[1:]) for line in lines if line[0] == sign) for sign in "+-")
        if "\nnew file mode" in head:
            bounds[path.group(1)] = POINTING_MAX_NEW
        elif sum((added - removed).values()) >= POINTING_LINES:
            bounds[path.group(1)] = POINTING_MAX_CHANGED
    return bounds


def python_comments(text):
    """All comments and docstrings."""
    found = [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(ast.get_docstring(node) or "")
    return found


def pointing_rates(bounds):
    """(rate, words, bound, path) of each file with enough words, worst first."""
    rates = []
    for path, bound in bounds.items():
        text = (ROOT / path).read_text()
        comment = "\n".join(python_comments(text) if path.endswith(".py") else [c for _, c in comments(text)])
        words = len(WORD.findall(comment))
        if words >= POINTING_WORDS:
            rates.append((1000 * len(POINTING.findall(comment)) / words, words, bound, path))
    return sorted(rates, reverse=True)


def print_pointing(listed=None):
    paths = {*sources(), *(p for p in files() if re.match(r"python/.*\.py$", p))}
    bounds = {path: POINTING_MAX_NEW for path in listed} if listed else pointing_bounds(paths)
    if bounds is None:
        print(f"pointing words: not checked, since the clone does not reach {POINTING_BASE[:7]}")
        return True
    rates = pointing_rates(bounds)
    above = [r for r in rates if r[0] > r[2]]
    for rate, words, bound, path in rates if listed is not None else above:
        print(f"  {path:50} {rate:5.1f} of {words:5} words ({bound})")
    print(f"pointing words: {len(above)} of {len(rates)} new and changed files above their bound, "
          f"with {sum(r[1] for r in above)} words of comment (0)")
    return not above


def functions(texts):
    """name -> {path: is static}"""
    found = collections.defaultdict(dict)
    for path, text in texts.items():
        if path.endswith((".c", ".cu")):
            code = ATTRIBUTE.sub("", text)
            hidden = [m.span() for m in ANONYMOUS.finditer(code)]
            for m in FUNCTION.finditer(code):
                found[m.group(2)][path] = "static" in m.group(1).split() or \
                    any(begin < m.start() < end for begin, end in hidden)
    return found


def print_shared(found, listing):
    n = sum(len(places) for places in found.values())
    shared = {name: places for name, places in found.items() if len(places) > 1 and name != "main"}
    n_shared = sum(len(places) for places in shared.values())
    if listing:
        for name, places in sorted(shared.items(), key=lambda item: -len(item[1])):
            print(f"  {len(places)} {name}: {' '.join(sorted(places))}")
    share = 100 * n_shared / max(n, 1)
    print(f"shared names: {n_shared} of {n} functions, {share:.1f} % (fewer than {SHARED_MAX:g} %)")
    return share < SHARED_MAX


def print_twice(texts, found):
    """External names that two files define. A struct in a .c file is private to it, but gdb and grep find both."""
    twice = []
    for name, places in found.items():
        external = sorted(path for path, is_static in places.items() if not is_static)
        if len(external) > 1 and name != "main":
            twice.append(f"function {name}: {' '.join(external)}")
    structs = collections.defaultdict(set)
    for path, text in texts.items():
        for name in STRUCT.findall(text):
            structs[name].add(path)
    for name, paths in structs.items():
        if len(paths) > 1 and any(path.endswith((".h", ".cuh")) for path in paths):
            twice.append(f"struct {name}: {' '.join(sorted(paths))}")
    for line in sorted(twice):
        print(f"  twice: {line}")
    print(f"defined twice: {len(twice)} external functions and structs (0)")
    return not twice


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", action="store_true", help="list each word of the dialect with its place")
    parser.add_argument("--names", action="store_true", help="list each shared name with its files")
    parser.add_argument("--pointing", nargs="*", metavar="PATH", help="list the rate of pointing words of each new or changed file")
    args = parser.parse_args()
    texts = {path: (ROOT / path).read_text() for path in sources()}
    if args.pointing is not None:
        print_pointing(args.pointing)
        return 0
    found = functions(texts)
    checks = [print_dialect(dialect(texts, args.words)), print_pointing(), print_printed(texts),
              print_shared(found, args.names), print_twice(texts, found)]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
