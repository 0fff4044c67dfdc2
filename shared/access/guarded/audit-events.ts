/**
 * AuditEvents of applications. An event may have any agents: applications record what their users did, and
 * `meta.author` says who wrote it. What marks the events of this service is for the service alone.
 */
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'

/** `display` of this service in its own AuditEvents. */
export const SERVICE_NAME = 'Botica'
/** `type.system` of its events about bot runs, deliveries and mails. */
export const EVENT_SYSTEM = 'https://medplum.com/CodeSystem/audit-event'
/** The observers of its events are resources of these types, or its own address. */
const OBSERVERS = new Set(['Project', 'Bot', 'Subscription'])

/** Returns the path of the element by which an AuditEvent claims to be recorded by the service at `baseUrl`. */
export function claimsService(
  { type, source }: Resource,
  baseUrl: string | undefined,
): string | undefined {
  const system = isObject(type) ? type.system : undefined
  if (system === EVENT_SYSTEM) return 'AuditEvent.type'
  const observer = isObject(source) ? source.observer : undefined
  return isObject(observer) && isService(observer, baseUrl)
    ? 'AuditEvent.source.observer'
    : undefined
}

function isService(
  { reference, type, display, identifier }: Readonly<Record<string, unknown>>,
  baseUrl: string | undefined,
): boolean {
  const text = typeof reference === 'string' ? reference : ''
  // The tail of an absolute reference, whatever the spelling of this server in front of it.
  const tail = text.split('/_history/', 1)[0]?.split('/').slice(-2).join('/')
  const target = parseReference(tail)?.type ?? type
  if (typeof target === 'string' && OBSERVERS.has(target)) return true
  const value = isObject(identifier) ? identifier.value : undefined
  const names = new Set([SERVICE_NAME, baseUrl ?? SERVICE_NAME].map(plain))
  return [text, display, value].some((name) => typeof name === 'string' && names.has(plain(name)))
}

/** Without case, outer white space and trailing slashes. */
function plain(name: string): string {
  return name.trim().toLowerCase().replace(/\/+$/, '')
}
