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

# Waits until a command succeeds, as long as that may last on a busy machine.
until_so() {
    until "$@"; do
        if [ $SECONDS -ge 30 ]; then
            echo "not so: $*" >&2
            exit 98
        fi
        sleep 0.01
    done
}
is_the_program() { [ "$(cat /proc/$child/comm 2>/dev/null)" != bash ]; }
# A daemon forks while it is looked for, so that it is gone only after a few looks.
are_gone() { [ -z "$(living)$(living)$(living)" ]; }
# Whether it tells its statistics; or nobody is left to do so.
has_told() {
    if timeout 5 cat <"/dev/tcp/127.0.0.1/$PORT" >json 2>/dev/null && [ -s json ]; then
        runs=yes
        return
    fi
    are_gone
}
launcher_is_gone() { ! living | grep -qx "$child"; }
# Asks the master alone, which ends the others. The lowest number is a process that is about to end
# while a daemon forks, and then the daemon has to be asked as well.
end() {
    if [ $SECONDS -ge "$next" ]; then
        next=$((SECONDS + 5))
        kill "$(living | sort -n | head -n 1)" 2>/dev/null
    fi
    are_gone
}

pid_files() {
    for file in p.pid taken.pid /run/nutcracker/nutcracker.pid; do
        [ -f "$file" ] && [ -s "$file" ] && echo "$1 $file"
    done
}

"$@" >out 2>err </dev/null &
child=$!
until_so is_the_program
runs=
until_so has_told
case " $* " in
    *" -d "* | *" --daemonize "*) until_so launcher_is_gone ;;
esac
if [ -n "$runs" ]; then
    echo "runs $(cat json)"
    pid_files "pid file"
    for file in p.pid taken.pid /run/nutcracker/nutcracker.pid; do
        [ -f "$file" ] && ! kill -0 "$(cat "$file")" 2>/dev/null && echo "wrong number in $file"
    done
    for file in l.log /var/log/nutcracker/nutcracker.log; do
        [ -s "$file" ] && echo "log $file"
    done
    next=0
    until_so end
fi
wait $child
echo "status $?"
pid_files "left"
[ -s out ] && echo "stdout $(head -n 1 out)"
[ -s err ] && echo "stderr $(head -n 1 err)"
exit 0
