/** Code made for Node looks for these in its `process`; nothing of them is of a process. */

function later(what, ...given) {
  queueMicrotask(() => what(...given))
}

exports.process = {
  argv: [],
  browser: true,
  env: {},
  platform: 'linux',
  // Code asks whether Node is old; by `versions` it would find files to be there.
  version: 'v24.0.0',
  versions: {},
  cwd: () => '/',
  emitWarning() {},
  nextTick: later,
}
