/**
 * OpenAPI 3.1 description of the served paths: the routes of the app, and the interactions and operations below
 * `/fhir/R4`. https://spec.openapis.org/oas/v3.1.0
 */

import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { operations } from '../../shared/api/operations.ts'
import { yieldTurn } from '../../shared/core/yielding.ts'
import { resourceTypes, shortText, typeDefinition } from '../../shared/fhir/definitions.ts'
import {
  type Child,
  findBackbonePlace,
  graphqlTypeName,
  listChildren,
  type Place,
} from '../../shared/graphql/schema/elements.ts'
import type { CallText, FieldTexts, Operation } from '../../shared/request/request.ts'
import { type Access, isOpen } from '../middleware/access.ts'
import { PROJECT_SCOPED } from '../middleware/requests.ts'
import { fhirAccess } from '../routes/fhir.ts'
import { interactionTexts } from './fhir-texts.ts'

type Schema = Readonly<Record<string, unknown>>

/** An OpenAPI path, such as `/admin/projects/{id}`, and its methods in capitals. */
interface Served {
  readonly path: string
  readonly methods: readonly string[]
  readonly access: Access
  readonly texts: Readonly<Record<string, CallText>>
}

/** `routes` excludes the FHIR routes. Takes several turns of the event loop. */
export async function describeApi(baseUrl: string, routes: readonly Served[]): Promise<string> {
  const paths = new Map<string, Record<string, object>>()
  const root = baseUrl.replace(/\/$/, '')
  for (const { path, access, texts } of [...routes.map(inBraces), ...fhirPaths]) {
    const item = paths.get(path) ?? {
      ...describeServers(root, path),
      ...describePathParameters(path),
    }
    for (const [method, text] of Object.entries(texts)) {
      item[method.toLowerCase()] = describeCall(path, method, access, text)
    }
    paths.set(path, item)
  }
  const resources = await resourceSchemas()
  const document = {
    openapi: '3.1.0',
    info: {
      title: 'Botica',
      version: 'R4',
      description: 'FHIR R4 with projects, access policies and bots.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: root }],
    security: [{ bearer: [] }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    paths: Object.fromEntries([...paths].sort(([a], [b]) => (a < b ? -1 : 1))),
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        basic: { type: 'http', scheme: 'basic' },
      },
      responses: { Refused: refused },
    },
  }
  // Stringified one by one: all schemas at once would hold the event loop for longer.
  const schemas = Object.entries({ ...OWN_SCHEMAS, ...resources })
  const written = schemas.map(
    ([name, schema]) => `${JSON.stringify(name)}:${JSON.stringify(schema)}`,
  )
  const text = JSON.stringify(document)
  return `${text.slice(0, -'}}'.length)},"schemas":{${written.join(',')}}}}`
}

/** Returns the servers of paths that also exist below the address of a Project. */
function describeServers(root: string, path: string): { readonly servers?: object } {
  if (!PROJECT_SCOPED.test(path)) return {}
  const project = { default: SYSTEM_PROJECT.id, description: 'Id of the Project of the caller' }
  const scoped = { url: `${root}/projects/{project}`, variables: { project } }
  return { servers: [{ url: root }, scoped] }
}

const TAGS: Readonly<Record<string, string>> = {
  fhir: 'Resources: read, search, write',
  operations: 'Operations of FHIR and of the platform',
  bots: 'Bots, web hooks, tools for language models, CDS Hooks',
  jobs: 'Asynchronous jobs',
  admin: 'Projects, members, clients, and the whole service',
  auth: 'Sign-in and accounts',
  service: 'Health, metrics, pages',
}

const refused: Schema = {
  description:
    'Error. `code` and the text of each issue give the reason, `expression` the element or parameter.',
  content: { 'application/fhir+json': { schema: refTo('OperationOutcome') } },
}

const OWN_SCHEMAS: Readonly<Record<string, Schema>> = {
  ResourceType: { enum: resourceTypes },
  JsonPatch: {
    type: 'array',
    description: 'RFC 6902',
    items: {
      type: 'object',
      required: ['op', 'path'],
      properties: {
        op: { enum: ['add', 'remove', 'replace', 'move', 'copy', 'test'] },
        path: { type: 'string' },
        from: { type: 'string' },
        value: {},
      },
    },
  },
  Settings: {
    type: 'array',
    items: {
      type: 'object',
      required: ['name'],
      properties: {
        name: { type: 'string' },
        valueString: { type: 'string' },
        valueBoolean: { type: 'boolean' },
        valueInteger: { type: 'integer' },
        valueDecimal: { type: 'number' },
        domain: { type: 'array', items: { type: 'string' } },
      },
    },
  },
  Token: {
    type: 'object',
    required: ['access_token', 'token_type'],
    properties: {
      access_token: { type: 'string' },
      token_type: { const: 'Bearer' },
      expires_in: { type: 'integer' },
      scope: { type: 'string' },
      id_token: { type: 'string' },
      refresh_token: { type: 'string' },
    },
  },
}

