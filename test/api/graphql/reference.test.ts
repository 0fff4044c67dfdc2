/**
 * Documents drawn by a seed, answered by the service and by graphql-js with plain resolvers over REST: the texts of
 * the data are equal, and so are the errors with their places. Imports the schema, which graphql-js executes too.
 */
import {
  execute,
  GraphQLError,
  type GraphQLField,
  type GraphQLFieldResolver,
  getNamedType,
  isLeafType,
  isNonNullType,
  isObjectType,
  isUnionType,
  parse,
} from 'graphql'
import t from 'tap'
import { parseJson } from '../../../shared/fhir/json.ts'
import { isObject, isResource } from '../../../shared/fhir/resource.ts'
import { parameterNames } from '../../../shared/graphql/schema/arguments.ts'
import { fieldSource, type Given } from '../../../shared/graphql/schema/elements.ts'
import { schemaFor } from '../../../shared/graphql/schema/schema.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { ask } from '../../fixtures/graphql.ts'
import { caseCount, seeded } from '../../fixtures/policy/oracle.ts'
import { anObservation, aPatient, syntheaTexts } from '../../fixtures/resources.ts'

const { admin } = await openBotica(t)
const schema = schemaFor({ isSuperAdmin: false, instance: undefined })
const SEED = Number(process.env.TEST_SEED ?? 1)
const random = seeded(SEED)
const DOCUMENTS = caseCount(150)

t.before(async () => {
  const [text = ''] = await syntheaTexts()
  t.equal((await admin.post('', JSON.parse(text))).status, 200)
  const patient = await admin.create(
    aPatient({ _birthDate: { extension: [{ url: 'http://example.com/a', valueDecimal: 1 }] } }),
  )
  await admin.create(
    anObservation(`Patient/${patient.id}`, {
      contained: [{ resourceType: 'Practitioner', id: 'in', gender: 'male' }],
      performer: [
        { reference: '#in' },
        { reference: 'Practitioner/00000000-0000-4000-8000-000000000000' },
      ],
    }),
  )
  const exact = anObservation(`Patient/${patient.id}`)
  const body = JSON.stringify(exact).replace('"value":72', '"value":72.00')
  t.equal(
    (await admin.post('Observation', body, { 'Content-Type': 'application/fhir+json' })).status,
    201,
  )
})

/** Cached REST responses. */
const answers = new Map<string, Promise<unknown>>()

function rest(path: string): Promise<unknown> {
  const known = answers.get(path) ?? admin.get(path).then(({ text }) => parseJson(text))
  answers.set(path, known)
  return known
}

async function found(type: string, given: Given, more = ''): Promise<readonly Resource[]> {
  const query = new URLSearchParams(more)
  for (const [name, value] of Object.entries(given)) {
    const code = parameterNames(type).get(name) ?? name
    if (name === '_reference') continue
    for (const one of [value].flat()) query.append(code, String(one))
  }
  const bundle = await rest(`${type}?${query}`)
  const entries: readonly unknown[] =
    isObject(bundle) && Array.isArray(bundle.entry) ? bundle.entry : []
  return entries.flatMap((entry) =>
    isObject(entry) && isResource(entry.resource) ? entry.resource : [],
  )
}

async function read(reference: unknown, isOptional: boolean): Promise<unknown> {
  if (typeof reference !== 'string') return null
  const found = await rest(reference.replace(/\/_history.*/, ''))
  if (isResource(found) && found.resourceType !== 'OperationOutcome') return found
  if (isOptional) return null
  throw new GraphQLError('Not found')
}

/** Returns the resource that contains a part. */
const owners = new WeakMap<object, Resource>()

function own(owner: Resource | undefined, value: unknown): unknown {
  for (const one of [value].flat()) {
    if (owner !== undefined && isObject(one)) owners.set(one, owner)
  }
  return value
}

const itself = (resource: unknown) =>
  isResource(resource) && !owners.has(resource) ? own(resource, resource) : resource

