/** The flat JSON bodies of `/auth/**`: an empty text equals an absent field, every bad field is named. */
import { type Issue, invalid, issue } from '../../../shared/errors.ts'
import type { Context } from '../../context.ts'
import { readJsonObject } from '../../middleware/body.ts'

const BODY_BYTES = 65_536
const EMAIL = /^[^\s@]{1,64}@[^\s@]{1,255}$/
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

export interface Fields {
  /** Between `min` and `max` characters; `label` names it in what is said of it. */
  required(name: string, label: string, min?: number, max?: number): string
  optional(name: string): string | undefined
  email(name: string): string
  uuid(name: string): string
  flag(name: string): boolean | undefined
  /** Errors: 400 with an issue for each bad field. */
  check(): void
}

/** Errors: 400, 413, 415. */
export async function readFields(ctx: Context): Promise<Fields> {
  const body = await readJsonObject(ctx, BODY_BYTES)
  const issues: Issue[] = []
  const complain = (name: string, text: string) => {
    issues.push(issue('error', 'invalid', text, { expression: name }))
  }
  const optional = (name: string): string | undefined => {
    const value = body[name]
    if (value === undefined || value === null || value === '') return undefined
    if (typeof value === 'string') return value
    complain(name, `${name} must be a text`)
    return undefined
  }
  const required = (name: string, label: string, min = 1, max = 4096): string => {
    const value = optional(name)
    const isFine = value !== undefined && value.length >= min && value.length <= max
    if (!isFine && !issues.some(({ expression }) => expression?.[0] === name)) {
      const range = min === 1 ? 'is required' : `must be between ${min} and ${max} characters`
      complain(
        name,
        `${label} ${value !== undefined && value.length > max ? 'is too long' : range}`,
      )
    }
    return value ?? ''
  }
  return {
    required,
    optional,
    email(name) {
      const value = optional(name)?.trim() ?? ''
      if (!EMAIL.test(value) || value.length > 254)
        complain(name, 'Valid email address is required')
      return value.toLowerCase()
    },
    uuid(name) {
      const value = optional(name) ?? ''
      if (!UUID.test(value)) complain(name, `${name} must be an id`)
      return value.toLowerCase()
    },
    flag(name) {
      const value = body[name]
      if (value === true || value === 'true') return true
      if (value === false || value === 'false') return false
      if (value !== undefined && value !== null && value !== '') {
        complain(name, `${name} must be true or false`)
      }
      return undefined
    },
    check() {
      if (issues.length > 0) throw invalid(issues)
    },
  }
}
