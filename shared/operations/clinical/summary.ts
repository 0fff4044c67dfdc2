/**
 * `Patient/$summary`, not stored. https://hl7.org/fhir/uv/ips/OperationDefinition-summary.html
 * Each section holds the newest 200 readable resources, unchanged: they need not conform to IPS profiles.
 */
import { randomUUID } from 'node:crypto'
import { badRequest, multipleMatches, notFound } from '../../core/errors.ts'
import { escapeHtml } from '../../core/html.ts'
import { yieldTurn } from '../../core/yielding.ts'
import { plainBundle } from '../../fhir/bundle.ts'
import {
  isObject,
  parseReference,
  type Resource,
  toObjects,
  visitReferences,
} from '../../fhir/resource.ts'
import { readInputs, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, textReply, versionText } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { parseCallerSearch, resolved, searchByQuery } from '../../rest/criteria.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { documentHead } from './document.ts'

const LOINC = 'http://loinc.org'
const MOST_OF_A_SEARCH = 200

interface Section {
  readonly code: string
  readonly title: string
  /** Present even when empty. */
  readonly isRequired?: true
  readonly searches: readonly string[]
}

const SECTIONS: readonly Section[] = [
  {
    code: '48765-2',
    title: 'Allergies and Intolerances',
    isRequired: true,
    searches: ['AllergyIntolerance?verification-status:not=entered-in-error,refuted'],
  },
  {
    code: '10160-0',
    title: 'Medication Summary',
    isRequired: true,
    searches: [
      'MedicationStatement?status=active,intended,on-hold,unknown',
      'MedicationRequest?status=active,on-hold,unknown',
    ],
  },
  {
    code: '11450-4',
    title: 'Problem List',
    isRequired: true,
    searches: [
      'Condition?clinical-status:not=inactive,remission,resolved&verification-status:not=entered-in-error,refuted',
    ],
  },
  { code: '11369-6', title: 'Immunizations', searches: ['Immunization?status=completed'] },
  {
    code: '47519-4',
    title: 'History of Procedures',
    searches: ['Procedure?status:not=entered-in-error,not-done'],
  },
  {
    code: '46264-8',
    title: 'Medical Devices',
    searches: ['DeviceUseStatement?'],
  },
  {
    code: '30954-2',
    title: 'Results',
    searches: [
      'Observation?category=laboratory&status=final,amended,corrected&_sort=-date',
      'DiagnosticReport?status=final,amended,corrected&_sort=-date',
    ],
  },
  {
    code: '8716-3',
    title: 'Vital Signs',
    searches: ['Observation?category=vital-signs&status=final,amended,corrected&_sort=-date'],
  },
  {
    code: '11348-0',
    title: 'History of Past Illness',
    searches: ['Condition?clinical-status=inactive,remission,resolved'],
  },
  {
    code: '29762-2',
    title: 'Social History',
    searches: ['Observation?category=social-history&status=final,amended,corrected&_sort=-date'],
  },
  { code: '18776-5', title: 'Plan of Care', searches: ['CarePlan?status=active'] },
  {
    code: '42348-3',
    title: 'Advance Directives',
    searches: ['Consent?scope=adr&status=active'],
  },
  { code: '104605-1', title: 'Alerts', searches: ['Flag?status=active'] },
]

/** Types whose referenced resources are included. */
const INCLUDED = new Set([
  'Device',
  'Location',
  'Medication',
  'Organization',
  'Practitioner',
  'PractitionerRole',
  'Specimen',
])

