/** AuditEvents of applications may name any agents. Only the service may write events marked as its own. */
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'

export const SERVICE_NAME = 'Botica'
export const EVENT_SYSTEM = 'https://medplum.com/CodeSystem/audit-event'
const OBSERVERS = new Set(['Project', 'Bot', 'Subscription'])

/** Returns the path of the element that claims the service recorded the event. */
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
  // Compares only the tail of an absolute reference, since this server's base has several spellings.
  const tail = text.split('/_history/', 1)[0]?.split('/').slice(-2).join('/')
  const target = parseReference(tail)?.type ?? type
  if (typeof target === 'string' && OBSERVERS.has(target)) return true
  const value = isObject(identifier) ? identifier.value : undefined
  const names = new Set([SERVICE_NAME, baseUrl ?? SERVICE_NAME].map(plain))
  return [text, display, value].some((name) => typeof name === 'string' && names.has(plain(name)))
}

function plain(name: string): string {
  return name.trim().toLowerCase().replace(/\/+$/, '')
}