function inBraces({ path, ...rest }: Served): Served {
  return { path: path.replace(/:(\w+)/g, '{$1}'), ...rest }
}

const FHIR = '/fhir/R4'

type FhirPath = Omit<Served, 'access'>

const INTERACTIONS: readonly FhirPath[] = Object.entries(
  Object.groupBy(Object.keys(interactionTexts), (call) => call.split(' ')[1] ?? ''),
).map(([path, calls = []]) => {
  const texts = Object.fromEntries(
    calls.map((call) => [call.split(' ')[0] ?? '', interactionTexts[call] ?? { summary: call }]),
  )
  return { path: `${FHIR}${path}`, methods: Object.keys(texts), texts }
})

export const fhirPaths: readonly Served[] = [
  ...INTERACTIONS,
  ...operations.flatMap(operationPaths),
].map((served) => ({ ...served, access: fhirAccess(served.path.slice(FHIR.length + 1)) }))

function operationPaths({ name, on, methods, inputs, text }: Operation): readonly FhirPath[] {
  const inBody = typeof text.body === 'object' ? text.body : {}
  const given = Object.entries(inputs ?? {}).filter(
    ([input, meaning]) => !meaning.startsWith('refused') && !(input in inBody),
  )
  const query = { ...Object.fromEntries(given), ...text.query }
  return on.map(({ level, type = '{resourceType}' }) => {
    const place = { system: '', type: `/${type}`, instance: `/${type}/{id}` }[level]
    const texts = Object.fromEntries(methods.map((method) => [method, { ...text, query }]))
    return { path: `${FHIR}${place}/$${name}`, methods, texts }
  })
}

const PATH_PARAMETERS: Readonly<Record<string, string>> = {
  resourceType: 'A resource type',
  target: 'The resource type that is searched',
  versionId: 'Id of a version',
  member: 'Id of the ProjectMembership',
  login: 'Id of the sign-in',
  clientId: 'Id of the client',
  vid: 'Id of the version',
  secret: 'The secret of the link',
  file: 'Name of the file',
}

function describePathParameters(path: string): Record<string, object> {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name)
  if (names.length === 0) return {}
  return {
    parameters: names.map((name) => ({
      name,
      in: 'path',
      required: true,
      description: PATH_PARAMETERS[name] ?? 'An id',
      schema:
        name === 'resourceType' || name === 'target' ? refTo('ResourceType') : { type: 'string' },
    })),
  }
}

function describeCall(path: string, method: string, access: Access, words: CallText): object {
  const { summary, description, query = {}, ...text } = words
  const isOperation = path.includes('$')
  const hasBody = method === 'POST' || method === 'PUT' || method === 'PATCH'
  // A POST of an operation sends its inputs as Parameters.
  const body =
    text.body ?? (isOperation && Object.keys(query).length > 0 ? 'Parameters' : undefined)
  const inUrl = isOperation && method === 'POST' ? [] : Object.entries(query).filter(fitsUrl)
  return {
    operationId: `${method.toLowerCase()}${path.replace(/[^A-Za-z0-9]+/g, '-')}`.replace(/-$/, ''),
    summary,
    description: `${description ?? `${summary}.`}${describeInputs(isOperation && method === 'POST' ? query : {})}`,
    tags: [chooseTag(path)],
    ...describeSecurity(access),
    ...(inUrl.length > 0 ? { parameters: inUrl.map(queryParameter) } : {}),
    ...(hasBody && body !== undefined
      ? { requestBody: { content: describeContent(path, method, body, text.example) } }
      : {}),
    responses: {
      [text.status ?? 200]: {
        description: 'Done',
        ...(text.answer === undefined
          ? {}
          : { content: describeContent(path, 'answer', text.answer, text.answers) }),
      },
      '4XX': { $ref: '#/components/responses/Refused' },
      default: { $ref: '#/components/responses/Refused' },
    },
  }
}

/** Returns the inputs of an operation as a list, since Parameters have no schema per operation. */
function describeInputs(query: FieldTexts): string {
  const lines = Object.entries(query).map(([name, text]) => `\n- \`${name}\`, ${text}`)
  return lines.length === 0 ? '' : `\n\nIts parameters:\n${lines.join('')}`
}

/** Returns the exceptions from bearer tokens, the default of the description. */
function describeSecurity(access: Access): object {
  if (access === 'secret') return { security: [{ basic: [] }, { bearer: [] }] }
  return isOpen(access) ? { security: [] } : {}
}

/** Other inputs of an operation need a POST. */
function fitsUrl([name, text]: readonly [string, string]): boolean {
  return !name.includes('.') && !/^(object|resource|part)/.test(text)
}

function queryParameter([name, text]: readonly [string, string]): object {
  const { required, description, ...schema } = parseFieldText(text)
  return { name, in: 'query', ...(required ? { required } : {}), description, schema }
}

