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
  if [ ! -w . ] || { [ -e node_modules ] && [ ! -w node_modules ]; }; then
    echo "The packages are not installed, and $PWD cannot be written; run \`npm ci\` there as its owner" >&2
    exit 1
  fi
  echo 'Installing packages …'
  npm ci --no-audit --no-fund --loglevel=error
fi

# A package brings Node to Linux; elsewhere the caller's has to be new enough.
if ! PATH="$PWD/node_modules/.bin:$PATH" node -e 'process.exit(Number(process.versions.node.split(".")[0] < 24))'; then
  echo 'Node 24 or newer is needed; npm installs it on Linux, elsewhere it is at https://nodejs.org' >&2
  exit 1
fi

# Bundles the console when it is missing or one of its files is newer; a folder is newer when a file of it is gone.
built=dist/console/manifest.json
is_built() {
  [ -e "$built" ] && [ -z "$(find server/console scripts/console.ts package-lock.json -newer "$built")" ]
}

# Without the packages for development there is nothing to bundle with, and what is there is served.
if [ -w . ] && [ -x node_modules/.bin/esbuild ] && ! is_built; then
  npm run -s build
fi

[ ! -w . ] || sh scripts/reference/site.sh
