/** `$import` of CodeSystem and ConceptMap, for more rows than a resource should hold. */
import { may } from '../access/policy.ts'
import { badRequest, forbidden, notSupported, tooCostly } from '../core/errors.ts'
import { type Resource, toObjects } from '../fhir/resource.ts'
import { type Inputs, readKnownInputs, toInteraction } from '../request/parameters.ts'
import { textReply } from '../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../request/request.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, find } from '../store/lookups.ts'
import { contentId, parseVersion, present } from '../store/rows/rows.ts'
import { fromCoding, ownResource } from '../terminology/codes.ts'
import { type ImportedProperty, storedName, textsOfUrl } from '../terminology/store-concepts.ts'
import {
  ensureConceptOwner,
  type ImportedConcept,
  type ImportedDesignation,
  type ImportedMapping,
  importConcepts,
  importMappings,
} from '../terminology/store-imports.ts'

const MOST_ROWS = 10_000
/** Each is part of an index entry, which PostgreSQL limits to 2,700 bytes. */
const LONGEST_BYTES = 500

/** All rows or none. Errors: 400, 403, 404. */
export const importRows: Operation = {
  name: 'import',
  on: [
    { type: 'CodeSystem', level: 'type' },
    { type: 'CodeSystem', level: 'instance' },
    { type: 'ConceptMap', level: 'type' },
    { type: 'ConceptMap', level: 'instance' },
  ],
  methods: ['POST'],
  inputs: {
    system: 'text: Canonical address of the CodeSystem, without an id',
    url: 'text: Canonical address of the ConceptMap, without an id',
    concept: 'object*: A Coding of the CodeSystem',
    property: 'part*: A property of a code',
    'property.code': 'text!: The code',
    'property.property': 'text!: Declared by the CodeSystem, or of the standard',
    'property.value': 'text!: Its value',
    designation: 'part*: A name of a code',
    'designation.code': 'text!: The code',
    'designation.language': 'text: de, for example',
    'designation.value': 'text!: The name',
    'designation.use': 'object: A Coding',
    mapping: 'part*: An element of the ConceptMap',
    'mapping.source': 'object!: A Coding',
    'mapping.target': 'object!: A Coding',
    'mapping.equivalence': 'text: As in R4',
    'mapping.relationship': 'text: As in R5; stored as the equivalence of R4',
    'mapping.comment': 'text: Accepted, not stored',
  },
  text: {
    summary: 'Import concepts or mappings',
    description: 'Adds them to a CodeSystem or ConceptMap, at most 10,000 in a call.',
    answer: 'OperationOutcome',
  },
  area: 'administration',
  async run(call) {
    const type = call.type === 'ConceptMap' ? 'ConceptMap' : 'CodeSystem'
    const { services, principal } = call
    if (!principal.isProjectAdmin || !may(principal, type, 'update')) throw forbidden()
    const inputs = readKnownInputs(call)
    requireRows(type, inputs)
    const resource = await importTarget(call, type, inputs)
    const concepts = inputs.objects('concept').map((item) => readConcept(item, resource))
    const properties = inputs.parts('property').map((part) => readProperty(part, resource))
    const designations = inputs.parts('designation').map(readDesignation)
    const mappings = inputs.parts('mapping').map((part, i) => readMapping(part, `mapping[${i}]`))
    const rows = concepts.length + properties.length + designations.length + mappings.length
    if (rows > MOST_ROWS) throw tooCostly(`${rows} rows were sent; ${MOST_ROWS} are allowed`)
    const uses = designations.map(({ use }) => use)
    const keys = [
      ...concepts.map(({ code }) => ({ code })),
      ...properties,
      ...designations,
      ...uses,
    ]
    for (const text of [...keys, ...mappings].flatMap((item) => Object.values(item))) {
      requireShort(text)
    }
    await services.database.transaction(async (connection) => {
      const owner = await ensureConceptOwner(
        connection,
        resource.meta?.project ?? principal.project.id,
        type,
        resource.id ?? '',
      )
      if (type === 'ConceptMap') await importMappings(connection, owner, mappings)
      else await importConcepts(connection, owner, { concepts, properties, designations })
    })
    const { id = '', meta } = resource
    if (type === 'CodeSystem') {
      await services.changes.report({ type, id, number: 0, home: meta?.project })
    }
    return readReply(call, type, resource.id ?? '')
  },
}

