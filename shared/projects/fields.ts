/** Reads the fields of a flat admin body and collects one issue per invalid field. */
import { LIFETIME } from '../access/credentials/clients.ts'
import { type Issue, invalid, issue } from '../core/errors.ts'
import { isObject, type Reference } from '../fhir/resource.ts'

/** Lenient, but excludes header injection and address lists. */
export const EMAIL_ADDRESS = /^[^\s@,;:<>()[\]\\"]{1,64}@[^\s@,;:<>()[\]\\"]{1,253}$/

/**
 * Empty strings count as absent, as the SDK sends unset strings so. Unread fields are reported at the end, since a
 * misspelled one would otherwise be lost.
 */
export class Fields {
  readonly #body: Record<string, unknown>
  readonly #prefix: string
  readonly #issues: Issue[] = []
  readonly #known = new Set<string>()

  /** `name`: the element that holds the fields; absent for the whole body. */
  constructor(body: Record<string, unknown>, name?: string) {
    this.#body = body
    this.#prefix = name === undefined ? '' : `${name}.`
  }

  get issues(): readonly Issue[] {
    return this.#issues
  }

  get unknown(): readonly Issue[] {
    const others = Object.keys(this.#body).filter(
      (name) => !this.#known.has(name) && this.#value(name) !== undefined,
    )
    return others.map((name) => {
      const path = `${this.#prefix}${name.slice(0, 64)}`
      return issue('error', 'structure', `Unknown field ${path}`, { expression: path })
    })
  }

  /** Errors: 400 with every issue. */
  check(): void {
    const complaints = [...this.#issues, ...this.unknown]
    if (complaints.length > 0) throw invalid(complaints)
  }

  hasProblem(name: string): boolean {
    return this.#issues.some(({ expression }) => expression?.includes(`${this.#prefix}${name}`))
  }

  requiredText(name: string, complaint: string): string {
    const value = this.#read(name)
    if (typeof value === 'string' && value.trim() !== '') return value
    this.#complain(name, complaint)
    return ''
  }

  text(name: string): string | undefined {
    return this.#typed(name, 'a string', (value) => typeof value === 'string') as string | undefined
  }

  /** Also accepts text, as published examples send it. */
  flag(name: string): boolean | undefined {
    const isFlag = (value: unknown) =>
      typeof value === 'boolean' || value === 'true' || value === 'false'
    const value = this.#typed(name, 'true or false', isFlag)
    return value === undefined ? undefined : String(value) === 'true'
  }

  whole(name: string): number | undefined {
    const isWhole = (value: unknown) => Number.isSafeInteger(value) && Number(value) >= 0
    return this.#typed(name, 'a whole number', isWhole) as number | undefined
  }

  oneOf<T extends string>(name: string, allowed: readonly T[]): T | undefined {
    const value = this.#typed(name, `one of ${allowed.join(', ')}`, (item) =>
      allowed.some((one) => one === item),
    )
    return value as T | undefined
  }

  requiredOneOf<T extends string>(
    name: string,
    allowed: readonly T[],
    complaint: string,
  ): T | undefined {
    if (this.#read(name) !== undefined) return this.oneOf(name, allowed)
    this.#complain(name, complaint)
    return undefined
  }

  /** In lower case. */
  email(name: string): string | undefined {
    const isEmail = (value: unknown) =>
      typeof value === 'string' && EMAIL_ADDRESS.test(value.trim())
    const value = this.#typed(name, 'an e-mail address', isEmail)
    return typeof value === 'string' ? value.trim().toLowerCase() : undefined
  }

  requiredEmail(name: string, complaint: string): string {
    if (this.#read(name) === undefined) this.#complain(name, complaint)
    return this.email(name) ?? ''
  }

  objects(name: string): readonly Record<string, unknown>[] | undefined {
    const isObjects = (value: unknown) => Array.isArray(value) && value.every(isObject)
    return this.#typed(name, 'an array of objects', isObjects) as
      | readonly Record<string, unknown>[]
      | undefined
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

  lifetime(name: string): string | undefined {
    const isLifetime = (value: unknown) => typeof value === 'string' && LIFETIME.test(value)
    return this.#typed(name, 'a lifetime such as "1h"', isLifetime) as string | undefined
  }

  /** Accepts redundant fields. */
  ignore(...names: readonly string[]): void {
    for (const name of names) this.#known.add(name)
  }

  #read(name: string): unknown {
    this.#known.add(name)
    return this.#value(name)
  }

  #value(name: string): unknown {
    const value = this.#body[name]
    return value === '' || value === null ? undefined : value
  }

  #typed(name: string, what: string, test: (value: unknown) => boolean): unknown {
    const value = this.#read(name)
    if (value === undefined || test(value)) return value
    this.#complain(name, `${name} must be ${what}`)
    return undefined
  }

  #complain(name: string, text: string): void {
    this.#issues.push(issue('error', 'invalid', text, { expression: `${this.#prefix}${name}` }))
  }
}

/** Drops undefined members, which a resource must not have. */
export function defined(values: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))
}
