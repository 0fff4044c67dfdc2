/** One AuditEvent for everything that concerns a sign-in. It names who and from where, never a secret. */
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import type { Services } from '../../../shared/services.ts'
import type { Context } from '../../context.ts'

const DICOM = 'http://dicom.nema.org/resources/ontology/DCM'
const TRACING = 'https://medplum.com/fhir/StructureDefinition/tracing'
const SUBTYPES = {
  login: { system: DICOM, code: '110122', display: 'Login' },
  logout: { system: DICOM, code: '110123', display: 'Logout' },
} as const

export interface SignInEvent {
  readonly kind: keyof typeof SUBTYPES
  /** 0: done; 4: refused; 8: it could not be done. https://hl7.org/fhir/R4/valueset-audit-event-outcome.html */
  readonly outcome: '0' | '4' | '8'
  /** What happened, in words; no values of the request. */
  readonly what: string
  /** `Type/id` of whom it concerns. */
  readonly who?: string | undefined
  /** Where the event is kept; the platform's own when there is none. */
  readonly projectId?: string | undefined
}

/** Written in the background: no answer waits for it, and none fails with it. */
export function audit(services: Services, ctx: Context, event: SignInEvent): void {
  const { repository, log } = services
  const { requestId, traceId } = ctx.state
  const observer = { display: services.config.baseUrl }
  const written = repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'AuditEvent',
    ...(event.projectId === undefined ? {} : { meta: { project: event.projectId } }),
    extension: [
      {
        url: TRACING,
        extension: [
          { url: 'requestId', valueId: requestId },
          { url: 'traceId', valueId: traceId },
        ],
      },
    ],
    type: { system: DICOM, code: '110114', display: 'User Authentication' },
    subtype: [SUBTYPES[event.kind]],
    recorded: new Date().toISOString(),
    outcome: event.outcome,
    outcomeDesc: event.what,
    agent: [
      {
        ...(event.who === undefined ? {} : { who: { reference: event.who } }),
        requestor: true,
        network: { address: ctx.ip, type: '2' },
      },
    ],
    source: { observer },
  })
  written.catch((cause: unknown) => log.error({ cause, requestId }, 'An AuditEvent was lost'))
}
