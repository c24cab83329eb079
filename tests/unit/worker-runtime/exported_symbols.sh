#!/bin/sh
# The two libraries that are installed define the functions that crw.h declares, and no other global name; in the
# shared one each has the version of the ABI: exported_symbols.sh NM SHARED_LIBRARY ARCHIVE HEADER
nm=$1 library=$2 archive=$3 header=$4
declared=$(sed -n 's/^CRW_EXPORT .*[ *]\(crw_[a-z0-9_]*\)(.*/\1/p' "$header" | sort)
[ -n "$declared" ] || { echo "$header declares nothing"; exit 1; }

compare() { # NAME EXPECTED FOUND
    [ "$2" = "$3" ] && return
    echo "$1 has to define: $2"
    echo "$1 defines: $3"
    exit 1
}

compare "$library" "$(printf '%s\n' "$declared" | sed 's/$/@@CRW_0/')" \
    "$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)"
compare "$archive" "$declared" "$("$nm" -g --defined-only "$archive" | awk 'NF == 3 { print $3 }' | sort)"