/** Errors: 400, 404, 412 for an ambiguous identifier. */
export const summary: Operation = {
  name: 'summary',
  on: [
    { type: 'Patient', level: 'instance' },
    { type: 'Patient', level: 'type' },
  ],
  definition: 'http://hl7.org/fhir/uv/ips/OperationDefinition/summary',
  methods: ['GET', 'POST'],
  onlyReads: true,
  inputs: {
    identifier: 'token: system|value, without an id',
    profile: 'refused: ',
    graph: 'refused: ',
  },
  text: { summary: 'Read the summary of a patient', answer: 'Bundle' },
  async run(call) {
    const inputs = readInputs(call)
    const patient =
      call.id === undefined
        ? await patientBy(call, inputs.required('identifier'))
        : await call.services.repository.read(call.principal, 'Patient', call.id)
    const sections = await filled(call, `Patient/${patient.id}`)
    const contents = new Map<string, Version>()
    for (const { versions } of sections) {
      for (const version of versions) contents.set(`${version.type}/${version.id}`, version)
    }
    const labels = new Map<Version, string>()
    const included = await namedBy(call, contents, labels)
    const context = toInteraction(call)
    const made = madeResources(call.services, patient, sections, labels)
    const stored = [patient, ...contents.values(), ...included].map((version) => ({
      fullUrl: absoluteUrl(call.services, `${version.type}/${version.id}`),
      resource: versionText(context, version),
    }))
    const [composition, device] = made
    return textReply(200, plainBundle('document', [composition, ...stored, device], documentHead()))
  },
}

async function patientBy(call: OperationCall, identifier: string): Promise<Version> {
  if (!identifier.includes('|')) throw badRequest('"identifier" must be system|value', 'identifier')
  const { versions } = await searchByQuery(call, 'Patient', new URLSearchParams({ identifier }), {
    count: 2,
  })
  const [patient, second] = versions
  if (patient === undefined) throw notFound()
  if (second !== undefined) throw multipleMatches('The identifier is of several patients')
  return patient
}

interface FilledSection extends Section {
  readonly versions: readonly Version[]
  /** The caller lacks search access to part of this section. */
  readonly isWithheld: boolean
  readonly hasMore: boolean
}

/** Runs all searches in one statement; a forbidden one withholds its section. */
async function filled(call: OperationCall, patient: string): Promise<readonly FilledSection[]> {
  const { services, principal } = call
  const asked = SECTIONS.flatMap((section) =>
    section.searches.map((search) => {
      const [type = '', text] = search.split('?')
      const query = new URLSearchParams(text)
      query.set('patient', patient)
      return {
        section,
        request: { ...parseCallerSearch(call, type, query, 'strict'), count: MOST_OF_A_SEARCH },
      }
    }),
  )
  const requests = await Promise.all(asked.map(({ request }) => resolved(call, request)))
  const pages = await services.repository.searchMany(principal, requests)
  return SECTIONS.map((section) => {
    const own = pages.filter((_, index) => asked[index]?.section === section)
    const versions = own.flatMap((page) => (page.status === 'fulfilled' ? page.value.versions : []))
    const isWithheld = own.some((page) => page.status === 'rejected' && isForbidden(page.reason))
    const failed = own.find((page) => page.status === 'rejected' && !isForbidden(page.reason))
    if (failed?.status === 'rejected') throw failed.reason
    const hasMore = own.some((page) => page.status === 'fulfilled' && page.value.next !== undefined)
    return { ...section, versions, isWithheld, hasMore }
  })
}

function isForbidden(reason: unknown): boolean {
  return isObject(reason) && reason.status === 403
}

/** Reads references of the entries, and collects labels so that each entry is parsed only once. */
async function namedBy(
  { services, principal }: OperationCall,
  contents: ReadonlyMap<string, Version>,
  labels: Map<Version, string>,
): Promise<readonly Version[]> {
  const named = new Map<string, { readonly type: string; readonly id: string }>()
  for (const version of contents.values()) {
    const resource = parseVersion(version)
    labels.set(version, resourceLabel(resource))
    visitReferences(resource, version.type, (text) => {
      const target = parseReference(text)
      const name = target && `${target.type}/${target.id}`
      if (name === undefined || !INCLUDED.has(target?.type ?? '') || contents.has(name)) return
      if (target !== undefined) named.set(name, target)
    })
    await yieldTurn()
  }
  const all = await services.repository.readMany(principal, [...named.values()])
  return all.filter((version) => version !== undefined)
}

