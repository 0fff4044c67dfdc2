/** What a validation has found, and where in the resource it is. */
import { type Issue, issue, type Severity } from './outcome.ts'

/** No more issues than this are collected. */
export const MAX_ISSUES = 100

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

  enter(step: string | number): void {
    this.#steps.push(step)
  }

  leave(): void {
    this.#steps.pop()
  }

  /** A fault of the JSON shape: an error in every project. */
  error(text: string, step?: string | number): void {
    this.add('error', 'structure', text, step)
  }

  /** A rule that projects without strict mode do not enforce. */
  rule(text: string, step?: string | number, code = 'structure', diagnostics?: string): void {
    this.add(this.isStrict ? 'error' : 'warning', code, text, step, diagnostics)
  }

  add(
    severity: Severity,
    code: string,
    text: string,
    step?: string | number,
    diagnostics?: string,
  ): void {
    if (this.isFull) return
    if (severity === 'error') this.#errors++
    this.issues.push(issue(severity, code, text, this.#path(step), diagnostics))
  }

  #path(last: string | number | undefined): string {
    let path = ''
    for (const step of last === undefined ? this.#steps : [...this.#steps, last]) {
      if (typeof step === 'number') path += `[${step}]`
      else path += path === '' ? step : `.${step}`
    }
    return path
  }
}
