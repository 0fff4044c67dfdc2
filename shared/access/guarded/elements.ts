/**
 * Guarded elements widen exposure, hide traces or define behaviour for others. Only project administrators and
 * members whose policy names the type write them; `*` does not include them.
 */

import { isBotExtension } from '../../fhir/bot-extensions.ts'
import { isSameJson } from '../../fhir/json.ts'
import { isObject, parseReference, type Resource, toObjects } from '../../fhir/resource.ts'
import { subscriptionSecrets } from '../fields/fields.ts'
import { isPreCommit } from '../subscription.ts'

type Parts = Readonly<Record<string, unknown>>

interface GuardedElements {
  readonly by: 'elements'
  readonly parts: (resource: Resource) => Parts
  /** Guarded elements that the author of the resource may also change. */
  readonly ofAuthor?: (resource: Resource) => Parts
  readonly reason: string
}

interface GuardedOtherwise {
  /**
   * `type`: the whole type (policy.ts). `url`: a url in use (definitions.ts). `registry`: the administrators' table
   * (policy.ts). `rule`: a `WriteRule`. `service`: written by the service only. `nothing`: unguarded.
   */
  readonly by: 'type' | 'url' | 'registry' | 'rule' | 'service' | 'nothing'
  readonly reason: string
}

type TypeGuard = GuardedElements | GuardedOtherwise

const CLINICAL: TypeGuard = {
  by: 'nothing',
  reason: 'clinical data: policies control its writes, and it grants no rights',
}
const SENT: TypeGuard = {
  by: 'nothing',
  reason: 'part of requests and responses; the service does not act upon stored ones',
}
const CONTENT: TypeGuard = {
  by: 'nothing',
  reason: 'callers name it, and its results are written with the rights of the caller',
}
const DECLARED: TypeGuard = {
  by: 'nothing',
  reason: 'it is a claim in the metadata for members of the Project, and grants no rights',
}
const REGISTRY: TypeGuard = {
  by: 'registry',
  reason: 'it controls sign-in and rights',
}
const RESOLVED: TypeGuard = {
  by: 'url',
  reason: 'it validates the writes and codes of all members that name its url',
}

export const GUARDS: Readonly<Record<string, TypeGuard>> = {
  AccessPolicy: { by: 'type', reason: 'it gives rights' },
  SmartAppLaunch: { by: 'type', reason: 'it puts apps of others into the context of a patient' },
  SearchParameter: {
    by: 'type',
    reason: 'criteria of policies and Subscriptions use it, and its index can be searched',
  },
  Bot: {
    by: 'elements',
    parts: botParts,
    reason: 'they control its rights, callers, identifier, schedule, limits and audit',
  },
  ClientApplication: {
    by: 'elements',
    // All but the name: new elements are guarded by default.
    parts: ({ name: _name, description: _description, ...rest }) => withoutBase(rest),
    reason: 'it authenticates an app, and decides where codes and tokens are sent',
  },
  DomainConfiguration: {
    by: 'elements',
    parts: ({ identityProvider }) => ({ identityProvider }),
    reason: 'a provider speaks for every member',
  },
  OperationDefinition: {
    by: 'elements',
    parts: (resource) => (implementationReferences(resource).length > 0 ? allParts(resource) : {}),
    reason: 'with an implementation, its Bot answers the calls of all members',
  },
  Agent: {
    by: 'elements',
    parts: ({ channel }) => ({ channel }),
    reason: 'a channel decides which Bot gets the messages of devices',
  },
  Subscription: {
    by: 'elements',
    parts: (resource) => (isPreCommit(resource) ? allParts(resource) : {}),
    ofAuthor: subscriptionSecrets,
    reason:
      'a pre-commit bot changes and rejects the writes of others; secrets belong to their author',
  },
  UserConfiguration: {
    by: 'elements',
    parts: ({ option }) => ({ option }),
    reason: 'options are limits that administrators set; menus and searches are only shown',
  },
  CodeSystem: RESOLVED,
  ConceptMap: RESOLVED,
  StructureDefinition: RESOLVED,
  ValueSet: RESOLVED,
  JsonWebKey: REGISTRY,
  Login: REGISTRY,
  Project: REGISTRY,
  ProjectMembership: REGISTRY,
  User: REGISTRY,
  UserSecurityRequest: REGISTRY,
  AuditEvent: {
    by: 'rule',
    reason: 'it is never changed, and names its writer as the agent',
  },
  Binary: { by: 'rule', reason: 'the code of a Bot is guarded like the Bot itself' },
  AsyncJob: { by: 'service', reason: 'it records the work of the service' },
  BulkDataExport: { by: 'service', reason: 'it records the work of the service' },
  ActivityDefinition: CONTENT,
  GraphDefinition: CONTENT,
  PlanDefinition: CONTENT,
  Questionnaire: {
    by: 'nothing',
    reason: 'members maintain forms together; policies control writes, as for clinical data',
  },
  Group: {
    by: 'nothing',
    reason: 'it selects among patients that the caller of an export may read anyway',
  },
  List: { by: 'nothing', reason: 'it selects among resources that the caller may read anyway' },
  Provenance: {
    by: 'nothing',
    reason: 'members state the origin of records; AuditEvents are the trail of the service',
  },
  Consent: {
    by: 'nothing',
    reason: 'it records an agreement; policies alone give rights',
  },
  HealthcareService: {
    by: 'nothing',
    reason: 'its times are proposals: members that may write Slots choose any time',
  },
  Schedule: {
    by: 'nothing',
    reason: 'its times are proposals: members that may write Slots choose any time',
  },
  Bundle: SENT,
  CapabilityStatement: DECLARED,
  ImplementationGuide: DECLARED,
  OperationOutcome: SENT,
  Parameters: SENT,
  SubscriptionStatus: SENT,
  TerminologyCapabilities: SENT,
  ...Object.fromEntries(
    [
      'AllergyIntolerance',
      'Appointment',
      'Basic',
      'CarePlan',
      'CareTeam',
      'Claim',
      'Communication',
      'Composition',
      'Condition',
      'Coverage',
      'Device',
      'DeviceUseStatement',
      'DiagnosticReport',
      'DocumentReference',
      'Encounter',
      'EpisodeOfCare',
      'Flag',
      'Goal',
      'ImagingStudy',
      'Immunization',
      'Location',
      'Medication',
      'MedicationRequest',
      'MedicationStatement',
      'Observation',
      'Organization',
      'Patient',
      'Practitioner',
      'PractitionerRole',
      'Procedure',
      'QuestionnaireResponse',
      'RelatedPerson',
      'RequestGroup',
      'ServiceRequest',
      'Slot',
      'Specimen',
      'Substance',
      'Task',
    ].map((type) => [type, CLINICAL]),
  ),
}

