/** Properties of `process` that code for Node reads. */

function later(what, ...given) {
  queueMicrotask(() => what(...given))
}

exports.process = {
  argv: [],
  browser: true,
  env: {},
  platform: 'linux',
  // Code checks for old Node versions; `versions` would make it expect files.
  version: 'v24.0.0',
  versions: {},
  cwd: () => '/',
  emitWarning() {},
  nextTick: later,
}