/** Parses `text!*: Description` to a schema. */
function parseFieldText(
  text: string,
): Schema & { readonly required: boolean; readonly description: string } {
  const [, type = '', mark, many, description = ''] = /^(\w+)(!?)(\*?): (.*)$/s.exec(text) ?? []
  const required = mark === '!'
  if (type === 'list') return { type: 'array', items: {}, description, required }
  const names: Readonly<Record<string, string>> = {
    flag: 'boolean',
    whole: 'integer',
    text: 'string',
    reference: 'string',
    token: 'string',
  }
  const schema = { type: names[type] ?? 'object' }
  return { ...(many ? { type: 'array', items: schema } : schema), description, required }
}

function describeContent(
  path: string,
  method: string,
  what: FieldTexts | string,
  example: unknown,
): Schema {
  const shown = example === undefined ? {} : { example }
  if (typeof what === 'string' && what.includes('/')) return { [what]: shown }
  return { [mediaType(path, method, what)]: { schema: describeSchema(what), ...shown } }
}

/** Registration is JSON by RFC 7591. */
const FORMS = /^\/oauth2\/(?!register$)|\/_search$/

function mediaType(path: string, method: string, what: FieldTexts | string): string {
  if (what === 'JsonPatch') return 'application/json-patch+json'
  const isForm = FORMS.test(path)
  if (isForm && method !== 'answer') return 'application/x-www-form-urlencoded'
  const isResource = typeof what === 'string' && what !== 'object'
  return path.startsWith(FHIR) && isResource ? 'application/fhir+json' : 'application/json'
}

function describeSchema(what: FieldTexts | string): Schema {
  if (what === 'object') return { type: 'object' }
  if (typeof what === 'string') return refTo(what)
  const fields = Object.entries(what).map(([name, text]) => [name, parseFieldText(text)] as const)
  const required = fields.filter(([, field]) => field.required).map(([name]) => name)
  return {
    type: 'object',
    ...(required.length > 0 ? { required } : {}),
    properties: Object.fromEntries(
      fields.map(([name, { required: _, ...field }]) => [name, field]),
    ),
  }
}

function chooseTag(path: string): string {
  if (path.startsWith(`${FHIR}/Bot/`) || /^\/(webhook|mcp|cds-services)(\/|$)/.test(path))
    return 'bots'
  if (path.startsWith(`${FHIR}/job/`) || path.startsWith(`${FHIR}/AsyncJob/`)) return 'jobs'
  if (path.startsWith(FHIR)) return path.includes('$') ? 'operations' : 'fhir'
  if (/^\/(admin|scim|email)\//.test(path)) return 'admin'
  if (/^\/(auth|oauth2?|\.well-known)(\/|$)/.test(path)) return 'auth'
  return 'service'
}

// JSON Schemas of all resource and data types, from the definitions of the standard. Policies may hide elements of
// any reply, so only identifying elements are required.

function refTo(name: string): Schema {
  return { $ref: `#/components/schemas/${name}` }
}

/**
 * Returns schemas by name: `Patient`, `PatientContact`, `HumanName`, and `Resource` for any type. Takes several turns
 * of the event loop.
 */
async function resourceSchemas(): Promise<Record<string, Schema>> {
  const schemas: Record<string, Schema> = {
    Resource: {
      oneOf: resourceTypes.map(refTo),
      discriminator: { propertyName: 'resourceType' },
    },
  }
  const waiting = [...resourceTypes]
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    if (schemas[name] !== undefined) continue
    await yieldTurn()
    const place = typeDefinition(name) ? { type: name, path: '' } : findBackbonePlace(name)
    if (place === undefined) throw new Error(`No type "${name}"`)
    const children = listChildren(place)
    schemas[name] = elementSchema(place, children)
    for (const { content } of children) {
      if (content.kind === 'object') waiting.push(graphqlTypeName(content.place))
    }
  }
  return schemas
}

function elementSchema({ type, path }: Place, children: readonly Child[]): Schema {
  const isResource = path === '' && typeDefinition(type)?.kind === 'resource'
  const description = shortText(type, path)
  const properties = Object.fromEntries(
    children.map((child) => [child.name, describeProperty(child)]),
  )
  return {
    type: 'object',
    ...(description === undefined ? {} : { description }),
    ...(isResource ? { required: ['resourceType'] } : {}),
    properties: { ...(isResource ? { resourceType: { const: type } } : {}), ...properties },
  }
}

function describeProperty({ content, isList, short }: Child): Schema {
  const one = contentSchema(content)
  const described = short === undefined ? {} : { description: short }
  return isList ? { type: 'array', items: one, ...described } : { ...one, ...described }
}

const NUMBERS: ReadonlyMap<string, string> = new Map([
  ['integer', 'integer'],
  ['positiveInt', 'integer'],
  ['unsignedInt', 'integer'],
  ['decimal', 'number'],
  ['boolean', 'boolean'],
])

function contentSchema(content: Child['content']): Schema {
  if (content.kind === 'resource') return refTo('Resource')
  if (content.kind === 'object') return refTo(graphqlTypeName(content.place))
  return { type: NUMBERS.get(content.code) ?? 'string' }
}
