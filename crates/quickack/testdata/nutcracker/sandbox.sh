# Runs "$@" in the namespaces that the test has made, in the folder WORK, and prints facts about it.
# PORT is where its statistics are expected; BARE says that Debian's folders are missing.
set -u
ip link set lo up
for folder in /run /var/log /etc/nutcracker; do
    mount -t tmpfs none "$folder"
done
if [ -z "$BARE" ]; then
    mkdir /run/nutcracker /var/log/nutcracker
    cp "$WORK/ok.yml" /etc/nutcracker/nutcracker.yml
fi
cd "$WORK" || exit 99

# The numbers of its processes that live.
living() {
    for stat in /proc/[0-9]*/stat; do
        line=$(cat "$stat" 2>/dev/null) || continue
        case "$line" in
        *") Z "*) ;;
        *" (nutcracker) "* | *" (quickack) "* | *" (exe) "*) echo "${line%% *}" ;;
        esac
    done
}

pid_files() {
    for file in p.pid taken.pid /run/nutcracker/nutcracker.pid; do
        [ -f "$file" ] && [ -s "$file" ] && echo "$1 $file"
    done
}

"$@" >out 2>err </dev/null &
child=$!
# Until it is the program.
while [ "$(cat /proc/$child/comm 2>/dev/null)" = bash ]; do :; done
runs=
# A daemon forks while it is looked for, so that it is gone only after a few looks.
while [ -n "$(living)$(living)$(living)" ]; do
    if cat <"/dev/tcp/127.0.0.1/$PORT" >json 2>/dev/null && [ -s json ]; then
        runs=yes
        break
    fi
    sleep 0.01
done
if [ -n "$runs" ]; then
    echo "runs $(cat json)"
    pid_files "pid file"
    for file in p.pid taken.pid /run/nutcracker/nutcracker.pid; do
        [ -f "$file" ] && ! kill -0 "$(cat "$file")" 2>/dev/null && echo "wrong number in $file"
    done
    for file in l.log /var/log/nutcracker/nutcracker.log; do
        [ -s "$file" ] && echo "log $file"
    done
    # The master alone: it ends the others.
    kill "$(living | sort -n | head -n 1)"
    while [ -n "$(living)$(living)$(living)" ]; do sleep 0.01; done
fi
wait $child
echo "status $?"
pid_files "left"
[ -s out ] && echo "stdout $(head -n 1 out)"
[ -s err ] && echo "stderr $(head -n 1 err)"
exit 0
