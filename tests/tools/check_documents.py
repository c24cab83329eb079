#!/usr/bin/env python3
"""What the documents name exists: linked files, paths in code spans, and each `file:function`. No sentence is too long.

 - A relative link of Markdown leads to a file, and its anchor to a heading.
 - A code span that begins with a folder of the tree and a slash is a file or folder there, or a file without its
   suffix; * stands for any text.
 - `path/file.c:function` names a function that the file defines (a declaration in a header, a def in Python).
 - A name that begins with test_, fuzz_ or kernel_ is one of the tests.
 - tests/map names every test program and test file, each name in it exists, and each source file of the product has a block.
 - Commands in sh blocks that begin with tests/ or .ci/ are executable files.
 - A sentence has at most SENTENCE_MAX words, outside tables, code blocks and headings. A semicolon ends no sentence.

Documents that live beside their code (worker-runtime/README.md, tests/README.md) may name paths from their folder.
"""

import fnmatch
import glob
import os
import re
import sys

import measure
import test_map
from tree import ROOT, files

SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"^(?:base|proto|rendezvous|launcher|worker-runtime|tests|man|docs|\.ci|\.github)/[\w.*/{},+-]*$")
TEST = re.compile(r"^(?:test|fuzz|kernel)_[\w*]+(?:\.py)?$")   # a test by its name alone
SENTENCE_MAX = 35      # words: a reader has lost the subject of a longer one
FUNCTION = re.compile(r"^([\w./-]+\.(?:c|h|cu|cuh|py)):(\w+)(?:\(\))?$")


def documents():
    return [p for p in files() if p.endswith(".md") and not p.startswith("tests/data/")]


def exists(path, base):
    patterns = [path]
    brace = re.search(r"\{([^}]*)\}", path)
    if brace:
        patterns = [path.replace(brace.group(), part) for part in brace.group(1).split(",")]
    return all(any(glob.glob(str(ROOT / folder / p)) or glob.glob(str(ROOT / folder / (p + ".*"))) for folder in ("", base))
               for p in patterns)


def defines(path, name, base):
    for folder in ("", base):
        file = ROOT / folder / path
        if file.is_file():
            text = file.read_text()
            if path.endswith(".py"):
                return re.search(rf"^\s*(?:def|class) {name}\b", text, re.M)
            pattern = rf"^(?!\s|return\b|#)[^\n;=]*\b{name}\(" if not path.endswith(".h") else rf"\b{name}\("
            return re.search(pattern, text, re.M)
    return None


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def faults(document):
    text, base = (ROOT / document).read_text(), os.path.dirname(document)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for line, target in [(prose.count("\n", 0, m.start()) + 1, m.group(1)) for m in LINK.finditer(prose)]:
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        full = os.path.normpath(os.path.join(base, path)) if path else document
        if not (ROOT / full).exists():
            yield f"link to {target}: no such file"
        elif anchor and full.endswith(".md") and anchor not in anchors(full):
            yield f"link to {target}: no such heading"
    for span in SPAN.findall(prose):
        function = FUNCTION.match(span)
        if function:
            if not defines(*function.groups(), base):
                yield f"`{span}`: no such function"
        elif TEST.match(span) and not (glob.glob(str(ROOT / "tests" / "**" / span), recursive=True) or
                                       glob.glob(str(ROOT / "tests" / "**" / f"{span}.*"), recursive=True)):
            yield f"`{span}`: no such test"
        elif PATH.match(span) and not span.startswith("build") and not exists(span.split(" ")[0], base):
            yield f"`{span}`: no such path"
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for command in re.findall(r"^((?:tests|\.ci)/\S+)", block, re.M):
            if not os.access(ROOT / command, os.X_OK):
                yield f"command {command} is no executable file"


def long_sentences(document):
    for n, sentence in measure.sentences((ROOT / document).read_text()):
        if n > SENTENCE_MAX:
            yield f"a sentence of {n} words, more than {SENTENCE_MAX}: {' '.join(sentence.split()[:12])} ..."


def is_mapped_test(path, blocks):
    """Whether a block names the test of this file; Meson names some without the prefix test_."""
    if path.endswith(".py"):
        return any(fnmatch.fnmatchcase(path, p) for b in blocks for p in b.process)
    stem = os.path.splitext(os.path.basename(path))[0]
    names = {stem, stem.removeprefix("test_")}
    return any(fnmatch.fnmatchcase(n, p.partition("/")[2] or p) for b in blocks for p in b.unit if p != "*" for n in names)


def map_faults():
    blocks, tree = test_map.load(), files()
    for path in tree:
        if re.match(r"tests/(?:unit/.*|integration|interop)/test_[^/]*\.(?:c|py)$", path) and not is_mapped_test(path, blocks):
            yield f"tests/map: no block names {path}"
        if re.match(r"(?:base|proto|rendezvous|launcher|worker-runtime|python)/.*\.(?:c|h|cu|cuh|py)$", path) and \
                not test_map.of_path(blocks, path):
            yield f"tests/map: no block covers {path}"
    for block in blocks:
        for pattern in block.paths:
            if not any(test_map.covers(pattern, path) for path in tree):
                yield f"tests/map: {pattern}: no such file"
        for pattern in block.process:
            if not fnmatch.filter(tree, pattern):
                yield f"tests/map: {pattern}: no such test"
        for command in block.then:
            if not os.access(ROOT / command.split()[0], os.X_OK):
                yield f"tests/map: {command}: no such command"


def main():
    found, long, n = list(map_faults()), [], 0
    for document in documents():
        n += len(SPAN.findall((ROOT / document).read_text()))
        found += [f"{document}: {fault}" for fault in faults(document)]
        long += [f"{document}: {fault}" for fault in long_sentences(document)]
    for line in found + long:
        print(f"  {line}")
    print(f"documents: {len(documents())} files, {n} code spans, {len(found)} of what they name is missing (0), "
          f"{len(long)} sentences of more than {SENTENCE_MAX} words (0)")
    return 1 if found or long else 0


if __name__ == "__main__":
    sys.exit(main())
