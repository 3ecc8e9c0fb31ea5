#!/bin/sh
# Follows a filter with curl, and keeps the cursor in a file, so that it goes on where it was:
#
#   sh follow.sh http://127.0.0.1:8640 'flights/%23' cursor.txt [ROUNDS]
#
# The filter is written as a URL has it. Messages are printed as lines of JSON. With a number of rounds it ends
# after so many questions, otherwise never.
set -eu
url=$1 filter=$2 kept=$3 rounds=${4:--1}
[ -s "$kept" ] || echo earliest > "$kept"
while [ "$rounds" != 0 ]; do
    rounds=$((rounds - 1))
    : > "$kept.head"
    if curl -sS -D "$kept.head" -H 'Accept: application/x-ndjson' -o "$kept.page" \
        "$url/v1/messages?filter=$filter&since=$(cat "$kept")&wait=20" && grep -q '^HTTP/[0-9.]* 200' "$kept.head"; then
        cat "$kept.page"                                    # here they are processed, and then the cursor is kept
        sed -n 's/^streamlease-next: *//Ip' "$kept.head" | tr -d '\r' > "$kept.new"
        mv "$kept.new" "$kept"
    elif grep -q '^HTTP/[0-9.]* 4\(08\|29\)' "$kept.head" || ! grep -q '^HTTP/[0-9.]* \(4\|500\)' "$kept.head"; then
        after=$(sed -n 's/^retry-after: *//Ip' "$kept.head" | tr -d '\r')
        sleep "${after:-1}"                                 # too much for now, or nothing answers: ask again
    else
        cat "$kept.page" >&2                                # a problem, such as 410: begin with its 'oldest'
        exit 1
    fi
    rm -f "$kept.head"
done
