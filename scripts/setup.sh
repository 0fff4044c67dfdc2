#!/bin/sh
# Installs the npm packages when they are missing or belong to another package-lock.json, and downloads a Redis when
# the machine has none. Nothing goes into the system, and nothing waits for an answer. SETUP_DOWNLOADS=no prevents both.
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
  if [ "${SETUP_DOWNLOADS:-}" = no ]; then
    echo 'The packages are not installed, and SETUP_DOWNLOADS=no prevents it; run `npm ci`' >&2
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

# No npm package has a Redis, so on Debian and its relatives the files of the system's package are unpacked into a folder of
# ours: apt verifies them, with separate lists and cache, and without root. Elsewhere scripts/redis.ts explains what to install.
redis="$PWD/.data/programs/redis"
# The same folder as in scripts/account.ts: root runs Redis as an account that cannot enter /root.
[ "$(id -u)" != 0 ] || redis=/var/lib/botica/redis

has_redis() {
  for program in redis-server valkey-server redis-check-rdb "$redis/redis-server"; do
    ! command -v "$program" >/dev/null || return 0
  done
  return 1
}

unpack_redis() (
  scratch="$redis.$$"
  trap 'rm -rf "$scratch"' EXIT
  apt() {
    apt-get -qq -o Dir::State::lists="$scratch/lists" -o Dir::Cache="$scratch/cache" -o Debug::NoLocking=true \
      -o APT::Sandbox::User=root -o Acquire::Languages=none "$@" >/dev/null 2>&1
  }
  mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/root" &&
    apt update && apt install --download-only --reinstall -y --no-install-recommends redis-tools || exit 1
  for package in "$scratch"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$scratch/root" || exit 1
  done
  # The package has the server as redis-check-rdb, which acts by the name it is called with.
  ln -s redis-check-rdb "$scratch/root/usr/bin/redis-server"
  printf '%s\n' '#!/bin/sh' 'export LD_LIBRARY_PATH=$(echo "${0%/*}"/usr/lib/*-linux-gnu*)' \
    'exec "${0%/*}/usr/bin/redis-server" "$@"' >"$scratch/root/redis-server"
  chmod 755 "$scratch/root" "$scratch/root/redis-server"
  rm -rf "$redis"
  mv "$scratch/root" "$redis"
)

if [ -w . ] && [ -z "${REDIS_URL:-}" ] && [ "${SETUP_DOWNLOADS:-}" != no ] && command -v apt-get >/dev/null && ! has_redis; then
  echo "Downloading Redis to $redis …"
  [ -d .data ] || mkdir -m 711 .data
  unpack_redis || echo 'Redis could not be downloaded' >&2
fi

# Bundles the console and the libraries of bots when they are missing or one of their files is newer; a folder is newer when a file of it is gone.
built=dist/console/manifest.json
is_built() {
  [ -e "$built" ] && [ -e dist/libraries/exports.json ] &&
    [ -z "$(find server/console shared/bots/libraries examples scripts/console scripts/console.ts scripts/libraries.ts \
      package-lock.json -newer "$built")" ]
}

# Without the packages for development there is nothing to bundle with, and what is there is served.
if [ -w . ] && [ -x node_modules/.bin/esbuild ] && ! is_built; then
  npm run -s build
fi

[ ! -w . ] || sh scripts/reference/site.sh
