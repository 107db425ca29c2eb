#!/usr/bin/env bash
# The tests of the Redis journal start real servers of their own. Installs Debian's, and starts no service.
set -euo pipefail
command -v redis-server >/dev/null && exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "redis-server is missing: apt-get install -y --no-install-recommends redis-server" >&2
  exit 1
fi

# Debian starts a service when its package is installed, unless this says no: invoke-rc.d(8).
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server >/dev/null; }
install || { apt-get update -qq && install; }
# Nor at the next boot of a machine that had none before.
if command -v systemctl >/dev/null; then systemctl disable redis-server >/dev/null 2>&1 || true; fi
