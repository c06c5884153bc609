#!/bin/sh
# expand.sh - a page of the manual as pandoc's markdown: what the sources say already is taken from
# there, so it can't differ.
#
#   expand.sh SOURCE-TREE PAGE.md SECTION
#
# A page begins with its name as "# NAME" and one sentence. Lines of their own:
#   @calls MPIX_A MPIX_B   prototypes and comments of these calls, from the headers
#   @type MPIX_T ...       these types with their comments
#   @file HEADER           the comment that begins a header: its rules
#   @enum MPIX_X ...       the comments of the enums with these constants, and the constants
#   @source FILE           a program, whole
#   @usage FILE            the usage text of a tool, from its source
#   @parameters            the table of parameters, from src/base/param.c, without those for
#                          developers
set -eu
top=$1 page=$2 section=$3
version=$(sed -n 's/^version=//p' "$top/VERSION")
exec awk -v top="$top" -v section="$section" -v version="$version" '
function slurp(file,   text, line) {
    text = ""
    while ((getline line <file) > 0) text = text line "\n"
    close(file)
    if (text == "") { print "expand.sh: " file " is empty or not there" >"/dev/stderr"; exit 1 }
    return text
}
function escape(s) { gsub(/[*<>\\`|$~^]/, "\\\\&", s); return s }
# A comment without its frame; parameters become items, lines indented by more than usual
# stay as they are.
function comment(c,   n, lines, i, l, out, item, inside, code) {
    sub(/^\/\*\*? ?/, "", c); sub(/ *\*\/$/, "", c)
    gsub(/ @return/, "\n@return", c); gsub(/ @param/, "\n@param", c)
    n = split(c, lines, "\n"); out = ""
    for (i = 1; i <= n; i++) {
        l = lines[i]; sub(/^ *\* ?/, "", l)
        if (l == "") inside = 0
        if (l ~ /^  / && inside) { # goes on with an item
            sub(/^ +/, "", l); out = out escape(l) "\n"; continue
        }
        if ((l ~ /^   / || (l ~ /^  / && (code || l ~ /[^ .]  +[^ ]/))) && !inside) {
            # a formula or a table, with a tab for pandoc
            if (!code) out = out "\n"
            out = out "    " l "\n"; code = 1; continue
        }
        if (code) { out = out "\n"; code = 0 }
        sub(/^ +/, "", l)
        if (l ~ /^@param/) {
            item = l; sub(/^@param(\[[a-z,]*\])? */, "", item); match(item, /^[^ ,]+(, [^ ,]+)* /)
            if (RLENGTH < 0) RLENGTH = length(item) + 1
            l = substr(item, RLENGTH + 1); sub(/^ +/, "", l); item = substr(item, 1, RLENGTH - 1)
            out = out "\n\n*" item "*: " escape(l) "\n"; inside = 1
        } else if (l ~ /^@return/) {
            inside = 1; sub(/^@return */, "", l); out = out "\n\nReturns " escape(l) "\n"
        } else if (l ~ /^[A-Z0-9]+: /) { out = out "\n\n" escape(l) "\n"; inside = 1 }
        else if (l ~ /^ *- /) { out = out "\n" escape(l) "\n"; inside = 1 }
        else out = out escape(l) "\n"
    }
    return out
}
# The comment that ends right before position p of text.
function before(text, p,   head, i, j) {
    head = substr(text, 1, p - 1)
    if (head !~ /\*\/[ \n]*$/) return ""
    i = 0
    while ((j = index(substr(head, i + 1), "/*")) > 0) i += j
    head = substr(head, i); sub(/[ \n]*$/, "", head)
    return head
}
function find(name, pattern,   i, f) {
    for (i = 1; i <= 4; i++) if (match(header[i], pattern)) return i
    print "expand.sh: the headers have no " name >"/dev/stderr"; exit 1
}
# What a call without a comment of its own is, from its name.
function form(name,   base) {
    base = name
    if (sub(/_begin_enqueue$/, "", base))
        return "Starts " base " in a CUDA stream and returns; " base "_end_enqueue completes it."
    if (sub(/_end_enqueue$/, "", base))
        return "Completes, in a CUDA stream, the " base "_begin_enqueue that was called last on " \
            "the handle."
    if (sub(/_enqueue$/, "", base))
        return "As " base ", ordered in a CUDA stream: returns at once; the stream goes on when " \
            "it is complete."
    if (base ~ /_i[a-z_]+$/) {
        sub(/_i/, "_", base)
        return "As " base ", but returns at once; *xfer* is completed by MPIX_Xfer_wait(3)."
    }
    sub(/_[a-z_]+$/, "_i" substr(base, match(base, /_[a-z_]+$/) + 1), base)
    return "As " base ", and returns when it is complete."
}
# The comment that begins a header, less its first line.
function rules(file,   text, i) {
    text = slurp(top "/include/" file); i = index(text, "*/"); text = substr(text, 1, i + 1)
    sub(/^[^\n]*\n \* [^\n]*\n/, "/*\n", text)
    print comment(text)
}
function enums(list,   n, names, i, h, p, text, body) {
    n = split(list, names, " ")
    for (i = 1; i <= n; i++) {
        h = find(names[i], "\nenum \\{[^}]*" names[i] "[ ,\n]"); p = RSTART + 1
        text = before(header[h], p)
        body = substr(header[h], p); body = substr(body, 1, index(body, "};") + 1)
        print comment(text) "\n```\n" body "\n```\n"
    }
}
function calls(list,   n, names, i, h, text, file) {
    n = split(list, names, " ")
    file = list ~ /_device/ && list !~ /create/ ? "mpix_device.h" : \
        list ~ /P2p/ ? "mpix_p2p.h" : \
        list ~ /Xfer_|Error_/ ? "mpix_xfer.h" : "mpix_ep.h"
    print "# SYNOPSIS\n\n    #include <" file ">\n"
    for (i = 1; i <= n; i++) {
        h = find(names[i], "\nint " names[i] "\\("); text = substr(header[h], RSTART + 1)
        print "    " substr(text, 1, index(text, ";"))
    }
    print "\n# DESCRIPTION\n"
    for (i = 1; i <= n; i++) {
        h = find(names[i], "\nint " names[i] "\\("); text = before(header[h], RSTART + 1)
        print "## " names[i] "\n"
        print text == "" ? form(names[i]) "\n" : comment(text) "\n"
    }
}
function type(name,   h, text, p, all, i) {
    h = find(name, "\n} " name ";"); all = substr(header[h], 1, RSTART + RLENGTH)
    i = 0
    while ((p = index(substr(all, i + 1), "\ntypedef struct")) > 0) i += p
    text = before(all, i + 1)
    print "## " name "\n\n" comment(text) "\n\n```\n" substr(all, i + 1) "```\n"
}
# The string literals of C text, joined.
function literals(c,   out, s) {
    out = ""
    while (match(c, /"([^"\\]|\\.)*"/)) {
        s = substr(c, RSTART + 1, RLENGTH - 2); c = substr(c, RSTART + RLENGTH); out = out s
    }
    gsub(/\\n/, "\n", out); gsub(/\\"/, "\"", out); gsub(/%%/, "%", out)
    return out
}
function usage(file,   c) {
    c = slurp(top "/" file)
    if (!match(c, /"usage: /)) { print "expand.sh: no usage in " file >"/dev/stderr"; exit 1 }
    c = substr(c, RSTART); c = substr(c, 1, match(c, /"[ \n]*[;,)]/))
    print "# SYNOPSIS AND OPTIONS\n\n```\n" literals(c) "```\n"
}
function parameters(   c, n, rows, i, row, k, f, help, same) {
    c = slurp(top "/src/base/param.c"); c = substr(c, index(c, "param_table[] = {") + 17)
    c = substr(c, 1, index(c, "\n};")); n = split(c, rows, /FIELD\(/)
    for (i = 1; i < n; i++) {
        row = rows[i]; sub(/^[^{]*\{/, "", row)
        for (k = 1; k <= 4; k++) {
            match(row, /"([^"\\]|\\.)*"/)
            f[k] = substr(row, RSTART + 1, RLENGTH - 2); row = substr(row, RSTART + RLENGTH)
        }
        if (row ~ /^,[ \n]*[A-Z]+ \| DEV,/) continue # for developers
        same = row ~ /^,[ \n]*SAME,/ ? "equal on all ranks" : "may differ between ranks"
        help = literals(row)
        print "**" f[1] "** (" f[2] "; " escape(f[3]) "; default " (f[4] == "" ? "empty" : f[4]) \
            "; " same ")\n:   " escape(help) "\n"
    }
}
BEGIN {
    header[1] = slurp(top "/include/mpix_ep.h"); header[2] = slurp(top "/include/mpix_xfer.h")
    header[3] = slurp(top "/include/mpix_p2p.h"); header[4] = slurp(top "/include/mpix_device.h")
}
FNR == 1 {
    name = substr($0, 3)
    print "% " toupper(name) "(" section ") mpix-ep " version " | mpix-ep manual\n\n# NAME\n"
    next
}
!named && NF { print name " - " $0 "\n"; named = 1; next }
/^@calls / { calls(substr($0, 8)); next }
/^@type / { n = split(substr($0, 7), t, " "); for (k = 1; k <= n; k++) type(t[k]); next }
/^@file / { rules(substr($0, 7)); next }
/^@enum / { enums(substr($0, 7)); next }
/^@source / { print "```\n" slurp(top "/" substr($0, 9)) "```\n"; next }
/^@usage / { usage(substr($0, 8)); next }
/^@parameters/ { parameters(); next }
{ print }
END {
    if (section == 3 && name != "MPIX_INIT")
        print "\n# RETURN VALUE\n\nMPI_SUCCESS, or an error code whose kind " \
            "**MPIX_Error_kind**(3) and whose particulars **MPIX_Error_last**(3) tell, after it " \
            "was\nraised through the error handler of the object.\n"
    n = split("mpix-ep(7) mpix-ep-parameters(7) mpix_ep_info(1)", t, " "); also = ""
    for (k = 1; k <= n; k++) if (t[k] != name "(" section ")") {
        p = index(t[k], "("); also = also "**" substr(t[k], 1, p - 1) "**" substr(t[k], p) ", "
    }
    if (section == 3) also = also "the program in **mpix-ep**(7), "
    print "\n# SEE ALSO\n\n" also "and guide.md in the folder that " \
        "`pkg-config --variable=docdir mpix-ep` names.\n"
}' "$page"
