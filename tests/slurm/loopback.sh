#!/usr/bin/env bash
# A private SLURM cluster on the loopback interface of one machine, from Debian's packages and without systemd.
# All state lies below one folder; nothing outside it is written, /etc/slurm included.
#
#   loopback.sh install                   install the Debian packages that are missing (root)
#   loopback.sh within CMD...             run CMD with LEVER_PIPE_SLURM_TESTS naming a folder; stop every cluster in it
#   loopback.sh up         DIR            start it (again: does nothing, or heals what is missing)
#   loopback.sh down       DIR            cancel its jobs, stop every process of it
#   loopback.sh run        DIR CMD...     up, run CMD with the cluster's environment, down (always)
#   loopback.sh status     DIR            daemons, PIDs, nodes; exit 0 when all is well
#   loopback.sh env        DIR            shell lines to eval (SLURM_CONF, PATH)
#   loopback.sh kill-node  DIR NODE       "pull the plug": SIGKILL slurmd, its steps and their processes
#   loopback.sh start-node DIR NODE       bring that node back
#   loopback.sh stop       DIR DAEMON     stop one of slurmctld slurmdbd mariadbd munged slurmd-NODE (SIGTERM: an
#                                         outage; running steps stay); `up` brings it back
#   loopback.sh wipe       DIR            down, then delete what this script wrote in DIR
#
# `install` with SLB_ACCOUNTING=1 also installs what accounting needs: slurmdbd and the cores of mariadb.
#
# Settings, read at the first `up` of a DIR (environment; they are then kept in DIR/settings):
#   SLB_NODES=2          number of slurmd on this machine (n1, n2, ...)
#   SLB_CPUS=4           CPUs each node claims (need not exist)
#   SLB_MEM_MB=4000      memory each node claims, MB (need not exist)
#   SLB_GPUS=2           fake GPUs per node (0: no gres/gpu); CUDA_VISIBLE_DEVICES is set, no device is used
#   SLB_ACCOUNTING=0     1: mariadbd + slurmdbd, so that sacct/sacctmgr work
#   SLB_OVERMEM=0        1: kill jobs whose resident memory exceeds their --mem (polled every 2 s, no cgroups)
#                        (the job ends as FAILED, not OUT_OF_MEMORY)
#   SLB_MIN_JOB_AGE=600  seconds a finished job stays visible to squeue/scontrol
#   SLB_NODE_TIMEOUT=10  seconds of silence after which a node is DOWN
#   SLB_KILL_WAIT=3      seconds between SIGTERM and SIGKILL
#   SLB_REQUEUE_DELAY=20 seconds a requeued job waits (SLURM: cred_expire, 120 by default); also the
#                        life of a launch credential, so not too short on a busy machine
#   SLB_PORT_BASE=       first of a run of free ports (default: chosen; kept in DIR/settings)
#
# Runs as root or as an ordinary user (then only that user can submit jobs).

set -euo pipefail
CALLER_PATH=$PATH
# system directories first: another cluster's wrappers (DIR/bin) may be in the caller's PATH
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH

die()  { printf 'loopback: %s\n' "$*" >&2; exit 1; }
note() { [ "${SLB_QUIET:-0}" = 1 ] || printf 'loopback: %s\n' "$*" >&2; }

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2; }

