// Takes away what no bot needs and a hostile one could use. Runs before any other code of the isolate.

function blocked() {
  throw new EvalError('Code generation from strings disallowed for this context')
}

Object.defineProperty(blocked, 'name', { value: 'Function' })
Object.defineProperty(blocked, 'prototype', { value: Function.prototype, writable: false })

exports.lockdown = function lockdown(global) {
  // WebAssembly memory and shared buffers are outside the memory limit, Atomics.wait blocks a thread, and
  // finalizers run as tasks of their own that no timeout covers.
  const absent = [
    'WebAssembly',
    'SharedArrayBuffer',
    'Atomics',
    'FinalizationRegistry',
    'ShadowRealm',
    'console',
  ]
  for (const name of absent) delete global[name]

  // Templates are compiled by `Function`, whose code sees the globals alone, as the bot's own does. Nothing needs the
  // other ways from strings to code.
  const prototypes = [
    Object.getPrototypeOf(async () => {}),
    Object.getPrototypeOf(function* () {}),
    Object.getPrototypeOf(async function* () {}),
  ]
  for (const prototype of prototypes) fix(prototype, 'constructor', blocked)
  fix(global, 'eval', () => {
    throw new EvalError('Code generation from strings disallowed for this context')
  })
}

function fix(target, name, value) {
  Object.defineProperty(target, name, {
    value,
    writable: false,
    configurable: false,
    enumerable: false,
  })
}
