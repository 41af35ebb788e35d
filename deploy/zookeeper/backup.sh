#!/bin/sh
# Copy the data of a running ZooKeeper server into an archive: backup.sh DATA_DIR LOG_DIR ARCHIVE
#
# Any one server that is in touch with its leader has everything. No server need be stopped:
# a snapshot is fuzzy by design and is made exact by the transactions that were logged while it
# was taken. So the snapshots are copied first and the logs after them, never the other way round;
# a snapshot that is being written is not whole, and is passed over at a start. The files with
# the epochs stay behind: a server finds its epoch in its last transaction.
set -eu

if [ $# -ne 3 ]; then
    echo "usage: backup.sh DATA_DIR LOG_DIR ARCHIVE.tar.gz" >&2
    exit 2
fi
data=$1 log=$2 archive=$3

for folder in "$data/version-2" "$log/version-2"; do
    if [ ! -d "$folder" ]; then
        echo "$folder is not there: give dataDir and dataLogDir of zoo.cfg" >&2
        exit 1
    fi
done

staging=$(mktemp -d "$(dirname "$archive")/.backup.XXXXXX")
trap 'rm -rf "$staging"' EXIT
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
# Whole or not there: a backup that was cut short must not look like one.
tar -C "$staging" -czf "$staging/archive" data log
mv "$staging/archive" "$archive"
echo "wrote $archive"