install() { # only what is missing; its services must not start, and this machine's other packages keep their policy
    local wanted=(slurmctld slurmd slurm-client munge) missing=() package policy=/usr/sbin/policy-rc.d
    [ "${SLB_ACCOUNTING:-0}" = 1 ] && wanted+=(slurmdbd mariadb-server-core mariadb-client-core)
    for package in "${wanted[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    [ "$(id -u)" = 0 ] || die "only root can install ${missing[*]}: apt-get install --no-install-recommends ${missing[*]}"
    note "installing ${missing[*]}"
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

within() { # nothing that CMD started, no cluster of its folder outlives it, however it ends
    local folder status=0
    folder=$(mktemp -d "${TMPDIR:-/tmp}/slb-XXXXXX")
    # shellcheck disable=SC2064
    trap "stop_within $folder" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    LEVER_PIPE_SLURM_TESTS=$folder PATH=$CALLER_PATH env --default-signal=INT,QUIT "$@" <&0 &
    wait $! || status=$?
    exit $status
}
stop_within() { # by PID: what carries the folder's name in its environment, then what the clusters left
    local process cluster
    trap '' INT TERM HUP
    for process in /proc/[0-9]*; do
        grep -zqxF "LEVER_PIPE_SLURM_TESTS=$1" "$process/environ" 2>/dev/null || continue
        kill -KILL "${process#/proc/}" 2>/dev/null || true
    done
    for cluster in "$1"/*/; do
        [ ! -f "$cluster/settings" ] || SLB_QUIET=1 bash "$0" wipe "$cluster" || true
    done
    rm -rf "$1"
}

if [ "${1:-}" = install ]; then install; exit 0; fi
if [ "${1:-}" = within ]; then shift; [ $# -ge 1 ] || usage; within "$@"; fi
[ $# -ge 2 ] || usage
cmd=$1; dir_arg=$2; shift 2
case $cmd in
    up|run) mkdir -p "$dir_arg" ;;
    down|wipe) [ -d "$dir_arg" ] || exit 0
               [ -f "$dir_arg/settings" ] || die "no cluster in $dir_arg" ;;
    status|env|kill-node|start-node|stop) [ -f "$dir_arg/settings" ] || die "no cluster in $dir_arg" ;;
    *) usage ;;
esac
D=$(cd "$dir_arg" && pwd -P)
[ "$D" != / ] || die "not in the root directory"
ME=$(id -un 2>/dev/null) || die "SLURM needs a user with a name; uid $(id -u) has none"
# AF_UNIX paths are limited to 107 characters; slurmstepd's are the longest here
[ ${#D} -le 70 ] || die "DIR is too long for Unix sockets (${#D} > 70 characters): $D"
case $D in *[\ \"\'\#\,\[\]%\;]*) die "DIR must not contain blanks or any of \" ' # , [ ] % ; : $D";; esac

DAEMONS_FIXED="munged mariadbd slurmdbd slurmctld"

# ---------------------------------------------------------------- processes
alive() { # PID: exists and is no zombie (a container's init may never reap)
    local s; [ -n "${1:-}" ] && s=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) && [ "${s%% *}" != Z ]
}
pid_of() { cat "$D/run/$1.pid" 2>/dev/null || true; }
# Is the recorded PID still ours?  A PID may have been reused: the command line
# must hold the name, and the process start time must be the recorded one.
starttime() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20 || true; }
ours() {
    local p; p=$(pid_of "$1")
    alive "$p" && [ "$(starttime "$p")" = "$(cat "$D/run/$1.start" 2>/dev/null)" ]
}
launch() { # NAME CMD...: start in its own session, record PID
    local name=$1; shift
    ours "$name" && return 0
    # file descriptor 9 (the lock) and the caller's pipes must not leak into daemons
    setsid "$@" </dev/null >>"$D/log/$name.out" 2>&1 9>&- &
    echo $! >"$D/run/$name.pid"
    starttime $! >"$D/run/$name.start"
    STARTED="$name ${STARTED:-}"
}
stop_one() { # NAME [SECONDS]: TERM, wait, KILL
    local name=$1 wait_s=${2:-10} p i
    p=$(pid_of "$name")
    if [ -n "$p" ] && ours "$name"; then
        kill -TERM "$p" 2>/dev/null || true
        for ((i = 0; i < wait_s * 10; i++)); do alive "$p" || break; sleep 0.1; done
        if alive "$p"; then note "$name ($p) ignored SIGTERM, SIGKILL"; kill -KILL "$p" 2>/dev/null || true; fi
    fi
    rm -f "$D/run/$name.pid" "$D/run/$name.start"
}
until_ok() { # SECONDS DAEMON CMD...: wait until CMD succeeds; give up early when DAEMON dies
    local end=$((SECONDS + $1)) name=$2; shift 2
    while :; do
        "$@" >/dev/null 2>&1 && return 0
        [ "$name" = - ] || ours "$name" || return 1
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
# PIDs of slurmstepd, or of job processes, that belong to this cluster (and NODE)
cluster_procs() { # KIND(step|job) [NODE]
    local kind=$1 node=${2:-} p env
    for p in /proc/[0-9]*; do
        [ -O "$p" ] || [ "$(id -u)" = 0 ] || continue
        env=$(tr '\0' '\n' 2>/dev/null <"$p/environ") 2>/dev/null || continue
        grep -qxF "SLURM_CONF=$D/etc/slurm.conf" <<<"$env" || continue
        p=${p#/proc/}
        case $kind in
            step)
                [ "$(cat "/proc/$p/comm" 2>/dev/null)" = slurmstepd ] || continue
                if [ -n "$node" ]; then # its slurmd's log is open
                    # shellcheck disable=SC2010
                    ls -l "/proc/$p/fd" 2>/dev/null | grep -F -- "-> $D/log/slurmd-$node.log" >/dev/null || continue
                fi ;;
            job) # a process of a job carries its node's name
                grep -q '^SLURM_JOB_ID=' <<<"$env" || continue
                if [ -n "$node" ]; then grep -qxF "SLURMD_NODENAME=$node" <<<"$env" || continue
                else grep -q '^SLURMD_NODENAME=' <<<"$env" || continue; fi ;;
        esac
        alive "$p" && [ "$p" != $$ ] && echo "$p"
    done
    return 0
}

# ---------------------------------------------------------------- settings
KEYS="SLB_NODES SLB_CPUS SLB_MEM_MB SLB_GPUS SLB_ACCOUNTING SLB_OVERMEM SLB_MIN_JOB_AGE SLB_NODE_TIMEOUT SLB_KILL_WAIT SLB_REQUEUE_DELAY SLB_PORT_BASE"
defaults() {
    : "${SLB_NODES:=2}" "${SLB_CPUS:=4}" "${SLB_MEM_MB:=4000}" "${SLB_GPUS:=2}" "${SLB_ACCOUNTING:=0}"
    : "${SLB_OVERMEM:=0}" "${SLB_MIN_JOB_AGE:=600}" "${SLB_NODE_TIMEOUT:=10}"
    : "${SLB_KILL_WAIT:=3}" "${SLB_REQUEUE_DELAY:=20}" "${SLB_PORT_BASE:=}"
}
load_settings() { # from DIR only: the environment counts at the first `up`
    [ -f "$D/settings" ] || return 1
    local k v
    for k in $KEYS; do unset "$k"; done
    while IFS='=' read -r k v; do printf -v "$k" '%s' "$v"; done <"$D/settings"
    defaults
    NODE_LIST=""; local i; for ((i = 1; i <= SLB_NODES; i++)); do NODE_LIST+="n$i "; done
    CTLD_PORT=$SLB_PORT_BASE; DBD_PORT=$((SLB_PORT_BASE + 1)); SQL_PORT=$((SLB_PORT_BASE + 2))
    export SLURM_CONF=$D/etc/slurm.conf
}
port_used() { # somebody listens there
    # (no `| grep -q`: with pipefail the early exit of grep -q makes the pipe fail now and then)
    awk -v p="$(printf ':%04X$' "$1")" '$4 == "0A" && $2 ~ p { f = 1 } END { exit !f }' /proc/net/tcp* 2>/dev/null
}
choose_settings() {
    defaults
    if [ -z "$SLB_PORT_BASE" ]; then
        local try i ok
        for ((try = 0; try < 100; try++)); do # below the usual ephemeral range (32768-)
            SLB_PORT_BASE=$((20000 + (RANDOM % 600) * 20)); ok=1
            for ((i = 0; i < 3 + SLB_NODES; i++)); do port_used $((SLB_PORT_BASE + i)) && ok=0; done
            [ $ok = 1 ] && break
        done
        [ $ok = 1 ] || die "no free ports found"
    fi
    local k
    for k in $KEYS; do printf '%s=%s\n' "$k" "${!k}"; done >"$D/settings.new"
    mv "$D/settings.new" "$D/settings"
}

# ---------------------------------------------------------------- configuration
write_conf() {
    local host i n bind="# bind to every address: the host's name is not a loopback name here"
    host=$(uname -n); host=${host%%.*}
    # the daemons bind to the address of the host's *name*, and srun resolves it too
    case $(getent ahostsv4 "$(uname -n)" 2>/dev/null | head -n 1) in
        127.*) bind="CommunicationParameters=NoCtldInAddrAny,NoInAddrAny" ;;
    esac
    (umask 077; [ -s "$D/etc/munge.key" ] || head -c 1024 /dev/urandom >"$D/etc/munge.key")
    {
        cat <<E
# written by loopback.sh
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$CTLD_PORT
SlurmUser=$ME
SlurmdUser=$ME
AuthType=auth/munge
AuthInfo=socket=$D/run/munge.sock,cred_expire=$SLB_REQUEUE_DELAY
CredType=cred/munge
$bind
StateSaveLocation=$D/state/ctld
SlurmdSpoolDir=$D/state/%n
SlurmctldPidFile=$D/run/slurmctld.own.pid
SlurmdPidFile=$D/run/slurmd-%n.own.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
# no affinity and (task/none) no cgroups: works in any container
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# claim more CPUs/memory than the machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
# be quick: a test cluster
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2,bf_yield_interval=100000
PriorityType=priority/basic
CompleteWait=0
KillWait=$SLB_KILL_WAIT
SlurmdTimeout=$SLB_NODE_TIMEOUT
SlurmctldTimeout=10
BatchStartTimeout=10
MessageTimeout=10
TCPTimeout=2
InactiveLimit=0
OverTimeLimit=0
MinJobAge=$SLB_MIN_JOB_AGE
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
E
        [ "$SLB_OVERMEM" = 1 ] && echo "JobAcctGatherParams=OverMemoryKill"
        if [ "$SLB_ACCOUNTING" = 1 ]; then
            cat <<E
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$DBD_PORT
# for slurmdbd connections the munge socket is taken from here, not from AuthInfo
AccountingStoragePass=$D/run/munge.sock
AccountingStoreFlags=job_comment
E
            [ "$SLB_GPUS" -gt 0 ] && echo "AccountingStorageTRES=gres/gpu"
        else
            echo "AccountingStorageType=accounting_storage/none"
        fi
        local gres=""
        [ "$SLB_GPUS" -gt 0 ] && { echo "GresTypes=gpu"; gres=" Gres=gpu:fake:$SLB_GPUS"; }
        for ((i = 1; i <= SLB_NODES; i++)); do
            echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((SLB_PORT_BASE + 2 + i)) CPUs=$SLB_CPUS RealMemory=$SLB_MEM_MB$gres State=UNKNOWN"
        done
        n=$( [ "$SLB_NODES" = 1 ] && echo n1 || echo "n[1-$SLB_NODES]" )
        cat <<E
PartitionName=main      Nodes=$n Default=YES MaxTime=UNLIMITED DefaultTime=5 PriorityTier=10 PreemptMode=OFF
PartitionName=short     Nodes=$n MaxTime=2 DefaultTime=1 PriorityTier=10 PreemptMode=OFF
PartitionName=gpu       Nodes=n1 MaxTime=UNLIMITED DefaultTime=5 PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge  Nodes=$n MaxTime=UNLIMITED DefaultTime=5 PriorityTier=1  PreemptMode=REQUEUE
PartitionName=scavkill  Nodes=$n MaxTime=UNLIMITED DefaultTime=5 PriorityTier=1  PreemptMode=CANCEL
E
    } >"$D/etc/slurm.conf"
    # slurmd looks for a cgroup hierarchy even when no plugin uses one; naming v1 skips the search
    echo "CgroupPlugin=cgroup/v1" >"$D/etc/cgroup.conf"
    {
        echo "AutoDetect=off"
        # gres/gpu wants File=, and the file must be a character device: links to /dev/null do
        if [ "$SLB_GPUS" -gt 0 ]; then
            mkdir -p "$D/etc/fakegpu"
            for ((i = 0; i < SLB_GPUS; i++)); do ln -sfn /dev/null "$D/etc/fakegpu/nvidia$i"; done
            for n in $NODE_LIST; do
                echo "NodeName=$n Name=gpu Type=fake File=$D/etc/fakegpu/nvidia$( ((SLB_GPUS > 1)) && echo "[0-$((SLB_GPUS - 1))]" || echo 0)"
            done
        fi
    } >"$D/etc/gres.conf"
    if [ "$SLB_ACCOUNTING" = 1 ]; then
        (umask 077; cat >"$D/etc/slurmdbd.conf" <<E
AuthType=auth/munge
AuthInfo=socket=$D/run/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$DBD_PORT
SlurmUser=$ME
LogFile=$D/log/slurmdbd.log
PidFile=$D/run/slurmdbd.own.pid
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$SQL_PORT
StorageUser=slurm
StoragePass=loopback
StorageLoc=slurm_acct_db
E
        cat >"$D/etc/init.sql" <<E
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'loopback';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
E
        )
    fi
}

write_wrappers() { # clients that find this cluster although SLURM_CONF is not set:
    # snakemake-executor-plugin-slurm-jobstep drops it (with most SLURM_*) before it calls srun
    local c real
    mkdir -p "$D/bin"
    for c in srun sbatch salloc sattach sbcast scancel scontrol squeue sinfo sacct sacctmgr sshare sprio sstat sdiag sreport strigger; do
        real=/usr/bin/$c; [ -x "$real" ] || continue
        printf '#!/bin/sh\nSLURM_CONF=%s\nexport SLURM_CONF\nexec %s "$@"\n' "$D/etc/slurm.conf" "$real" >"$D/bin/$c.new"
        chmod 755 "$D/bin/$c.new"; mv "$D/bin/$c.new" "$D/bin/$c"
    done
}
print_env() { # safe to evaluate more than once
    printf 'export SLURM_CONF=%q\n' "$D/etc/slurm.conf"
    # shellcheck disable=SC2016
    printf 'case ":$PATH:" in *:%q:*) ;; *) export PATH=%q:"$PATH" ;; esac\n' "$D/bin" "$D/bin"
}

# ---------------------------------------------------------------- start / stop
start_node() {
    mkdir -p "$D/state/$1"
    launch "slurmd-$1" slurmd -D -N "$1"
}
nodes_ready() { # every node answers and has a state in which jobs can run
    local st; st=$(sinfo -h -N -o '%N %T' | sort -u) || return 1
    [ "$(wc -l <<<"$st")" = "$SLB_NODES" ] || return 1
    local i; for ((i = 1; i <= SLB_NODES; i++)); do port_used $((SLB_PORT_BASE + 2 + i)) || return 1; done
    ! grep -qvE ' (idle|mixed|allocated|completing)$' <<<"$st"
}
munge_ok() { munge -S "$D/run/munge.sock" -n 2>/dev/null | unmunge -S "$D/run/munge.sock" >/dev/null 2>&1; }
sql_ok()   { (exec 3<>"/dev/tcp/127.0.0.1/$SQL_PORT") 2>/dev/null; }

up_failed() {
    note "start failed; last lines of the logs:"; tail -n 5 "$D"/log/*.out >&2 || true
    # a cluster that ran before this call is left as it is
    case " $STARTED " in *" slurmctld "*) down_all ;; *) [ -n "$(pid_of slurmctld)" ] || down_all ;; esac
}
up() {
    local t0=$SECONDS b n need="munged slurmctld slurmd scontrol sinfo sbatch"
    if [ ! -f "$D/settings" ] && [ -n "$(find "$D" -mindepth 1 -maxdepth 1 ! -name run)" ]; then
        die "$D is not empty and holds no cluster of this script"
    fi
    mkdir -p "$D/run"
    exec 9>"$D/run/lock"; flock -w 120 9 || die "another $0 works on $D"
    [ -f "$D/settings" ] || choose_settings
    load_settings
    mkdir -p "$D"/{etc,log,state/ctld}
    [ "$SLB_ACCOUNTING" = 1 ] && need+=" slurmdbd mariadbd mariadb-install-db sacctmgr"
    for b in $need; do command -v "$b" >/dev/null || die "$b not found: call: $0 install"; done
    STARTED=""
    trap 'rc=$?; trap - EXIT; [ $rc = 0 ] || up_failed; exit $rc' EXIT
    trap 'exit 130' INT; trap 'exit 143' TERM HUP

    ours slurmctld || { write_conf; write_wrappers; }

    # --force: a temporary directory may be mode 0700 or group-writable, which munged otherwise refuses
    launch munged munged --foreground --force --key-file="$D/etc/munge.key" --socket="$D/run/munge.sock" \
        --pid-file="$D/run/munged.own.pid" --log-file="$D/log/munged.log" --seed-file="$D/run/munged.seed" --num-threads=2
    until_ok 10 munged munge_ok || die "munged does not answer"

    if [ "$SLB_ACCOUNTING" = 1 ]; then
        if [ ! -d "$D/state/mysql/mysql" ]; then
            mkdir -p "$D/state/mysql"
            mariadb-install-db --no-defaults --user="$ME" --datadir="$D/state/mysql" --auth-root-authentication-method=normal \
                --skip-test-db --skip-name-resolve >"$D/log/mariadb-install.out" 2>&1 || die "mariadb-install-db failed, see $D/log/mariadb-install.out"
        fi
        launch mariadbd mariadbd --no-defaults --user="$ME" --datadir="$D/state/mysql" --socket="$D/run/mysql.sock" \
            --pid-file="$D/run/mariadbd.own.pid" --bind-address=127.0.0.1 --port="$SQL_PORT" --skip-name-resolve \
            --init-file="$D/etc/init.sql" --innodb-buffer-pool-size=128M --innodb-log-file-size=32M --innodb-lock-wait-timeout=900 \
            --innodb-flush-log-at-trx-commit=0 --skip-innodb-doublewrite --performance-schema=OFF
        until_ok 30 mariadbd sql_ok || die "mariadbd does not answer"
        launch slurmdbd slurmdbd -D
        until_ok 60 slurmdbd timeout 10 sacctmgr -n list cluster || die "slurmdbd does not answer"
        if [ -z "$(sacctmgr -nP list cluster loopback format=cluster)" ]; then
            sacctmgr -iQ add cluster loopback >>"$D/log/sacctmgr.out" 2>&1
            sacctmgr -iQ add account test Description=test Organization=test Cluster=loopback >>"$D/log/sacctmgr.out" 2>&1
            [ "$ME" = root ] || sacctmgr -iQ add user "$ME" Account=test Cluster=loopback AdminLevel=Admin >>"$D/log/sacctmgr.out" 2>&1
            [ "$ME" != root ] || sacctmgr -iQ add user root Account=test Cluster=loopback >>"$D/log/sacctmgr.out" 2>&1 || true
        fi
    fi

    launch slurmctld slurmctld -D
    for n in $NODE_LIST; do start_node "$n"; done
    until_ok 30 slurmctld scontrol ping || die "slurmctld does not answer"
    if ! until_ok 5 - nodes_ready; then # back from a crash or a `down`: nodes may be kept DOWN
        for n in $NODE_LIST; do scontrol update nodename="$n" state=resume >/dev/null 2>&1 || true; done
        until_ok 30 - nodes_ready || { sinfo -N -o '%N %T %E' >&2; die "nodes not ready"; }
    fi
    print_env >"$D/env.sh"
    trap - EXIT INT TERM HUP
    flock -u 9; exec 9>&-
    if [ -n "$STARTED" ]; then note "up in $((SECONDS - t0)) s (ports from $SLB_PORT_BASE): $SLURM_CONF"; else note "already up: $SLURM_CONF"; fi
}

down_all() {
    local n p i
    load_settings || return 0
    if ours slurmctld && timeout 5 scontrol ping 2>/dev/null | grep 'is UP' >/dev/null; then
        timeout 10 squeue -h -o %A 2>/dev/null | sort -u | xargs -r timeout 20 scancel 2>/dev/null || true
        for ((i = 0; i < 50; i++)); do [ -z "$(timeout 5 squeue -h -o %A 2>/dev/null)" ] && break; sleep 0.1; done
    fi
    for n in $NODE_LIST; do stop_one "slurmd-$n" 5; done
    # steps outlive their slurmd; job processes outlive a killed slurmstepd
    for p in $(cluster_procs step) $(cluster_procs job); do kill -KILL "$p" 2>/dev/null || true; done
    stop_one slurmctld 10
    stop_one slurmdbd 10
    stop_one mariadbd 20
    stop_one munged 5
    rm -f "$D"/run/*.sock "$D"/run/*.own.pid
}
kill_node() {
    local n=$1 p
    load_settings || die "no cluster in $D"
    case " $NODE_LIST " in *" $n "*) ;; *) die "no node $n (have: $NODE_LIST)";; esac
    p=$(pid_of "slurmd-$n"); if ours "slurmd-$n"; then kill -KILL "$p"; fi
    # twice: first the steps (so that they report nothing), then what they ran
    for p in $(cluster_procs step "$n"); do kill -KILL "$p" 2>/dev/null || true; done
    for p in $(cluster_procs job "$n"); do kill -KILL "$p" 2>/dev/null || true; done
    rm -f "$D/run/slurmd-$n.pid" "$D/run/slurmd-$n.start"
    note "node $n is dead; slurmctld notices after $SLB_NODE_TIMEOUT s or more"
}
status() {
    local n d ok=0
    load_settings || { echo "no cluster in $D"; return 3; }
    for d in $DAEMONS_FIXED $(for n in $NODE_LIST; do echo "slurmd-$n"; done); do
        case $d in mariadbd|slurmdbd) [ "$SLB_ACCOUNTING" = 1 ] || continue;; esac
        if ours "$d"; then printf '%-12s up   pid %s\n' "$d" "$(pid_of "$d")"; else printf '%-12s DOWN\n' "$d"; ok=1; fi
    done
    [ $ok = 0 ] && { timeout 10 sinfo -N -o '%N %P %T %C %m %G %E' || ok=1; }
    return $ok
}

case $cmd in
    up)     up ;;
    down)   mkdir -p "$D/run"; exec 9>"$D/run/lock"; flock -w 120 9 || die "another $0 works on $D"; down_all; note "down: $D" ;;
    run)
        [ $# -ge 1 ] || usage
        self=$0
        trap 'rc=$?; trap - EXIT; trap "" INT TERM HUP; bash "$self" down "$D"; exit $rc' EXIT
        trap 'exit 130' INT; trap 'exit 143' TERM HUP
        bash "$self" up "$D"
        load_settings
        PATH=$D/bin:$CALLER_PATH; export PATH
        # in the background, so that a signal is acted on at once; but with the caller's stdin, and
        # without the "ignore SIGINT" that a shell gives to background commands (snakemake would inherit it)
        env --default-signal=INT,QUIT "$@" <&0 & child=$!
        # shellcheck disable=SC2317
        pass_on() { # SIGNAL STATUS
            local i; trap "" INT TERM HUP
            kill -"$1" "$child" 2>/dev/null || true
            for ((i = 0; i < 100; i++)); do alive "$child" || break; sleep 0.1; done
            kill -KILL "$child" 2>/dev/null || true
            exit "$2"
        }
        trap 'pass_on INT 130' INT; trap 'pass_on TERM 143' TERM HUP
        rc=0; wait "$child" || rc=$?
        exit $rc ;;
    status) status ;;
    env)    load_settings || die "no cluster in $D"; print_env ;;
    kill-node)  kill_node "${1:?node}" ;;
    start-node) load_settings || die "no cluster in $D"; start_node "${1:?node}"; until_ok 15 - nodes_ready || true
                note "slurmd-$1: pid $(pid_of "slurmd-$1")" ;;
    stop)   load_settings || die "no cluster in $D"; ours "${1:?daemon}" || die "$1 does not run"; stop_one "$1"; note "$1 stopped" ;;
    wipe)   mkdir -p "$D/run"; down_all; rm -rf "${D:?}"/{bin,etc,run,log,state,settings,env.sh}; rmdir "$D" 2>/dev/null || true ;;
esac
