#!/usr/bin/env python3
"""Writes a C file that calls every function of crw.h and crw_trainer.h with any arguments: any_arguments.py OUTPUT HEADER...

The functions come from the headers, so a new function is called as soon as it is declared. The type and the name of a parameter
decide which values it gets (any_arguments.h has one draw_...() for each); a parameter that no line of VALUES fits is an
error here, and the build fails.
"""

import re
import sys

# (type, name) as regular expressions -> the C expression of a value. The first that fits is taken.
VALUES = [
    (r"int \(\*\)\(struct crw_group \*group, void \*data\)", "function", "draw_worker(d)"),
    (r"int \(\*\)\(void \*data, size_t begin\)", "hook", "draw_hook(d)"),
    (r"void \(\*\)\(void \*data, const char \*sentence\)", "warn", "draw_warn(d)"),
    (r"struct crw_\w+ \*\*", "ret.*", "draw_place(d)"),
    (r"(const )?[\w ]+ \*+", "ret.*", "draw_ret(d)"),
    (r"uint64_t \*", "ret_numbers", "draw_ret(d)"),
    (r"const struct crw_env \*", "env", "draw_env(d)"),
    (r"const struct crw_(\w+)_options \*", "options", r"draw_\1_options(d)"),
    (r"const struct crw_layer \*", "layers", "draw_layers(d)"),
    (r"const struct crw_tensor \*", "tensors|t", "draw_tensors(d)"),
    (r"const struct crw_pair \*", "meta", "draw_pairs(d)"),
    (r"const struct crw_samples \*", r"\w+", "draw_samples(d)"),
    (r"(const )?struct crw_(\w+) \*", r"\w+", r"draw_\2(d)"),
    (r"struct crw_shape", "input", "draw_shape(d)"),
    (r"const char \*", r"(\w+)", r"draw_text_\1(d)"),
    (r"const int64_t \*", "targets", "draw_targets(d)"),
    (r"const int \*", "members", "draw_members(d)"),
    (r"(const )?(void|float|double|uint8_t|uint32_t) \*", r"\w+", "draw_array(d)"),
    (r"enum crw_\w+", r"\w+", "draw_int(d)"),
    (r"int", "n", "draw_int_n(d, {launches})"),
    (r"int", r"\w+", "draw_int(d)"),
    (r"size_t", "count|n_bytes|n_layers|n_tensors|n_meta|batch_size", "draw_count(d, {has_array})"),
    (r"size_t", r"\w+", "draw_count(d, 0)"),
    (r"uint(32|64)_t|int64_t", r"\w+", "draw_number(d)"),
    (r"bool", r"\w+", "draw_bool(d)"),
    (r"double|float", r"\w+", "draw_real(d)"),
]
# What follows may use what these end, or they end the process's only group: nothing is called after them.
LAST = re.compile(r"_(destroy|close|finish|wait)$")
# To be called before the program has threads: alone.
ALONE = {"crw_launch"}
# Their results are numbers, or results of a function of the program.
NO_RESULT = {"crw_rank", "crw_world_size", "crw_group_restart_count", "crw_device_count"}


def declarations(header):
    """(name, result type, parameter list) of each exported function."""
    text = re.sub(r"/\*.*?\*/", "", open(header).read(), flags=re.S)
    found = re.findall(r"^CRW_EXPORT (.*?[ *])(crw_\w+)\((.*?)\);", re.sub(r"\s+(?=[^\n]*;?)", " ", text).replace(
        "CRW_EXPORT", "\nCRW_EXPORT"), flags=re.M)
    return [(name, result.strip(), split(parameters)) for result, name, parameters in found]


def split(parameters):
    """(type, name) of each parameter; commas in parentheses belong to it."""
    parts, depth = [""], 0
    for c in parameters:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    parts = [p.strip() for p in parts if p.strip() not in ("", "void")]
    return [parameter(p) for p in parts]


def parameter(text):
    pointer = re.fullmatch(r"(.*?\(\*)(\w+)(\).*)", text)
    if pointer:
        return pointer[1] + pointer[3], pointer[2]
    array = re.fullmatch(r"(.*?)(\w+)\[\d*\]", text)
    if array:
        return array[1].strip() + " *", array[2]
    plain = re.fullmatch(r"(.*?)(\w+)", text)
    return plain[1].strip(), plain[2]


def value(function, kind, name, has_array):
    for type_pattern, name_pattern, expression in VALUES:
        fits = re.fullmatch(f"(?:{type_pattern}) (?:{name_pattern})", f"{kind} {name}")
        if fits:
            return fits.expand(expression).format(has_array=has_array, launches=int(function == "crw_launch"))
    raise SystemExit(f"any_arguments.py: {function}() has a parameter \"{kind} {name}\", for which VALUES has nothing")


def is_object_place(kind, name):
    return re.fullmatch(r"struct crw_\w+ \*\*", kind) and name.startswith("ret")


def body(number, name, result, parameters):
    has_array = int(any("*" in kind and not name.startswith("ret") and not re.fullmatch(r"(const )?struct crw_(group|model|optimizer|sampler|loader|reducer|memory|rng|trainer|work|snapshots?) \*", kind)
                        for kind, name in parameters))
    lines = [f"static void call_{number}(struct draw *d)", "{"]
    for i, (kind, parameter_name) in enumerate(parameters):
        declared = kind.replace("(*)", f"(*a{i})") if "(*)" in kind else f"{kind} a{i}"
        lines.append(f"    {declared} = {value(name, kind, parameter_name, has_array)};")
    call = f"{name}({', '.join(f'a{i}' for i in range(len(parameters)))})"
    lines.append(f'    begin_call(d, "{name}");')
    if result == "int" and name not in NO_RESULT:
        place = [f"a{i}" for i, p in enumerate(parameters) if is_object_place(*p)]
        lines.append(f"    end_call(d, {call}, {place[0] if place else 'NULL'});")
    else:
        lines.append(f"    (void){call};")
    return "\n".join(lines + ["}", ""])


def main():
    output, *headers = sys.argv[1:]
    functions = sorted(f for header in headers for f in declarations(header))
    with open(output, "w") as out:
        out.write('#include "tests/unit/worker-runtime/any_arguments.h"\n\n')
        for i, f in enumerate(functions):
            out.write(body(i, *f) + "\n")
        out.write("const struct any_function any_functions[] = {\n")
        for i, (name, _, _) in enumerate(functions):
            out.write(f'    {{"{name}", call_{i}, {int(bool(LAST.search(name)))}, {int(name in ALONE)}}},\n')
        out.write("};\n" f"const size_t n_any_functions = {len(functions)};\n")


main()
