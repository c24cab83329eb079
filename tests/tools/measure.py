#!/usr/bin/env python3
"""Figures of the tree: size, folders, circles of calls, structs, sentences. CRUN_TREE=FOLDER measures another tree.

Usage: measure.py [--circles ROOM]     with --circles also the names on each arrow inside the circles of a room
"""

import argparse
import collections
import os
import re

import check_language
from tree import ROOT, files

ROOMS = ("base", "proto", "rendezvous", "launcher", "worker-runtime", "python")
CODE = (".c", ".h", ".cu", ".cuh", ".py")
LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
MEMBER = re.compile(r"^    [^\s#/}*][^;{}()]*?(?:\([^;]*\))?;", re.M)


def read(path):
    return (ROOT / path).read_text(errors="replace")


def without_comments(path, text):
    if path.endswith(".py"):
        return re.sub(r'^\s*(?:""".*?"""|#[^\n]*)$', "", text, flags=re.M | re.S)
    return check_language.TOKEN.sub(lambda m: " " if m.group()[0] == "/" else m.group(), text)


def count_lines(paths):
    """(lines as wc counts them, lines of code without comments and blanks)"""
    texts = {p: read(p) for p in paths}
    return (sum(t.count("\n") for t in texts.values()),
            sum(1 for p, t in texts.items() for line in without_comments(p, t).splitlines() if line.strip()))


def arrows(paths):
    """file -> other file -> names of functions that only the other one defines"""
    texts = {p: LITERAL.sub("", without_comments(p, read(p))) for p in paths}
    defined = collections.defaultdict(set)
    for name, places in check_language.functions(texts).items():
        for path, is_static in places.items():
            if not is_static:
                defined[name].add(path)
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    for path, text in texts.items():
        for name in set(re.findall(r"\b[a-z_]\w*\b", text)):
            if len(defined.get(name, ())) == 1 and path not in defined[name]:
                found[path][next(iter(defined[name]))].add(name)
    return found


def circles(graph):
    """Strongly connected files, more than one, largest first (Kosaraju, without recursion)."""
    def walk(start, next_of, seen):
        order, stack = [], [(start, iter(sorted(next_of[start])))]
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            other = next((n for n in rest if n not in seen), None)
            if other is None:
                order.append(stack.pop()[0])
            else:
                seen.add(other)
                stack.append((other, iter(sorted(next_of[other]))))
        return order
    forth, back = collections.defaultdict(set), collections.defaultdict(set)
    for a, targets in graph.items():
        for b in targets:
            forth[a].add(b)
            back[b].add(a)
    seen, order = set(), []
    for node in sorted(set(forth) | set(back)):
        if node not in seen:
            order += walk(node, forth, seen)
    seen, found = set(), []
    for node in reversed(order):
        if node not in seen:
            found.append(sorted(walk(node, back, seen)))
    return sorted((c for c in found if len(c) > 1), key=len, reverse=True)


def structs(paths):
    """(members, name, path) of each struct; a member that is a struct or union without a name counts by its members."""
    for path in paths:
        text = without_comments(path, read(path))
        for m in re.finditer(r"^struct (\w+) \{\n(.*?)^\}", text, re.M | re.S):
            members = [d for d in re.findall(r"[^;{}]+;", m.group(2)) if d.strip() != ";"]
            names = sum(1 + re.sub(r"\([^()]*\)|\[[^\]]*\]", "", d).count(",") for d in members)
            yield names, m.group(1), path


def sentences(text):
    """Words of each sentence of a document, without tables, code blocks, headings and list marks."""
    prose = re.sub(r"^```.*?^```|^    .*?$|^\|.*?$|^#.*?$", "\n", text, flags=re.M | re.S)
    prose = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", prose, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", prose):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])", paragraph.strip()):
            words = re.findall(r"[^\s]*\w[^\s]*", sentence)
            if words:
                yield len(words), sentence


def print_circles(room, names):
    paths = [p for p in files() if p.startswith(room + "/") and p.endswith(".c")]
    graph = arrows(paths)
    found = circles(graph)
    print(f"{room}: largest circle of calls: {len(found[0]) if found else 0} files"
          + "".join(f"\n    {' '.join(os.path.relpath(p, room) for p in c)}" for c in found))
    for circle in found if names else ():
        for a in circle:
            for b in circle:
                if graph[a].get(b):
                    print(f"        {os.path.relpath(a, room)} -> {os.path.relpath(b, room)}: {' '.join(sorted(graph[a][b]))}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--circles", metavar="ROOM")
    a = parser.parse_args()
    if a.circles:
        print_circles(a.circles, True)
        return
    product = [p for p in files() if p.split("/")[0] in ROOMS and p.endswith(CODE)]
    tests = [p for p in files() if p.startswith("tests/") and p.endswith(CODE)]
    for name, paths in (("product", product), ("tests", tests)):
        lines, code = count_lines(paths)
        print(f"{name}: {len(paths)} files, {lines} lines, {code} lines of code without comments and blanks")
    folders = collections.Counter(os.path.dirname(p) for p in product)
    print("fullest folders: " + ", ".join(f"{folder} {n}" for folder, n in folders.most_common(4)))
    for room in ("rendezvous", "launcher/agent", "launcher", "worker-runtime"):
        print_circles(room, False)
    for members, name, path in sorted(structs(p for p in product if p.endswith((".c", ".h"))), reverse=True)[:8]:
        print(f"struct {name}: {members} members ({path})")
    for document in sorted(p for p in files() if p.endswith(".md") and not p.startswith("tests/data/")):
        lengths = [n for n, _ in sentences(read(document))]
        if lengths:
            print(f"{document}: {len(read(document).split())} words, {sum(lengths) / len(lengths):.1f} in a sentence, "
                  f"{sum(n > 35 for n in lengths)} of {len(lengths)} sentences above 35")


if __name__ == "__main__":
    main()