type Kind = 'CodeSystem' | 'ConceptMap'

const LISTS: Readonly<Record<Kind, readonly string[]>> = {
  CodeSystem: ['concept', 'property', 'designation'],
  ConceptMap: ['mapping'],
}

/** Errors: 400 for rows of the other type, and for none. */
function requireRows(type: Kind, inputs: Inputs): void {
  const isGiven = (name: string) => inputs.objects(name).length > 0
  const other = type === 'CodeSystem' ? 'ConceptMap' : 'CodeSystem'
  const wrong = LISTS[other].find(isGiven)
  if (wrong !== undefined) throw badRequest(`"${wrong}" is an input of ${other}/$import`, wrong)
  if (LISTS[type].some(isGiven)) return
  throw badRequest(`An import needs at least one ${LISTS[type].join(' or ')}`, LISTS[type][0])
}

/**
 * Returns the resource to import into, which the caller may update: in its own Project, or for super admins in any.
 * Errors: 400, 403, 404.
 */
async function importTarget(call: OperationCall, type: Kind, inputs: Inputs): Promise<Resource> {
  const { principal, services } = call
  const target = (await ownResource(call)) ?? (await targetByUrl(call, type, inputs))
  const { id = '', meta, url } = target
  if (meta?.project === undefined) {
    throw badRequest(`${type} ${url} is part of the standard; import into one of the Project`)
  }
  // Reads continue in linked Projects.
  if (!principal.isSuperAdmin && meta.project !== principal.project.id) throw forbidden()
  const { update } = await services.repository.decisions(principal, type, id)
  if (update === undefined) throw forbidden('criteria of every entry for update')
  return target
}

async function targetByUrl(call: OperationCall, type: Kind, inputs: Inputs): Promise<Resource> {
  const name = type === 'CodeSystem' ? 'system' : 'url'
  const url = inputs.text(name) ?? inputs.text('url')
  if (url === undefined) throw badRequest(`Missing required parameter "${name}"`)
  const { services, principal } = call
  const conditions = [equals('url', 'uri', escapeValue(url))]
  const own = await find(services.repository, principal, type, { conditions, count: 2 })
  const isElsewhere = own.length === 0 && principal.isSuperAdmin
  const [first, second] = isElsewhere ? await findElsewhere(call, type, url) : own
  if (first === undefined) throw badRequest(`No ${type} found with URL ${url}`)
  if (second !== undefined) throw badRequest(`More than one ${type} found with URL ${url}`)
  return first
}

async function findElsewhere(call: OperationCall, type: Kind, url: string): Promise<Resource[]> {
  const { database, repository } = call.services
  const texts = await textsOfUrl(database, type, url)
  const ids = texts.map(contentId)
  const read = ids.map((id) => repository.read(call.principal, type, id).then(parseVersion))
  return (await Promise.all(read)).filter((resource) => resource.url === url)
}

/** Standard properties, which need no declaration. */
const STANDARD = new Set(['parent', 'child', 'status', 'inactive', 'notSelectable'])

/** `child` is the inverse of `parent`. */
function readProperty(part: Inputs, codeSystem: Resource): ImportedProperty {
  const code = part.required('code')
  const property = storedName(part.required('property'))
  const value = part.required('value')
  const declared = toObjects(codeSystem.property)
  if (!STANDARD.has(property) && !declared.some((item) => item.code === property)) {
    throw badRequest(`Unknown property: ${property}`)
  }
  return property === 'child'
    ? { code: value, property: 'parent', value: code }
    : { code, property, value }
}

