// Removes dangerous features that bots do not need. Runs before any other code of the isolate.

function blocked() {
  throw new EvalError('Code generation from strings disallowed for this context')
}

Object.defineProperty(blocked, 'name', { value: 'Function' })
Object.defineProperty(blocked, 'prototype', { value: Function.prototype, writable: false })

exports.lockdown = function lockdown(global) {
  // WebAssembly memory and shared buffers escape the memory limit, Atomics.wait blocks a thread, and finalizers run as
  // separate tasks without a timeout.
  const absent = [
    'WebAssembly',
    'SharedArrayBuffer',
    'Atomics',
    'FinalizationRegistry',
    'ShadowRealm',
    'console',
  ]
  for (const name of absent) delete global[name]

  // Templates are compiled by `Function`, whose code sees only globals. Other ways from strings to code are not needed.
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
