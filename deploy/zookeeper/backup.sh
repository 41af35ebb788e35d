#!/bin/sh
# Copy the data of a running ZooKeeper server into an archive:
#
#   backup.sh [--server HOST:PORT | --server none] [--timeout-s N] [--keep-days N] DATA_DIR LOG_DIR ARCHIVE.tar.gz
#
# --server: the client port of the server that the directories belong to (127.0.0.1:2181). It must
#   say that it serves, within --timeout-s seconds (10): data of one that has lost its leader, hangs
#   or is down may be old. The age of files would not tell: a quiet ensemble writes nothing.
#   `none`: do not ask, for the data of an ensemble that is stopped.
# --keep-days: afterwards delete archives zookeeper-*.tar.gz beside the new one that are older.
#   Without it, or after a failure, none is deleted; the new one never is.
#
# Any one server that is in touch with its leader has everything. No server need be stopped:
# a snapshot is fuzzy by design and is made exact by the transactions that were logged while it
# was taken. So the snapshots are copied first and the logs after them, never the other way round;
# a snapshot that is being written is not whole, and is passed over at a start. The files with
# the epochs stay behind: a server finds its epoch in its last transaction.
set -eu

usage() {
    echo "usage: backup.sh [--server HOST:PORT|none] [--timeout-s N] [--keep-days N] DATA_DIR LOG_DIR ARCHIVE.tar.gz" >&2
    exit 2
}

number() { # a whole number above zero
    case $1 in '' | 0* | *[!0-9]*) usage ;; esac
}

server=127.0.0.1:2181 timeout_s=10 keep_days=
while [ $# -gt 0 ]; do
    case $1 in
    --server | --timeout-s | --keep-days) [ $# -ge 2 ] || usage ;;
    --*) usage ;;
    *) break ;;
    esac
    case $1 in
    --server) server=$2 ;;
    --timeout-s) number "$2" && timeout_s=$2 ;;
    --keep-days) number "$2" && keep_days=$2 ;;
    esac
    shift 2
done
[ $# -eq 3 ] || usage
case $server in none | ?*:?*) ;; *) usage ;; esac
data=$1 log=$2 archive=$3
folder_of_archives=$(dirname "$archive")

# A run that was killed leaves its copy behind. No run takes half an hour (the chart ends
# it then), so an older copy belongs to none that still runs.
find "$folder_of_archives" -maxdepth 1 -type d -name '.backup.??????' -mmin +30 -exec rm -rf {} + ||
    echo "cannot remove .backup.* of runs before in $folder_of_archives" >&2

for folder in "$data/version-2" "$log/version-2"; do
    if [ ! -d "$folder" ]; then
        echo "$folder is not there: give dataDir and dataLogDir of zoo.cfg" >&2
        exit 1
    fi
done

if [ "$server" != none ]; then
    # shellcheck disable=SC2016 # the inner shell knows its arguments
    answer=$(timeout -k 5 "$timeout_s" bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf srvr >&3 && cat <&3' \
        ask "${server%:*}" "${server##*:}" 2>&1) || answer="no answer within $timeout_s s, or no connection. $answer"
    case $answer in
    # Without a majority there is no mode, or it is "read-only".
    *"Mode: leader"* | *"Mode: follower"* | *"Mode: observer"* | *"Mode: standalone"*) ;;
    *)
        answer=$(printf '%s' "$answer" | tr '\n' ' ')
        echo "no backup was made: ZooKeeper at $server does not serve, so its data may be old. srvr: $answer" >&2
        exit 1
        ;;
    esac
fi

staging=$(mktemp -d "$folder_of_archives/.backup.XXXXXX")
trap 'rm -rf "$staging"' EXIT
trap 'exit 143' HUP INT TERM
mkdir -p "$staging/data/version-2" "$staging/log/version-2"

copy() { # the files of a folder by a pattern; one that is purged meanwhile is not missed
    for file in "$1"/$2; do
        [ -f "$file" ] || continue
        cp -p "$file" "$3/" 2>/dev/null || [ ! -f "$file" ] || {
            echo "cannot copy $file" >&2
            exit 1
        }
    done
}

copy "$data/version-2" 'snapshot.*' "$staging/data/version-2"
copy "$log/version-2" 'log.*' "$staging/log/version-2"

if [ -z "$(ls "$staging/log/version-2")" ] && [ -z "$(ls "$staging/data/version-2")" ]; then
    echo "nothing to copy in $data and $log" >&2
    exit 1
fi
# Whole or not there: a backup that was cut short must not look like one, also after a power failure.
tar -C "$staging" -czf "$staging/archive" data log
sync "$staging/archive"
mv "$staging/archive" "$archive"
sync "$folder_of_archives"
echo "wrote $archive"

if [ -n "$keep_days" ]; then
    find "$folder_of_archives" -maxdepth 1 -type f -name 'zookeeper-*.tar.gz' -mtime "+$keep_days" \
        ! -name "$(basename "$archive")" -delete
fi
