#!/bin/sh
# The shared library exports the functions that crw.h declares, each with the version of the ABI, and nothing
# else: exported_symbols.sh NM LIBRARY HEADER
nm=$1 library=$2 header=$3
declared=$(sed -n 's/^CRW_EXPORT .*[ *]\(crw_[a-z0-9_]*\)(.*/\1@@CRW_0/p' "$header" | sort)
exported=$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)
[ -n "$declared" ] || { echo "$header declares nothing"; exit 1; }
if [ "$declared" != "$exported" ]; then
    echo "declared: $declared"
    echo "exported: $exported"
    exit 1
fi
