#!/usr/bin/env python3
"""circles.py - the files of coll/ that call each other in a circle.

    circles.py SOURCE-TREE

A file uses another if it names a function mpix_ep_* that the other defines; a call through the table of paths is none. Two files are in
one circle if each leads to the other. The exit status is 1 if a circle has more than MOST files, or has files of host memory (coll/host,
coll/host_ll) and of GPU memory (coll/gpu) in it, or if a shared file (directly in coll/, but for the table itself) names a path's folder.
"""
import os
import re
import sys

MOST = 10


def strip(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


def read(top):
    files = {}
    for folder, _, names in os.walk(os.path.join(top, "coll")):
        for name in names:
            if name.endswith(".c"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    files[os.path.relpath(path, os.path.join(top, "coll"))] = strip(f.read())
    return files


def uses(files):
    # A definition begins in the first column and its body follows its parameters.
    definition = re.compile(r"^(?!static\b)\w[\w\s\*]*?\b(mpix_ep_\w+)\s*\(", re.M)
    home = {}
    for path, text in files.items():
        for m in definition.finditer(text):
            close = text.find(")", m.end())
            while close >= 0 and text.count("(", m.start(), close + 1) != text.count(")", m.start(), close + 1):
                close = text.find(")", close + 1)
            if close >= 0 and text[close + 1:].lstrip().startswith("{"):
                home[m.group(1)] = path
    edges = {path: set() for path in files}
    for path, text in files.items():
        for name in set(re.findall(r"\bmpix_ep_\w+", text)):
            if name in home and home[name] != path:
                edges[path].add(home[name])
    return home, edges


def reach(edges, start):
    seen, todo = set(), [start]
    while todo:
        for to in edges[todo.pop()]:
            if to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def circles(edges):
    from_each = {path: reach(edges, path) for path in edges}
    found = {frozenset(b for b in edges if b in from_each[a] and a in from_each[b]) for a in edges}
    return sorted((sorted(c) for c in found if len(c) > 1), key=len, reverse=True)


def main():
    files = read(sys.argv[1])
    home, edges = uses(files)
    if len(home) < 50:
        print("circles.py: only %d functions were found" % len(home))
        return 1
    bad = 0
    for circle in circles(edges):
        folders = {os.path.dirname(path) for path in circle}
        print("circle of %d files: %s" % (len(circle), " ".join(circle)))
        bad |= len(circle) > MOST or ("gpu" in folders and bool(folders & {"host", "host_ll"}))
    for path, text in files.items():
        if path == "path.c" or os.path.dirname(path) in ("gpu", "host_ll"):
            continue
        for line in re.findall(r"\bmpix_ep_(?:gpu|ll)_\w+|ep->gpu\b|ep->ll\b", text):
            print("%s: names %s" % (path, line))
            bad = 1
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
