/**
 * JSON that keeps the digits of numbers: a FHIR decimal carries its precision (`1.50` is not `1.5`,
 * https://hl7.org/fhir/R4/datatypes.html#decimal), a JavaScript number does not.
 */

const { rawJSON } = JSON as unknown as { rawJSON?: (text: string) => unknown }

/** False in browsers that would round decimals. */
export const keepsDigits = rawJSON !== undefined

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

/** Like `JSON.parse`, with `Digits` for numbers that would not round-trip. */
export function parseExact<T>(text: string): T {
  const keep = (_name: string, value: unknown, { source }: Context = {}) =>
    typeof value === 'number' && source !== undefined ? numberFrom(source) : value
  return JSON.parse(text, keep)
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/

/** Returns the number, or the text itself while incomplete, such as `1.`. */
export function numberFrom(text: string): number | Digits | string {
  if (!JSON_NUMBER.test(text)) return text
  return String(Number(text)) === text ? Number(text) : new Digits(text)
}
