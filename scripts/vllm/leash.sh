#!/bin/sh
# leash.sh COMMAND…: becomes the command, and kills all of its process group once the other end of standard input is closed, so that
# nothing outlives the one who started it, however that one ends. To be started in a process group of its own.
exec 3<&0 < /dev/null
(
  trap '' INT TERM
  cat <&3 > /dev/null
  kill -KILL 0
) &
exec "$@" 3<&-
