/** The findings of a validation, and where in the resource they are. */
import { type Issue, issue, type Severity } from '../errors.ts'

/** No more issues than this are collected. */
export const MAX_ISSUES = 100

interface Spot {
  readonly step?: string | number | undefined
  readonly diagnostics?: string | undefined
}

/**
 * Steps to the current element are kept on one stack, which several reports may share; a path is only
 * written when something is wrong.
 */
export class Report {
  readonly issues: Issue[] = []
  readonly isStrict: boolean
  readonly #steps: (string | number)[]
  #errors = 0

  constructor(isStrict: boolean, steps: (string | number)[] = []) {
    this.isStrict = isStrict
    this.#steps = steps
  }

  get hasErrors(): boolean {
    return this.#errors > 0
  }

  get isFull(): boolean {
    return this.issues.length >= MAX_ISSUES
  }

  /** Nothing that is still to be found changes what is reported. */
  get isDone(): boolean {
    return this.isFull && this.hasErrors
  }

  enter(step: string | number): void {
    this.#steps.push(step)
  }

  leave(): void {
    this.#steps.pop()
  }

  /** Runs `work` with the path at a place below the current one. */
  within(steps: readonly (string | number)[], work: () => void): void {
    for (const step of steps) this.enter(step)
    work()
    this.#steps.length -= steps.length
  }

  /** A fault of the JSON shape: an error in every project. */
  error(text: string, step?: string | number): void {
    this.add('error', 'structure', text, { step })
  }

  /** A rule that projects without strict mode do not enforce. */
  rule(text: string, step?: string | number, code = 'structure', diagnostics?: string): void {
    this.add(this.isStrict ? 'error' : 'warning', code, text, { step, diagnostics })
  }

  add(severity: Severity, code: string, text: string, { step, diagnostics }: Spot = {}): void {
    if (this.isFull) {
      // Warnings must not hide that a resource is refused.
      if (severity !== 'error' || this.hasErrors) return
      this.issues.pop()
    }
    if (severity === 'error') this.#errors++
    const steps = step === undefined ? this.#steps : [...this.#steps, step]
    this.issues.push(issue(severity, code, text, { expression: pathOf(steps), diagnostics }))
  }
}

/** Steps to an element as FHIRPath. */
export function pathOf(steps: readonly (string | number)[]): string {
  let path = ''
  for (const step of steps) {
    if (typeof step === 'number') path += `[${step}]`
    else path += path === '' ? step : `.${step}`
  }
  return path
}
