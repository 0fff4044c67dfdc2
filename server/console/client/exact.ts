/**
 * JSON that keeps the digits of its numbers. A FHIR decimal carries its precision (`1.50` is not `1.5`,
 * https://hl7.org/fhir/R4/datatypes.html#decimal), a JavaScript number does not.
 */

// TypeScript's library does not know it yet.
const { rawJSON } = JSON as unknown as { rawJSON?: (text: string) => unknown }

/** False in browsers that would round decimals. */
export const keepsDigits = rawJSON !== undefined

/** A number that JavaScript would write with other digits. */
export class Digits {
  readonly #text: string

  constructor(text: string) {
    this.#text = text
  }

  toString(): string {
    return this.#text
  }

  toJSON(): unknown {
    return rawJSON?.(this.#text)
  }
}

interface Context {
  readonly source?: string
}

/** As `JSON.parse`, with `Digits` for numbers that would not come back as they are written. */
export function parseExact<T>(text: string): T {
  const keep = (_name: string, value: unknown, { source }: Context = {}) =>
    typeof value === 'number' && source !== undefined ? numberFrom(source) : value
  return JSON.parse(text, keep)
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/

/** The number of a text; the text itself while it is none, such as `1.` on the way to `1.5`. */
export function numberFrom(text: string): number | Digits | string {
  if (!JSON_NUMBER.test(text)) return text
  return String(Number(text)) === text ? Number(text) : new Digits(text)
}
