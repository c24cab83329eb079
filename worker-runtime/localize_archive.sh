#!/bin/sh
# Makes the static library that is installed: localize_archive.sh OBJCOPY AR OUTPUT INPUT LINKER...
# All objects of the archive INPUT become one relocatable object, in which every global name that does not begin
# with crw_, or that is hidden, is made local: a program may then define a function of such a name itself. Debug
# information and the local names stay.
set -eu
objcopy=$1 ar=$2 output=$3 input=$4
shift 4
object=${output%.a}.o
rm -f "$output"
"$@" -r -nostdlib -o "$object" -Wl,--whole-archive "$input" -Wl,--no-whole-archive
"$objcopy" --wildcard --keep-global-symbol='crw_*' --localize-hidden "$object"
"$ar" rcs "$output" "$object"
rm -f "$object"
