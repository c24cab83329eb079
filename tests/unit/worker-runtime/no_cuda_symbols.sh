#!/bin/sh
# The libraries that programs link know nothing of CUDA or NCCL: no_cuda_symbols.sh NM LIBRARY...
nm=$1
shift
for library; do
    found=$("$nm" "$library" 2>/dev/null | grep -E ' [A-Za-z] (_*([cC][uU][dD][aA]|[nN][cC][cC][lL])|cu[A-Z])')
    if [ -n "$found" ]; then
        echo "$library has symbols of CUDA or NCCL:"
        echo "$found"
        exit 1
    fi
    [ -n "$("$nm" "$library" 2>/dev/null)" ] || { echo "no symbols in $library"; exit 1; }
done
