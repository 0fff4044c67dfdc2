#!/bin/sh
# Installs the packages when they are missing or belong to another package-lock.json.
# Plain sh, because the Node that runs the other scripts is one of these packages.
set -eu
cd "$(dirname "$0")/.."

is_current() {
  [ -x node_modules/.bin/tap ] || return 1
  # Written by package.json's postinstall, the last step of an install; absent where scripts are off.
  if [ -e node_modules/.package-lock.installed ]; then
    cmp -s package-lock.json node_modules/.package-lock.installed
  else
    [ ! package-lock.json -nt node_modules/.package-lock.json ]
  fi
}

# A linked node_modules is kept by whoever owns it.
if [ ! -L node_modules ] && ! is_current; then
  echo 'Installing packages …'
  npm ci --no-audit --no-fund --loglevel=error
fi
