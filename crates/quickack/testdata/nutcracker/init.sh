# Operates $1 by Debian's init script for nutcracker, then by nutcracker's name alone, as its author's script for
# Red Hat does; prints what came of each step. In the namespaces that the test has made.
set -u
ip link set lo up
mount --bind "$1" /usr/sbin/nutcracker
for folder in /run /tmp /var/log /etc/nutcracker; do
    mount -t tmpfs none "$folder"
done
chmod 1777 /tmp
mkdir /var/log/nutcracker
chown nutcracker /var/log/nutcracker
printf 'alpha:\n  listen: 127.0.0.1:22121\n  servers:\n   - 127.0.0.1:11211:1\n' >/etc/nutcracker/nutcracker.yml
export SYSTEMCTL_SKIP_REDIRECT=1 _SYSTEMCTL_SKIP_REDIRECT=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin
pid=/run/nutcracker/nutcracker.pid
log=/var/log/nutcracker/nutcracker.log

# Waits until a command succeeds.
until_so() {
    for _ in $(seq 1000); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.02
    done
    echo "not so: $*; these run: $(pidof nutcracker); these listen, and the log's end:"
    ss -Htln
    tail -n 5 "$log"
    exit 1
}
listens() { (: </dev/tcp/127.0.0.1/22121) 2>/dev/null; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }
script() {
    /etc/init.d/nutcracker "$1" >/dev/null 2>&1
    echo "$1: $?"
}

# A process that ends gives up its program before its sockets, and the script takes it for gone between the two. If the
# next one is started then, nutcracker cannot listen, and ends: it is restarted once more, and stderr says how often.
restart() {
    for round in 1 2 3 4 5; do
        said=$(script restart)
        until_so listens_or_none
        if listens; then
            echo "$said"
            echo "it listens after restart $round" >&2
            return
        fi
        echo "restart $round: none listens; the script: $said; the log: $(tail -n 1 "$log")" >&2
    done
    echo "none listens after $round restarts"
    exit 1
}
listens_or_none() { listens || ! pidof nutcracker; }

script status
script start
until_so listens
until_so test -s "$pid"
first=$(cat "$pid")
echo "runs as $(stat -c %U "/proc/$first"), called $(cat "/proc/$first/comm")"
script status
script start
mv "$log" "$log.1"
script reload
until_so test -f "$log"
kill -TTOU "$first"
kill -TTIN "$first"
kill -USR1 "$first"
script status
restart
until_so test -s "$pid"
second=$(cat "$pid")
[ "$second" != "$first" ] && echo "another process"
script stop
until_so is_gone "$second"
script status
[ -e "$pid" ] && echo "its pid file is left"

nutcracker --daemonize --output="$log" </dev/null
echo "started: $?"
until_so listens
# Then no process is about to be started any more.
tells_figures() { timeout 5 cat </dev/tcp/127.0.0.1/22222 2>/dev/null | grep -q uptime; }
until_so tells_figures
# Whoever has just been started is called so until it has its own title.
is_found_once() { [ "$(pidof nutcracker | wc -w)" = 1 ]; }
until_so is_found_once
found=$(pidof nutcracker)
echo "found by its name: $(echo "$found" | wc -w)"
echo "command line: $(tr '\0' ' ' <"/proc/$found/cmdline" | sed 's/ *$//')"
pgrep -fc 'nutcracker --daemonize --output'
kill "$found"
until_so is_gone "$found"
pidof nutcracker || echo "none is found"
