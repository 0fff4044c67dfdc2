/**
 * A class that extends String makes V8 turn the properties of String.prototype into a dictionary, and so it is with
 * Number. V8 makes them fast again when warm code looks at an object that inherits from them; strings and numbers are
 * no objects, so that never happens by itself. Until then compiled code looks `charCodeAt` up for each
 * `text.charCodeAt(i)`, and every other method of a string, where it should have no call at all: a quarter of web's time
 * for a list of GraphQL, a tenth for a nested query. ioredis has such a class (`VerbatimString`), and `Decimal` extends
 * Number. Prototypes that were made fast stay so, whatever classes come later. Read in V8 13.6
 * (`JSObject::MakePrototypesFast`); if a later one does otherwise, the calls are slower again and nothing else changes.
 */
export function makePrototypesFast(): void {
  for (const prototype of [String.prototype, Number.prototype]) lookAt(Object.create(prototype))
}

/** V8 begins to learn from a function after some calls. */
const CALLS = 100

function lookAt(heir: { readonly none?: unknown }): void {
  // A function of its own for each, as V8 learns nothing more from one that it knows.
  const look = () => typeof heir.none
  for (let i = 0; i < CALLS; i++) look()
}
