/** Faults of a request for an export: all are found before anything is refused. */
import { type Issue, invalid, issue } from '../../errors.ts'

/** `handling=lenient` may pass over it, unless that would widen the export silently. */
export interface Fault {
  readonly issue: Issue
  readonly isFatal: boolean
}

export function fault(code: string, text: string, expression: string, isFatal = false): Fault {
  return { issue: issue('error', code, text, expression), isFatal }
}

/** What is passed over. Errors: 400 with an issue for each fault, unless all may be passed over. */
export function settle(faults: readonly Fault[], isLenient: boolean): readonly Issue[] {
  const refused = isLenient ? faults.filter(({ isFatal }) => isFatal) : faults
  if (refused.length > 0) throw invalid(refused.map((one) => one.issue))
  return faults.map((one) => ({ ...one.issue, severity: 'warning' }))
}
