#!/bin/sh
# The two libraries that are installed define the functions that the two headers declare, and no other global name; in the
# shared one those of HEADER have the version of the ABI, and those of EXPERIMENT the one that promises nothing:
# exported_symbols.sh NM SHARED_LIBRARY ARCHIVE HEADER EXPERIMENT
nm=$1 library=$2 archive=$3 header=$4 experiment=$5

declared() { # HEADER VERSION
    names=$(sed -n 's/^CRW_EXPORT .*[ *]\(crw_[a-z0-9_]*\)(.*/\1/p' "$1")
    [ -n "$names" ] || { echo "$1 declares nothing" >&2; exit 1; }
    printf '%s\n' "$names" | sed "s/\$/$2/"
}

compare() { # NAME EXPECTED FOUND
    [ "$2" = "$3" ] && return
    echo "$1 has to define: $2"
    echo "$1 defines: $3"
    exit 1
}

compare "$library" "$({ declared "$header" @@CRW_0 && declared "$experiment" @@CRW_EXPERIMENTAL; } | sort)" \
    "$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)"
compare "$archive" "$({ declared "$header" && declared "$experiment"; } | sort)" \
    "$("$nm" -g --defined-only "$archive" | awk 'NF == 3 { print $3 }' | sort)"
