/** Parses and validates settings from the environment. */
import { type HostRule, readHostRule } from './outbound.ts'

export class ConfigError extends Error {}

export interface Setting {
  readonly form: string
  readonly byDefault: string
}

/** Collects errors so that one start reports all. Never repeats a secret value. */
export class Reader {
  readonly #env: NodeJS.ProcessEnv
  readonly #complaints: string[] = []
  readonly #doubts: string[] = []
  readonly settings = new Map<string, Setting>()

  constructor(env: NodeJS.ProcessEnv) {
    this.#env = env
  }

  done(): void {
    if (this.#complaints.length > 0) throw new ConfigError(this.#complaints.join('\n'))
  }

  text(name: string, otherwise = '', form = 'text'): string | undefined {
    this.settings.set(name, { form, byDefault: otherwise })
    const value = this.#env[name]?.trim()
    return (value === '' ? undefined : value) ?? (otherwise === '' ? undefined : otherwise)
  }

  required(name: string): string {
    const value = this.text(name, '', 'address, required')
    if (value === undefined) this.#complain(name, 'is not set; `npm start` provides a local one')
    return value ?? ''
  }

  secret(name: string, minLength: number): string | undefined {
    const value = this.text(name, '', `text of at least ${minLength} characters`)
    if (value !== undefined && value.length < minLength) {
      this.#complain(name, `must have at least ${minLength} characters`)
    }
    return value
  }

  uuid(name: string): string | undefined {
    const value = this.text(name, '', 'UUID')
    if (value !== undefined && !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(value)) {
      this.#complain(name, `is "${value}"; it must be a UUID`)
    }
    return value?.toLowerCase()
  }

  whole(name: string, otherwise: number, min: number, max = Number.MAX_SAFE_INTEGER): number {
    const range =
      max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `between ${min} and ${max}`
    const value = this.text(name, String(otherwise), `whole number ${range}`) ?? ''
    const number = /^\d+$/.test(value) ? Number(value) : Number.NaN
    if (number >= min && number <= max) return number
    this.#complain(name, `is "${value}"; it must be a whole number ${range}`)
    return otherwise
  }

  /** `needs` is the setting without which `true` has no effect. */
  flag(name: string, otherwise: boolean, needs?: string): boolean {
    const value = this.oneOf(name, String(otherwise), ['true', 'false']) === 'true'
    if (value && needs !== undefined && !this.#env[needs]?.trim()) {
      this.#complain(name, `needs ${needs}`)
    }
    return value
  }

  /** Name of a request header, in lower case; needs the flag `needs`. */
  header(name: string, needs: string): string | undefined {
    const value = this.text(name, '', 'name of a header')?.toLowerCase()
    if (value === undefined) return undefined
    if (!/^[a-z0-9-]+$/.test(value)) {
      this.#complain(name, `is "${value}"; it must be the name of a header`)
    }
    if (this.#env[needs]?.trim() !== 'true') this.#complain(name, `needs ${needs}=true`)
    return value
  }

  oneOf<T extends string>(name: string, otherwise: T, allowed: readonly T[]): T {
    const value = this.text(name, otherwise, allowed.join(', '))
    const found = allowed.find((item) => item === value)
    if (found === undefined)
      this.#complain(name, `is "${value}"; it must be one of ${allowed.join(', ')}`)
    return found ?? otherwise
  }

  list(name: string, otherwise: readonly string[], allowed?: readonly string[]): readonly string[] {
    const form = `comma list${allowed ? ` of ${allowed.join(', ')}` : ''}`
    const value = this.text(name, otherwise.join(','), form)
    if (value === undefined) return otherwise
    const items = value
      .split(',')
      .map((item) => item.trim())
      .filter((item) => item !== '')
    const invalid = items.find((item) => allowed && !allowed.includes(item))
    if (invalid !== undefined)
      this.#complain(name, `names "${invalid}"; it may name ${allowed?.join(', ')}`)
    return items
  }

  origins(name: string): readonly string[] {
    const items = this.list(name, [])
    const wrong = items.find((item) => !/^https?:\/\/(\*\.)?[a-z0-9.-]+(:\d{1,5})?$/i.test(item))
    if (wrong !== undefined)
      this.#complain(name, `names "${wrong}"; it may name origins such as https://app.example.org`)
    return wrong === undefined ? items : []
  }

  hosts(name: string): readonly HostRule[] {
    return this.list(name, []).flatMap((item) => {
      const rule = readHostRule(item)
      if (rule === undefined)
        this.#complain(name, `names "${item}"; it may name hosts and addresses`)
      return rule ?? []
    })
  }

  url(name: string, otherwise: string): string {
    const value = this.text(name, otherwise, 'http or https address') ?? otherwise
    if (URL.canParse(value) && /^https?:/.test(value)) return value
    this.#complain(name, `is "${value}"; it must be an http or https address`)
    return otherwise
  }

  /** Base URL for appended paths. */
  base(name: string, otherwise: string): string {
    const value = this.url(name, otherwise)
    const { origin, pathname, search, hash } = new URL(value)
    if (search !== '' || hash !== '') {
      const good = `${origin}${pathname}`
      this.#complain(name, `is "${value}"; paths are appended to it, so it must be ${good}`)
    }
    if (pathname !== '/') {
      this.#doubts.push(`${name} has the path ${pathname}; the proxy in front has to take it off`)
    }
    return value.endsWith('/') ? value : `${value}/`
  }

  /** The URL may contain a password, so errors do not repeat it. */
  smtp(name: string): string | undefined {
    const value = this.text(name, '', 'smtp or smtps address')
    if (value === undefined) return undefined
    if (!URL.canParse(value) || !/^smtps?:\/\/[^/]/.test(value)) {
      this.#complain(name, 'must be smtp://<user>:<password>@<host>:<port>')
    }
    return value
  }

  storage(name: string, otherwise: string): string {
    const value = this.text(name, otherwise, 'file:<folder> or s3://<bucket>/<prefix>') ?? otherwise
    const isBucket = URL.canParse(value) && /^s3:\/\/[a-z0-9][a-z0-9.-]+/.test(value)
    if (!isBucket && !/^file:./.test(value)) {
      this.#complain(name, `is "${value}"; it must be file:<folder> or s3://<bucket>/<prefix>`)
    }
    return value
  }

  /** Returns a warning for each probable misspelling and for each setting that is rarely intended. */
  warnings(): readonly string[] {
    const names = Object.keys(this.#env).filter((name) => !this.settings.has(name))
    const misspelt = names.flatMap((name) => {
      const meant = this.settings.keys().find((known) => isMisspelt(name, known))
      return meant === undefined ? [] : [`${name} is not a setting; did you mean ${meant}?`]
    })
    return [...misspelt, ...this.#doubts]
  }

  #complain(name: string, what: string): void {
    this.#complaints.push(`${name} ${what}`)
  }
}

/** Edit distance up to two; short names are too similar to others. */
function isMisspelt(name: string, known: string): boolean {
  const most = known.length < 8 ? 1 : 2
  if (name.length < 5 || Math.abs(name.length - known.length) > most) return false
  let row = Array.from({ length: known.length + 1 }, (_, index) => index)
  for (const [i, letter] of [...name].entries()) {
    const next = [i + 1]
    for (let j = 0; j < known.length; j++) {
      const change = (row[j] ?? 0) + (known[j] === letter ? 0 : 1)
      next.push(Math.min(change, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1))
    }
    // No later row has a smaller entry.
    if (Math.min(...next) > most) return false
    row = next
  }
  return (row.at(-1) ?? 0) <= most
}