/** Errors: 400 for a code of another system or version. */
function readConcept(coding: Readonly<Record<string, unknown>>, into: Resource): ImportedConcept {
  const { system = into.url, version = into.version, code, display } = fromCoding(coding, 'concept')
  if (system !== into.url) throw badRequest(`${system}|${code} is not a code of ${into.url}`)
  if (version === into.version) return { code, display }
  throw badRequest(`${code} is of version ${version}, the CodeSystem is not`)
}

const USE_MEMBERS = ['system', 'code', 'display']

function readDesignation(part: Inputs): ImportedDesignation {
  const given = part.object('use') ?? {}
  for (const [name, value] of Object.entries(given)) {
    const isKnown = USE_MEMBERS.includes(name)
    if (!isKnown) throw notSupported(`"designation.use.${name}" is not supported`)
    if (typeof value !== 'string') throw badRequest(`"designation.use.${name}" must be a string`)
  }
  const text = (name: string) => (given[name] === undefined ? undefined : String(given[name]))
  const use = { system: text('system'), code: text('code'), display: text('display') }
  const [code, value] = [part.required('code'), part.required('value')]
  return { code, language: part.text('language'), use, value }
}

/** `path` names it in errors. Errors: 400. */
function readMapping(part: Inputs, path: string): ImportedMapping {
  const [source, target] = ['source', 'target'].map((name) => {
    const coding = part.object(name)
    if (coding === undefined) throw badRequest(`A mapping needs a ${name}`)
    return fromCoding(coding, `mapping.${name}`)
  })
  return {
    sourceSystem: source?.system ?? '',
    source: source?.code ?? '',
    targetSystem: target?.system ?? '',
    target: target?.code ?? '',
    display: target?.display,
    equivalence: readEquivalence(part, path),
  }
}

/** https://hl7.org/fhir/R4/valueset-concept-map-equivalence.html */
const EQUIVALENCES = new Set([
  'relatedto',
  'equivalent',
  'equal',
  'wider',
  'subsumes',
  'narrower',
  'specializes',
  'inexact',
  'unmatched',
  'disjoint',
])

/** The equivalence of each relationship: https://hl7.org/fhir/R5/valueset-concept-map-relationship.html */
const RELATIONSHIPS = new Map([
  ['related-to', 'relatedto'],
  ['equivalent', 'equivalent'],
  ['source-is-narrower-than-target', 'wider'],
  ['source-is-broader-than-target', 'narrower'],
  ['not-related-to', 'disjoint'],
])

function readEquivalence(part: Inputs, path: string): string {
  const [equivalence, relationship] = [part.text('equivalence'), part.text('relationship')]
  const named = `${path}.relationship`
  if (relationship === undefined) {
    const found = equivalence ?? 'equivalent'
    if (EQUIVALENCES.has(found)) return found
    throw badRequest(`Unknown equivalence: ${found.slice(0, 64)}`, `${path}.equivalence`)
  }
  if (equivalence !== undefined) {
    throw badRequest('A mapping has an equivalence or a relationship, not both', named)
  }
  const found = RELATIONSHIPS.get(relationship)
  if (found !== undefined) return found
  throw badRequest(`Unknown relationship: ${relationship.slice(0, 64)}`, named)
}

function requireShort(text: unknown): void {
  if (typeof text !== 'string') return
  if (text.includes('\0')) throw badRequest('Null bytes are not allowed')
  if (Buffer.byteLength(text) > LONGEST_BYTES) {
    throw badRequest(`Codes and values may have ${LONGEST_BYTES} bytes`)
  }
}

async function readReply(call: OperationCall, type: string, id: string): Promise<FhirReply> {
  const { services, principal } = call
  const version = await services.repository.read(principal, type, id)
  return textReply(200, present(version, principal, toInteraction(call).preferences.extended))
}