interface Entry {
  readonly fullUrl: string
  readonly resource: string
}

/** Returns the Composition and its authoring Device: no person has signed the document. */
function madeResources(
  services: Services,
  patient: Version,
  sections: readonly FilledSection[],
  labels: ReadonlyMap<Version, string>,
): readonly [Entry, Entry] {
  const [composition, device] = [randomUUID(), randomUUID()]
  // Relative references cannot be resolved from a `urn:uuid`: https://hl7.org/fhir/R4/bundle.html#references
  const refer = ({ type, id }: Version) => ({ reference: absoluteUrl(services, `${type}/${id}`) })
  const shown = sections.filter(({ versions, isRequired }) => isRequired || versions.length > 0)
  const entry = (id: string, resource: object) => ({
    fullUrl: `urn:uuid:${id}`,
    resource: JSON.stringify(resource),
  })
  return [
    entry(composition, {
      resourceType: 'Composition',
      id: composition,
      meta: { profile: ['http://hl7.org/fhir/uv/ips/StructureDefinition/Composition-uv-ips'] },
      status: 'final',
      type: { coding: [{ system: LOINC, code: '60591-5', display: 'Patient summary Document' }] },
      subject: refer(patient),
      date: new Date().toISOString(),
      author: [{ reference: `urn:uuid:${device}` }],
      title: 'Patient Summary',
      section: shown.map((section) => compositionSection(section, labels, refer)),
    }),
    entry(device, {
      resourceType: 'Device',
      id: device,
      deviceName: [{ name: services.config.productName, type: 'user-friendly-name' }],
    }),
  ]
}

/** https://hl7.org/fhir/R4/valueset-list-empty-reason.html */
const EMPTY_REASONS = 'http://terminology.hl7.org/CodeSystem/list-empty-reason'

function compositionSection(
  section: FilledSection,
  labels: ReadonlyMap<Version, string>,
  refer: (version: Version) => object,
): object {
  const { code, title, versions, isWithheld } = section
  const coding = [{ system: LOINC, code }]
  const text = { status: 'generated', div: narrative(section, labels) }
  const named = { title, code: { coding }, text }
  if (versions.length > 0) {
    return { ...named, entry: versions.map(refer) }
  }
  const reason = isWithheld ? 'withheld' : 'unavailable'
  return { ...named, emptyReason: { coding: [{ system: EMPTY_REASONS, code: reason }] } }
}

function narrative(
  { versions, isWithheld, hasMore }: FilledSection,
  labels: ReadonlyMap<Version, string>,
): string {
  const items = versions.map((version) => `<li>${escapeHtml(labels.get(version) ?? '')}</li>`)
  const notes = [
    ...(versions.length === 0 && !isWithheld ? ['No information is available.'] : []),
    ...(isWithheld ? ['Information is withheld.'] : []),
    ...(hasMore ? [`Only the first ${MOST_OF_A_SEARCH} are shown.`] : []),
  ].map((note) => `<p>${note}</p>`)
  const list = items.length === 0 ? '' : `<ul>${items.join('')}</ul>`
  return `<div xmlns="http://www.w3.org/1999/xhtml">${list}${notes.join('')}</div>`
}

const LABELS = ['code', 'medicationCodeableConcept', 'vaccineCode', 'type', 'title', 'category']

function resourceLabel(resource: Resource): string {
  for (const name of LABELS) {
    const [value] = [resource[name]].flat()
    if (typeof value === 'string') return value
    if (!isObject(value)) continue
    const codings = toObjects(value.coding)
    const text = value.text ?? codings.find(({ display }) => display)?.display ?? codings[0]?.code
    if (typeof text === 'string') return text
  }
  const { medicationReference } = resource
  const display = isObject(medicationReference) ? medicationReference.display : undefined
  return typeof display === 'string' ? display : resource.resourceType
}
