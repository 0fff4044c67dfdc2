/** AuditEvents of sign-ins, with user and address but without secrets. */
import { system } from '../../shared/access/project-context.ts'
import { tracingExtension } from '../../shared/request/reply.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context } from '../http/context.ts'

const DICOM = 'http://dicom.nema.org/resources/ontology/DCM'
const SUBTYPES = {
  login: { system: DICOM, code: '110122', display: 'Login' },
  logout: { system: DICOM, code: '110123', display: 'Logout' },
} as const

interface SignInEvent {
  readonly kind: keyof typeof SUBTYPES
  /** 0: success; 4: refused; 8: failure. https://hl7.org/fhir/R4/valueset-audit-event-outcome.html */
  readonly outcome: '0' | '4' | '8'
  /** Description without values of the request. */
  readonly what: string
  /** `Type/id` of the person or client concerned. */
  readonly who?: string | undefined
  /** Project of the event; otherwise the platform's own. */
  readonly projectId?: string | undefined
}

/** Writes in the background: no reply waits for it or fails with it. */
export function audit(services: Services, ctx: Context, event: SignInEvent): void {
  const { repository, log } = services
  const observer = { display: services.config.baseUrl }
  const written = repository.create(system, {
    resourceType: 'AuditEvent',
    ...(event.projectId === undefined ? {} : { meta: { project: event.projectId } }),
    extension: [tracingExtension(ctx.state)],
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
  const { requestId } = ctx.state
  written.catch((cause: unknown) => log.error({ cause, requestId }, 'An AuditEvent was lost'))
}
