/** `Composition/$document`, without graphs. https://hl7.org/fhir/R4/composition-operation-document.html */
import { randomUUID } from 'node:crypto'
import { badRequest, businessRule, tooCostly } from '../../core/errors.ts'
import { plainBundle } from '../../fhir/bundle.ts'
import { parseJson } from '../../fhir/json.ts'
import { canonicalUrl, parseReference, visitReferences } from '../../fhir/resource.ts'
import { type Inputs, readInputs, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, fhirBases, textReply, versionText, withoutBase } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { searchByQuery } from '../../rest/criteria.ts'
import { pageReply } from '../../rest/interaction.ts'
import { createFrom } from '../../rest/write.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { searchsetEntry } from './everything.ts'
import { conceptKeys } from './lastn.ts'

const MOST_REFERENCES = 1000

/** Errors: 404; 422 for a reference the caller cannot read, since parts are never omitted silently. */
export const document: Operation = {
  name: 'document',
  on: [
    { type: 'Composition', level: 'instance' },
    { type: 'Composition', level: 'type' },
  ],
  standard: 'type',
  methods: ['GET', 'POST'],
  inputs: { id: 'text: Of the Composition', persist: 'flag: Store it, by POST' },
  text: { summary: 'Create a document from a Composition', answer: 'Bundle' },
  async run(call) {
    const { services, principal } = call
    const inputs = readInputs(call)
    const isKept = inputs.flag('persist') === true
    if (isKept && call.request.method === 'GET') {
      throw badRequest('A document is stored by POST', 'persist')
    }
    const id = call.id ?? compositionId(call, inputs.required('id'))
    const composition = await services.repository.read(principal, 'Composition', id)
    const context = toInteraction(call)
    const versions = [composition, ...(await namedBy(call, composition))]
    const entries = versions.map((version) => ({
      fullUrl: absoluteUrl(services, `${version.type}/${version.id}`),
      resource: versionText(context, version),
    }))
    const text = plainBundle('document', entries, documentHead())
    if (!isKept) return textReply(200, text)
    return { ...(await createFrom(context, 'Bundle', parseJson(text), undefined)), status: 200 }
  },
}

/** https://hl7.org/fhir/R4/bundle.html#bdl-9 and bdl-10 */
export function documentHead(): Readonly<Record<string, unknown>> {
  return {
    identifier: { system: 'urn:ietf:rfc:3986', value: `urn:uuid:${randomUUID()}` },
    timestamp: new Date().toISOString(),
  }
}

/** Parameter `id` is a uri: a URL of this server, or an id. */
function compositionId({ services, principal }: OperationCall, uri: string): string {
  const path = canonicalUrl(withoutBase(fhirBases(services, principal.project.id), uri))
  const { type, id } = parseReference(path.includes('/') ? path : `Composition/${path}`) ?? {}
  if (type === 'Composition' && id !== undefined) return id
  throw badRequest('"id" must name a Composition', 'id')
}

async function namedBy(
  { services, principal }: OperationCall,
  composition: Version,
): Promise<readonly Version[]> {
  // Related documents are not part of this one: https://hl7.org/fhir/R4/documents.html#content
  const { meta: _, relatesTo: __, ...content } = parseVersion(composition)
  const named = new Map<string, { readonly type: string; readonly id: string }>()
  visitReferences(content, 'Composition', (text) => {
    const target = parseReference(text)
    if (target !== undefined) named.set(`${target.type}/${target.id}`, target)
  })
  named.delete(`Composition/${composition.id}`)
  if (named.size > MOST_REFERENCES) {
    throw businessRule(`A document may hold ${MOST_REFERENCES} resources`)
  }
  const found = await services.repository.readMany(principal, [...named.values()])
  const names = [...named.keys()]
  return found.map((version, index) => {
    if (version !== undefined) return version
    throw businessRule(`The Composition refers to ${names[index]}, which cannot be read`)
  })
}

// `DocumentReference/$docref`: https://hl7.org/fhir/us/core/OperationDefinition-docref.html

const MOST_DOCUMENTS = 1000

/** Errors: 400, 404 for a patient the caller cannot read. */
export const docref: Operation = {
  name: 'docref',
  on: [{ type: 'DocumentReference', level: 'type' }],
  definition: 'http://hl7.org/fhir/us/core/OperationDefinition/docref',
  methods: ['GET', 'POST'],
  inputs: {
    patient: 'reference!: The id',
    start: 'text: Of the care',
    end: 'text: Of the care',
    type: 'token: system|code',
    'on-demand': 'flag: Only generated documents',
    profile: 'text*: Canonical address',
  },
  text: { summary: 'Find the documents of a patient', answer: 'Bundle' },
  async run(call) {
    const { services, principal } = call
    const inputs = readInputs(call)
    const id = patientId(inputs.required('patient'))
    await services.repository.read(principal, 'Patient', id)
    const versions = inputs.flag('on-demand') ? [] : await documents(call, inputs, id)
    const context = toInteraction(call)
    const entries = versions.map((version) => searchsetEntry(context, version, 'match'))
    return pageReply(context, { type: 'searchset', total: entries.length, links: [] }, entries)
  },
}

function patientId(text: string): string {
  const { type, id } = parseReference(text.includes('/') ? text : `Patient/${text}`) ?? {}
  if (type === 'Patient' && id !== undefined) return id
  throw badRequest('"patient" must be the id of a Patient', 'patient')
}

/**
 * Dates are those of the documented care. Without dates, returns the newest of each type. Errors: 400 for a date, and
 * for too many documents.
 */
async function documents(
  call: OperationCall,
  inputs: Inputs,
  id: string,
): Promise<readonly Version[]> {
  const query = new URLSearchParams({ patient: `Patient/${id}`, status: 'current', _sort: '-date' })
  for (const name of ['start', 'end']) inputs.time(name, 'low')
  const [start, end, type] = ['start', 'end', 'type'].map((name) => inputs.text(name))
  if (start !== undefined) query.append('period', `ge${start}`)
  if (end !== undefined) query.append('period', `le${end}`)
  if (type !== undefined) query.append('type', type)
  const profiles = inputs.texts('profile')
  if (profiles.length > 0) query.append('_profile', profiles.join(','))
  const { versions, next } = await searchByQuery(call, 'DocumentReference', query, {
    count: MOST_DOCUMENTS,
  })
  if (next !== undefined) {
    throw tooCostly(`There are more than ${MOST_DOCUMENTS} documents: give a type or dates`)
  }
  if (start !== undefined || end !== undefined) return versions
  const seen = new Set<string>()
  return versions.filter((version) => {
    const keys = conceptKeys(parseVersion(version).type)
    const isOlder = keys.some((key) => seen.has(key))
    for (const key of keys) seen.add(key)
    return !isOlder
  })
}
