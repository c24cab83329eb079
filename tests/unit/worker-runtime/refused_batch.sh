#!/bin/sh
# A batch that the model refuses is reported with the model's sentence, and not as a loss that ran away: refused_batch.sh PROGRAM
said=$("$1" toy 2>&1 >/dev/null) && { echo "$1 ended with 0"; exit 1; }
case $said in
*"--lr"*) ;;
*"step 3"*"this batch is refused, and no learning rate helps"*) exit 0 ;;
esac
echo "$1 reported: $said"
exit 1
