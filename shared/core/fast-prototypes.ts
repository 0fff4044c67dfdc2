/**
 * Subclasses of String or Number (in ioredis, Decimal) put their prototypes into V8's slow dictionary mode. Warm
 * property loads on an inheriting object reverse that for good (V8 13.6, `JSObject::MakePrototypesFast`).
 */
export function makePrototypesFast(): void {
  for (const prototype of [String.prototype, Number.prototype]) loadMember(Object.create(prototype))
}

/** Calls before V8 collects type feedback. */
const CALLS = 100

function loadMember(object: { readonly none?: unknown }): void {
  // A new function each time, since V8 caches feedback per function.
  const load = () => typeof object.none
  for (let i = 0; i < CALLS; i++) load()
}