const BASE = ['resourceType', 'id', 'meta', 'implicitRules', 'language', 'text', 'contained']

function withoutBase(elements: Readonly<Record<string, unknown>>): Parts {
  return Object.fromEntries(Object.entries(elements).filter(([name]) => !BASE.includes(name)))
}

/** Extensions first: errors name the extension that activates the resource. */
function allParts({ extension, ...rest }: Resource): Parts {
  return { extension, ...withoutBase(rest) }
}

/** Unguarded elements of a Bot; its code has a rule in bots/write-rules.ts. */
const OF_BOT_AUTHORS: ReadonlySet<string> = new Set([
  'name',
  'description',
  'photo',
  'category',
  'code',
  'sourceCode',
  'executableCode',
  'extension',
])
const DEFAULTS: Parts = {
  system: false,
  runAsUser: false,
  publicWebhook: false,
  auditEventTrigger: 'always',
  auditEventDestination: ['resource'],
}

/**
 * Guards new elements by default; an explicit default value counts as absent. bots/write-rules.ts is stricter with
 * `runAsUser` and `system`.
 */
function botParts(bot: Resource): Parts {
  const { extension } = bot
  const own = Object.entries(withoutBase(bot)).filter(
    ([name, value]) => !OF_BOT_AUTHORS.has(name) && !isSame(value, DEFAULTS[name]),
  )
  const extensions = Array.isArray(extension) ? extension.filter(isBotExtension) : []
  return {
    ...Object.fromEntries(own),
    ...(extensions.length === 0 ? {} : { extension: extensions }),
  }
}

const IMPLEMENTATION = 'operationDefinition-implementation'

export function implementationReferences({ extension }: Resource): readonly unknown[] {
  return toObjects(extension).flatMap(({ url, valueReference }) =>
    typeof url === 'string' && url.endsWith(`/${IMPLEMENTATION}`) ? [valueReference] : [],
  )
}

export function isGuardedType(type: string): boolean {
  const by = GUARDS[type]?.by
  return by === 'type' || by === 'url'
}

/** True when an entry that names the type grants more than one for `*`. */
export function grantsMoreByName(type: string): boolean {
  return isGuardedType(type) || GUARDS[type]?.by === 'elements'
}

/** Returns the changed guarded paths; without `before`, all that are present. */
export function guardedChanges(before: Resource | undefined, after: Resource): readonly string[] {
  const guard = GUARDS[after.resourceType]
  if (guard?.by !== 'elements') return []
  return [...changes(guard.parts, before, after), ...authorsChanges(before, after)]
}

export function authorsChanges(before: Resource | undefined, after: Resource): readonly string[] {
  const guard = GUARDS[after.resourceType]
  if (guard?.by !== 'elements' || guard.ofAuthor === undefined) return []
  return changes(guard.ofAuthor, before, after)
}

function changes(
  partsOf: GuardedElements['parts'],
  before: Resource | undefined,
  after: Resource,
): readonly string[] {
  const [old, next] = [before === undefined ? {} : partsOf(before), partsOf(after)]
  const names = new Set([...Object.keys(next), ...Object.keys(old)])
  return [...names].filter((name) => !isSame(old[name], next[name]))
}

export function isSame(a: unknown, b: unknown): boolean {
  return a === b || isSameJson(JSON.stringify(a) ?? 'null', JSON.stringify(b) ?? 'null')
}

/* AuditEvents of applications may name any agents. Only the service may write events marked as its own. */

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
  // The look behind keeps a long run of slashes from being read once for each of them.
  return name
    .trim()
    .toLowerCase()
    .replace(/(?<!\/)\/+$/, '')
}
