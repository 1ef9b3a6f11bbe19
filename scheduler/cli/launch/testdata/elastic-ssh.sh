#!/bin/bash
# Starts the run on each host, and follows the output of the first one. Ctrl-C leaves the run alone.
# SIGTERM to a host's process (NAME-NUMBER.pid) asks it to save and leave; on the first host it ends the run.
set -euo pipefail
hosts=(gpu1 gpu2 gpu3)
folder=''\''/data/my run'\'''
shoal=shoal
words='--hosts gpu1,gpu2,gpu3 --min 2 --max 8 --nproc 8 --grace 100 examples/train.py --steps 100'
# The hosts may share the folder, so the first one alone removes the record of an earlier run, before the others begin.
# The hosts meet by a secret. It goes through stdin: every user of a host can read the words of a command.
secret=$(openssl rand -hex 32)

for number in "${!hosts[@]}"; do
  ssh -o BatchMode=yes "${hosts[number]}" "cd $folder && { [ $number != 0 ] || rm -rf shoal-run/train; } &&
    read -r SHOAL_TOKEN && export SHOAL_TOKEN && {
    nohup $shoal run --node-rank $number --run-folder shoal-run/train $words >train-$number.log 2>&1 &
    echo \$! >train-$number.pid; }" <<<"$secret"
done

ssh -o BatchMode=yes "${hosts[0]}" "cd $folder && tail --pid=\$(cat train-0.pid) -n +1 -f train-0.log"
exit "$(ssh -o BatchMode=yes "${hosts[0]}" "cd $folder && sed -n 's/.*\"exit_code\": *\([0-9]*\).*/\1/p' shoal-run/train/exit.json")"
