/**
 * OperationOutcomes of the contract. The SDK derives a status from `id`, so the ids are part of it.
 * https://hl7.org/fhir/R4/operationoutcome.html
 */
export type Severity = 'fatal' | 'error' | 'warning' | 'information'

export interface Issue {
  readonly severity: Severity
  readonly code: string
  readonly details: { readonly text: string; readonly coding?: readonly { code: string }[] }
  readonly expression?: readonly string[]
  readonly diagnostics?: string
}

export interface OperationOutcome {
  readonly resourceType: 'OperationOutcome'
  readonly id?: string
  readonly issue: readonly Issue[]
  readonly extension?: readonly unknown[]
  readonly [key: string]: unknown
}

/** One issue; `expression` is the FHIRPath of the element at fault, where there is one. */
export function issue(
  severity: Severity,
  code: string,
  text: string,
  expression?: string,
  diagnostics?: string,
): Issue {
  return {
    severity,
    code,
    details: { text },
    ...(expression === undefined ? {} : { expression: [expression] }),
    ...(diagnostics === undefined ? {} : { diagnostics }),
  }
}

export function outcome(id: string | undefined, ...issues: Issue[]): OperationOutcome {
  return { resourceType: 'OperationOutcome', ...(id === undefined ? {} : { id }), issue: issues }
}

export const allOk = outcome('ok', issue('information', 'informational', 'All OK'))
export const created = outcome('created', issue('information', 'informational', 'Created'))

/** The 202 body; `statusUrl` also travels in `Content-Location`, the SDK looks at both. */
export function accepted(statusUrl: string): OperationOutcome {
  return outcome(
    'accepted',
    issue('information', 'informational', 'Accepted', undefined, statusUrl),
  )
}