const resolve: GraphQLFieldResolver<unknown, unknown> = async (source, given, _context, info) => {
  const field = info.parentType.getFields()[info.fieldName]
  const from = field && fieldSource(field)
  const value = (name: string) => (isObject(source) ? (source[name] ?? null) : null)
  const owner = isObject(source) ? owners.get(source) : undefined
  switch (from?.kind) {
    case 'member':
      return own(owner, value(from.name))
    case 'edge':
      return value('resource')
    case 'list': {
      const { _count, _offset = 0, fhirpath, ...filters } = given
      const all = value(from.child.name)
      if (!Array.isArray(all)) return null
      const wanted = /^use = '(.*)'$/.exec(fhirpath ?? '')?.[1]
      const kept = all.filter(
        (item) =>
          item !== null &&
          (wanted === undefined || item.use === wanted) &&
          Object.entries(filters).every(([name, text]) => item[name] === text),
      )
      return own(owner, kept.slice(_offset, _count === undefined ? undefined : _offset + _count))
    }
    case 'read':
      return itself(await read(`${from.type}/${given.id}`, false))
    case 'reference': {
      const reference = String(value('reference'))
      const parts: readonly unknown[] = Array.isArray(owner?.contained) ? owner.contained : []
      const part = parts.filter(isResource).find((one) => `#${one.id}` === reference)
      // A Reference without a reference has no type to compare: an error, like a broken one.
      const type = part?.resourceType ?? /^([A-Z]\w+)\//.exec(reference)?.[1]
      if (given.type !== undefined && type !== undefined && type !== given.type) return null
      return part === undefined
        ? itself(await read(value('reference'), given.optional === true))
        : own(owner, part)
    }
    case 'search':
    case 'referring': {
      if (from.kind === 'referring' && owner !== source) return null
      const back = isResource(source)
        ? `${given._reference}=${source.resourceType}/${source.id}`
        : ''
      const resources = await found(from.type, given, from.kind === 'referring' ? back : '')
      for (const resource of resources) itself(resource)
      if (!from.isConnection) return resources
      const size = given._count ?? 20
      const edges = resources.map((resource) => ({ mode: 'match', resource }))
      return { offset: given._offset ?? 0, pageSize: size, pagesize: size, edges }
    }
    default:
      throw new Error(`${info.fieldName} is not read here`)
  }
}

const TYPES = ['Patient', 'Encounter', 'Observation', 'Condition', 'Procedure', 'Claim']

/** Generates a document with variables. */
class Drawing {
  readonly fragments: string[] = []
  #aliases = 0

  /** True when the document is within the limits of aliases and cost. */
  document(): string {
    const roots = Array.from({ length: 1 + random(2) }, () => {
      const type = TYPES[random(TYPES.length)] ?? 'Patient'
      const field = schema.getQueryType()?.getFields()[
        `${type}${random(4) === 0 ? 'Connection' : 'List'}`
      ]
      return field === undefined ? '' : this.#field(field, 3)
    })
    const text = [`{ ${roots.join(' ')} }`, ...this.fragments].join('\n')
    const declared = ['$yes: Boolean!', '$no: Boolean!', '$use: String'].filter((one) =>
      text.includes(one.replace(/:.*/, '')),
    )
    return declared.length === 0 ? text : `query (${declared.join(', ')}) ${text}`
  }

  #selection(type: unknown, left: number): string {
    if (isUnionType(type)) {
      const all = ['Group', 'Patient', 'Practitioner', 'Organization', 'Encounter', 'Observation']
      const named = all.slice(random(2))
      const parts = named.map(
        (name) => `... on ${name} ${this.#selection(schema.getType(name), left)}`,
      )
      return `{ __typename ${parts.join(' ')} }`
    }
    if (!isObjectType(type)) return ''
    const fields = Object.values(type.getFields()).filter((field) => this.#isUsed(field, left))
    const drawn = Array.from({ length: 2 + random(3) }, () => {
      const field = fields[random(fields.length)]
      const isLong = this.#aliases > 300
      return field === undefined || isLong ? '__typename' : this.#field(field, left - 1)
    })
    if (random(5) > 0) return `{ ${drawn.join(' ')} }`
    if (random(2) === 0) return `{ __typename ... @${this.#condition()} { ${drawn.join(' ')} } }`
    const name = `f${this.fragments.length}`
    this.fragments.push(`fragment ${name} on ${type.name} { ${drawn.join(' ')} }`)
    return `{ __typename ...${name} }`
  }

