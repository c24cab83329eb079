#!/bin/sh
# The manual page with a program in it: example_page.sh TEMPLATE PROGRAM FOLDER OUTPUT. The line @PROGRAM@ becomes the
# program's text, in which a backslash and a leading dot or quote mean nothing to the formatter.
set -eu
sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/" "$2" >"$4.program"
sed -e "s|@FOLDER@|$3|" -e "/^@PROGRAM@\$/{r $4.program" -e 'd' -e '}' "$1" >"$4"
rm -f "$4.program"
