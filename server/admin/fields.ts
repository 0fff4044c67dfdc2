/** Reads the fields of a flat admin body and collects one issue a bad field. */
import { LIFETIME } from '../../shared/access/clients.ts'
import { invalid } from '../../shared/errors.ts'
import { type Issue, issue } from '../../shared/fhir/outcome.ts'
import { isObject, type Reference } from '../../shared/fhir/resource.ts'

/** An empty string is an absent field: the SDK sends its unset strings so. */
export class Fields {
  readonly #body: Record<string, unknown>
  readonly #issues: Issue[] = []

  constructor(body: Record<string, unknown>) {
    this.#body = body
  }

  /** Errors: 400 with every complaint. */
  check(): void {
    if (this.#issues.length > 0) throw invalid(this.#issues)
  }

  requiredText(name: string, complaint: string): string {
    const value = this.#value(name)
    if (typeof value === 'string' && value.trim() !== '') return value
    this.#complain(name, complaint)
    return ''
  }

  text(name: string): string | undefined {
    return this.#typed(name, 'a string', (value) => typeof value === 'string') as string | undefined
  }

  texts(name: string): readonly string[] | undefined {
    const isTexts = (value: unknown) =>
      Array.isArray(value) && value.every((item) => typeof item === 'string')
    return this.#typed(name, 'an array of strings', isTexts) as readonly string[] | undefined
  }

  object(name: string): Record<string, unknown> | undefined {
    return this.#typed(name, 'an object', isObject) as Record<string, unknown> | undefined
  }

  reference(name: string): Reference | undefined {
    const isReference = (value: unknown) => isObject(value) && typeof value.reference === 'string'
    return this.#typed(name, 'a Reference', isReference) as Reference | undefined
  }

  /** A number and a unit of `smhdwy`. */
  lifetime(name: string): string | undefined {
    const isLifetime = (value: unknown) => typeof value === 'string' && LIFETIME.test(value)
    return this.#typed(name, 'a lifetime such as "1h"', isLifetime) as string | undefined
  }

  #value(name: string): unknown {
    const value = this.#body[name]
    return value === '' || value === null ? undefined : value
  }

  #typed(name: string, what: string, test: (value: unknown) => boolean): unknown {
    const value = this.#value(name)
    if (value === undefined || test(value)) return value
    this.#complain(name, `${name} must be ${what}`)
    return undefined
  }

  #complain(name: string, text: string): void {
    this.#issues.push(issue('error', 'invalid', text, name))
  }
}

/** The members that are there; `undefined` is no value in a resource. */
export function defined(values: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))
}
