#!/bin/sh
# KERNEL_CRCS of a kernel test: kernel_crcs.sh PROGRAM writes the checksums, compares them, and finds one that was changed
# and one that is missing.
program=$1
folder=$(mktemp -d) || exit 1
trap 'rm -r "$folder"' EXIT
export KERNEL_CRCS="$folder/crcs.json"

fail() {
    echo "$1"
    cat "$folder/output"
    exit 1
}

run() {
    "$program" >"$folder/output" 2>&1
}

run && grep -q '^{"crcs_written": [1-9][0-9]*}$' "$folder/output" || fail "nothing was written"
python3 -m json.tool "$KERNEL_CRCS" >/dev/null || fail "the file is no JSON"
run && grep -q '^{"crcs_compared": [1-9][0-9]*, "crcs_differ": 0}$' "$folder/output" || fail "the same results differ"

sed -i '/"case": "flattens", "what": "back"/{s/"crc": "[0-9a-f]*"/"crc": "0badcafe"/;:rest;n;brest}' "$KERNEL_CRCS"
run && fail "a changed checksum is not found"
grep -q '^kernel_loss: flattens: back (result [0-9]*): CRC [0-9a-f]\{8\}, in .*/crcs.json 0badcafe$' "$folder/output" ||
    fail "what differs is not named"
grep -q '"crcs_differ": 1}$' "$folder/output" || fail "other results than the changed one differ"

sed -i '/0badcafe/d' "$KERNEL_CRCS"
run && fail "a missing checksum is not found"
KERNEL_CRCS=/nonexistent/crcs run && fail "a file that cannot be written is no failure"
exit 0