  #isUsed(field: GraphQLField<unknown, unknown>, left: number): boolean {
    const from = fieldSource(field)
    if (isLeafType(getNamedType(field.type))) return !/^(count|next|previous)$/.test(field.name)
    if (left <= 0) return false
    if (from?.kind !== 'referring') return from?.kind !== 'member' || !field.name.startsWith('_')
    return TYPES.includes(from.type)
  }

  #condition(): string {
    return `${random(2) === 0 ? 'skip' : 'include'}(if: ${random(2) === 0 ? '$yes' : '$no'})`
  }

  /** Unique aliases avoid merged fields. */
  #field(field: GraphQLField<unknown, unknown>, left: number): string {
    const from = fieldSource(field)
    const given: string[] = []
    if (from?.kind === 'search') given.push(`_count: ${1 + random(4)}`, '_sort: "_id"')
    if (from?.kind === 'referring') {
      const reference = field.args.find(({ name }) => name === '_reference')
      const type = reference?.type
      const codes = isNonNullType(type) && 'getValues' in type.ofType ? type.ofType.getValues() : []
      given.push(`_reference: ${codes[random(codes.length)]?.name}`, `_count: ${random(4)}`)
      given.push('_sort: "_id"')
    }
    if (from?.kind === 'list') given.push(...this.#filters(field))
    if (from?.kind === 'reference') {
      if (random(3) === 0) given.push('optional: true')
      if (random(4) === 0) given.push('type: "Patient"')
    }
    const written = given.length === 0 ? '' : `(${given.join(', ')})`
    const condition = random(12) === 0 ? ` @${this.#condition()}` : ''
    const inner = this.#selection(getNamedType(field.type), left)
    return `a${this.#aliases++}: ${field.name}${written}${condition} ${inner}`
  }

  #filters({ args }: GraphQLField<unknown, unknown>): string[] {
    const filters: string[] = []
    if (random(6) === 0) filters.push(`_offset: ${random(2)}`)
    if (random(6) === 0) filters.push(`_count: ${random(3)}`)
    if (args.some(({ name }) => name === 'use')) {
      const use = ['use: "official"', 'use: $use', `fhirpath: "use = 'official'"`, ''][random(4)]
      if (use) filters.push(use)
    }
    return filters
  }
}

t.test(`answers ${DOCUMENTS} documents as graphql-js does (TEST_SEED=${SEED})`, async (t) => {
  const variables = { yes: true, no: false, use: 'home' }
  for (let i = 0; i < DOCUMENTS; i++) {
    const query = new Drawing().document()
    const { body, text, status } = await ask(admin, query, variables)
    if (!t.equal(status, 200, text.slice(0, 300))) return t.comment(query)
    const result = await execute({
      schema,
      document: parse(query),
      variableValues: variables,
      fieldResolver: resolve,
    })
    const data = JSON.stringify(result.data)
    const isSame = text.startsWith(`{"data":${data}`) && same(body.errors) === same(result.errors)
    if (!t.ok(isSame, 'data and errors are the same')) {
      t.comment(query)
      t.comment(`ours  ${text.slice(0, 3000)}`)
      return t.comment(`theirs ${JSON.stringify(result).slice(0, 3000)}`)
    }
  }
})

/** Sorts errors, whose order is unspecified. */
function same(errors: readonly object[] = []): string {
  const plain: readonly GraphQLError[] = JSON.parse(JSON.stringify(errors))
  return plain
    .map(({ message, path, locations }) => JSON.stringify([message, path, locations]))
    .sort()
    .join('\n')
}
