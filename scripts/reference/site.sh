#!/bin/sh
# Makes the site of /docs when it is missing or one of its pages is newer. Where that cannot be done, web serves what is
# there, or says at /docs that nothing is: everything else runs without it.
set -eu
cd "$(dirname "$0")/../.."

made=dist/docs/index.html
is_made() {
  # Vitepress keeps files of its own beside its settings.
  [ -e "$made" ] && [ -z "$(find docs package-lock.json -path docs/.vitepress -prune -o -newer "$made" -print)" ] &&
    [ ! docs/.vitepress/config.ts -nt "$made" ]
}

# Platforms leave optional packages out, and the bundler of the site has its binary in one of them.
add_bundler() {
  [ "$(uname)" = Linux ] || return 0
  ! ls -d node_modules/@rollup/rollup-* >/dev/null 2>&1 || return 0
  native="@rollup/rollup-linux-$(node -p process.arch)-gnu"
  version=$(node -p 'require("./node_modules/rollup/package.json").version') &&
    npm pack --silent --pack-destination "$scratch" "$native@$version" >/dev/null &&
    mkdir -p "node_modules/$native" &&
    tar xzf "$scratch"/*.tgz -C "node_modules/$native" --strip-components=1
}

[ -d docs ] && [ -x node_modules/.bin/vitepress ] && ! is_made || exit 0

echo 'Making the documentation …'
mkdir -p dist
# Whatever reads the folder finds the old site or the new one, never half of it.
scratch="$PWD/dist/docs.$$"
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch"
if add_bundler && npm run -s docs -- --outDir "$scratch/site" >/dev/null 2>&1; then
  [ ! -e dist/docs ] || mv dist/docs "$scratch/old"
  mv "$scratch/site" dist/docs
else
  echo 'The documentation could not be made; `npm run docs` shows why' >&2
fi
