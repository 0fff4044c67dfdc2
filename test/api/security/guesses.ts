/**
 * Probes that guess a value of a stored resource through everything that evaluates resources; right
 * and wrong guesses must get indistinguishable responses.
 */

import type { Answer, Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

export interface Target {
  readonly type: string
  readonly id: string
  readonly pointer: string
  readonly path: string
  readonly value: string
  /** A string element that any member may change. */
  readonly free: string
}

interface Guess extends Target {
  readonly client: Client
  readonly guess: string
  readonly profile: string
  readonly plan: string
  readonly graph: string
}

type Probe = (guess: Guess) => Promise<Answer<unknown>>
const holds = ({ path, guess }: Guess) => `${path}.startsWith('${guess}')`
const code = ({ pointer }: Target) => pointer.split('/').at(-1) ?? ''
const query = (text: string) => encodeURIComponent(text)
const place = ({ type, id }: Target) => `${type}/${id}`

const search =
  (build: (name: string, guess: string, asked: Guess) => string): Probe =>
  (asked) =>
    asked.client.get(build(code(asked), query(asked.guess), asked))

const fhirPathPatch = (asked: Guess) => ({
  resourceType: 'Parameters',
  parameter: [
    {
      name: 'operation',
      part: [
        { name: 'type', valueCode: 'replace' },
        { name: 'path', valueString: `${asked.type}.where(${holds(asked)}).${asked.free}` },
        { name: 'value', valueString: 'en' },
      ],
    },
  ],
})
const jsonPatch = ({ pointer, guess, value, free }: Guess) => [
  { op: 'test', path: pointer, value: value.startsWith(guess) ? value : guess },
  { op: 'add', path: `/${free}`, value: 'en' },
]

export const REST: Readonly<Record<string, Probe>> = {
  search: search((name, guess, { type }) => `${type}?${name}=${guess}`),
  'search by modifier': search((name, guess, { type }) => `${type}?${name}:contains=${guess}`),
  'search by prefix parameter': search((_name, guess, { type }) => `${type}?guess=${guess}`),
  'search by post': ({ client, type, ...asked }) =>
    client.post(`${type}/_search`, `${code({ type, ...asked })}=${query(asked.guess)}`, {
      'Content-Type': 'application/x-www-form-urlencoded',
    }),
  _filter: search((name, guess, { type }) => `${type}?_filter=${query(`${name} sw "`)}${guess}"`),
  _content: search((_name, guess, { type }) => `${type}?_content=${guess}`),
  _text: search((_name, guess, { type }) => `${type}?_text=${guess}`),
  _sort: search((name, guess, { type }) => `${type}?_sort=${name}&${name}=${guess}`),
  _explain: search((name, guess, { type }) => `${type}?${name}=${guess}&_explain=true`),
  chain: search((name, guess, { type }) => `Provenance?target:${type}.${name}=${guess}`),
  _has: search((name, guess) => `Basic?_has:Provenance:target:${name}=${guess}`),
  history: search((name, guess, { type, id }) => `${type}/${id}/_history?${name}=${guess}`),
  read: search((name, guess, { type, id }) => `${type}/${id}?${name}=${guess}&_elements=${name}`),
  'JSON Patch': (asked) => asked.client.patch(place(asked), jsonPatch(asked)),
  'conditional JSON Patch': (asked) =>
    asked.client.patch(`${asked.type}?_id=${asked.id}`, jsonPatch(asked)),
  'conditional JSON Patch by the value': (asked) =>
    asked.client.patch(`${asked.type}?${code(asked)}=${query(asked.guess)}`, jsonPatch(asked)),
  'FHIRPath Patch': (asked) =>
    asked.client.patch(place(asked), fhirPathPatch(asked), {
      'Content-Type': 'application/fhir+json',
    }),
  'copying patch': (asked) =>
    asked.client.patch(place(asked), [
      { op: 'copy', from: asked.pointer, path: `/${asked.free}` },
      { op: 'test', path: `/${asked.free}`, value: asked.guess },
    ]),
  'conditional create': (asked) =>
    asked.client.post(
      'Basic',
      { resourceType: 'Basic', code: { text: 'x' } },
      { 'If-None-Exist': `_has:Provenance:target:${code(asked)}=${query(asked.guess)}` },
    ),
  'conditional update': (asked) =>
    asked.client.put(`${asked.type}?${code(asked)}=${query(asked.guess)}`, {
      resourceType: asked.type,
    }),
  'conditional delete': (asked) =>
    asked.client.del(`${asked.type}?${code(asked)}=${query(asked.guess)}`),
  batch: (asked) =>
    asked.client.post('', {
      resourceType: 'Bundle',
      type: 'batch',
      entry: [
        {
          request: { method: 'GET', url: `${asked.type}?${code(asked)}=${query(asked.guess)}` },
        },
        { request: { method: 'DELETE', url: `Basic?_content=${query(asked.guess)}` } },
      ],
    }),
  'search of the system': (asked) =>
    asked.client.post('_search', `_type=${asked.type}&${code(asked)}=${query(asked.guess)}`, {
      'Content-Type': 'application/x-www-form-urlencoded',
    }),
  'claim of a profile': async (asked) => {
    const { body } = await asked.client.get<Raw>(place(asked))
    return asked.client.put(place(asked), {
      ...body,
      meta: { profile: [asked.profile] },
    })
  },
}

const graphql = (asked: Guess, text: string) =>
  asked.client.post('$graphql', { query: text }, JSON_TYPE)
const JSON_TYPE = { 'Content-Type': 'application/json' }
const typeFilter = ({ type, guess, ...asked }: Guess) =>
  query(`${type}?${code({ type, ...asked })}=${guess}`)

/** REST interactions by path, with their probes or the reason for having none. */
export const INTERACTIONS: Readonly<Record<string, readonly string[] | string>> = {
  '/fhir/R4': ['batch'],
  '/fhir/R4/_history': 'evaluates nothing',
  '/fhir/R4/_search': ['search of the system'],
  '/fhir/R4/metadata': 'shows a constant',
  '/fhir/R4/{resourceType}': ['search', '_filter', 'conditional create', 'conditional JSON Patch'],
  '/fhir/R4/{resourceType}/_search': ['search by post'],
  '/fhir/R4/{resourceType}/_history': 'evaluates nothing',
  '/fhir/R4/{resourceType}/{id}': ['read', 'JSON Patch', 'FHIRPath Patch', 'claim of a profile'],
  '/fhir/R4/{resourceType}/{id}/_history': ['history'],
  '/fhir/R4/{resourceType}/{id}/_history/{versionId}': 'evaluates nothing',
  '/fhir/R4/{resourceType}/{id}/{target}': 'is a search of the type, with one more parameter',
  '/fhir/R4/{resourceType}/{id}/{target}/_search': 'is a search of the type',
  '/fhir/R4/job/{id}/status': 'shows a job',
  '/fhir/R4/job/{id}/result': 'shows the answer of an interaction that is listed here',
}

/** Other routes for members, which evaluate no FHIR resource by caller input. */
export const ROUTES = [
  '/auth/changepassword',
  '/auth/me',
  '/auth/mfa/disable',
  '/auth/mfa/enroll',
  '/auth/mfa/status',
  '/auth/revoke',
  // Prefetch templates are for administrators, and their requests are FHIR requests of the caller.
  '/cds-services',
  '/cds-services/:id',
  '/cds-services/:id/feedback',
  '/keyvalue/v1/:key',
  // Each tool is a FHIR request, which the probes send themselves.
  '/mcp',
  '/oauth2/introspect',
  '/oauth2/logout',
  '/oauth2/revoke',
  '/oauth2/userinfo',
  '/storage/:id/:vid',
  '/webhook/:id',
]

/** Operations that evaluate resources chosen by the caller. */
export const EVALUATING: Readonly<Record<string, readonly Probe[]>> = {
  apply: [
    async ({ client, plan, type, id }) => {
      const applied = await client.post(`PlanDefinition/${plan}/$apply`, {
        resourceType: 'Parameters',
        parameter: [{ name: 'subject', valueString: `${type}/${id}` }],
      })
      // The RequestGroup shows whether the condition was true.
      if (applied.status !== 200) return applied
      const plans = `instantiates-canonical=PlanDefinition/${plan}`
      return client.get(`RequestGroup?${plans}&_elements=action`)
    },
  ],
  csv: [
    search((name, guess, { type }) => `${type}/$csv?_fields=id,${name}&${name}=${guess}`),
    search((name, guess, { type, id }) => `${type}/$csv?_fields=${name}&_id=${id}&x=${guess}`),
  ],
  everything: [search((name, guess, { type, id }) => `${type}/${id}/$everything?${name}=${guess}`)],
  export: [
    ({ client, ...asked }) =>
      client.get(`$export?_type=${asked.type}&_typeFilter=${typeFilter({ client, ...asked })}`),
  ],
  graph: [
    ({ client, graph, ...asked }) => client.get(`${asked.type}/${asked.id}/$graph?graph=${graph}`),
  ],
  graphql: [
    (asked) => graphql(asked, `{ ${asked.type}List(${code(asked)}: "${asked.guess}") { id } }`),
    (asked) => {
      const expression = holds({ ...asked, path: `%resource.${asked.path}` })
      const field = `extension(fhirpath: ${JSON.stringify(expression)}) { url }`
      return graphql(asked, `{ ${asked.type}(id: "${asked.id}") { id ${field} } }`)
    },
    (asked) => {
      const field = 'identityProvider(clientSecret: "'
      return graphql(
        asked,
        `{ ${asked.type}(id: "${asked.id}") { id ${field}${asked.guess}") { clientId } } }`,
      )
    },
  ],
  extract: [
    (asked) =>
      asked.client.post('QuestionnaireResponse/$extract', {
        resourceType: 'Parameters',
        parameter: [
          {
            name: 'questionnaire-response',
            resource: { resourceType: 'QuestionnaireResponse', status: 'completed' },
          },
          { name: 'questionnaire', resource: createQuestionnaire(asked) },
        ],
      }),
  ],
  validate: [
    (asked) => asked.client.get(`${place(asked)}/$validate?profile=${query(asked.profile)}`),
    (asked) =>
      asked.client.post(`${place(asked)}/$validate`, {
        resourceType: 'Parameters',
        parameter: [{ name: 'profile', valueUri: asked.profile }],
      }),
  ],
}

/** Its template shows whether the search finds the guessed value. */
function createQuestionnaire({ type, guess, ...asked }: Guess): object {
  const extract = 'http://hl7.org/fhir/uv/sdc/StructureDefinition/sdc-questionnaire-templateExtract'
  const expression = `${type}?${code({ type, ...asked })}=${query(guess)}`
  const filled = { url: `${extract}Value`, valueString: '%x.entry.count().toString()' }
  return {
    resourceType: 'Questionnaire',
    status: 'active',
    contained: [{ resourceType: 'Basic', id: 'a', code: { _text: { extension: [filled] } } }],
    extension: [
      {
        url: 'http://hl7.org/fhir/StructureDefinition/variable',
        valueExpression: { name: 'x', language: 'application/x-fhir-query', expression },
      },
      { url: extract, extension: [{ url: 'template', valueReference: { reference: '#a' } }] },
    ],
  }
}

/** Operations that evaluate no stored resource by an expression, search or profile of the caller. */
export const OTHERS: Readonly<Record<string, string>> = {
  book: 'books a Slot by its id',
  'bulk-status': 'searches Agents, as the search does',
  cancel: 'ends a job or an Appointment by its id',
  clone: 'is for administrators',
  confirm: 'books an Appointment by its id',
  'dead-letters': 'is for administrators',
  deploy: 'stores code',
  diff: 'reads the code of a Bot',
  discard: 'is for administrators',
  docref: 'searches DocumentReferences of a patient',
  document: 'follows the references of a Composition',
  'dry-run': 'is for administrators',
  events: 'shows the events of a Subscription, which matched as all events do',
  execute: 'runs a bot, whose requests come through REST',
  expand: 'reads terminology',
  'expand-profile': 'reads StructureDefinitions',
  explain: 'is for administrators',
  expunge: 'is for administrators',
  'fetch-logs': 'asks the program of an Agent',
  find: 'reads Schedules and Slots',
  hold: 'books a Slot by its id',
  import: 'stores its input',
  init: 'is for super administrators',
  lastn: 'searches Observations of a patient',
  logs: 'is for administrators',
  lookup: 'reads terminology',
  match: 'compares Patients with a given one, as they are read',
  'member-match': 'compares Patients with a given one, as they are read',
  messages: 'is for administrators',
  meta: 'shows meta',
  'meta-add': 'changes meta',
  'meta-delete': 'changes meta',
  promote: 'moves a label of a Bot by its name',
  'presigned-url': 'signs an address of a Binary by its id',
  push: 'finds a Device by an id or a search, as the search does',
  redeliver: 'is for administrators',
  reindex: 'is for administrators',
  releases: 'lists the history of a Bot',
  'reload-config': 'asks the program of an Agent',
  replay: 'is for administrators',
  resend: 'is for administrators',
  rollback: 'moves the live label of a Bot',
  'rotate-secret': 'makes a secret',
  runs: 'is for administrators',
  'set-accounts': 'is for administrators',
  'smart-launch': 'makes a launch',
  stats: 'asks the program of an Agent',
  status: 'shows the state of a Subscription or an Agent',
  subsumes: 'reads terminology',
  summary: 'collects a patient’s records',
  translate: 'reads terminology',
  'update-email': 'changes an address',
  upgrade: 'asks the program of an Agent',
  'validate-code': 'reads terminology',
  versions: 'shows a constant',
  'get-ws-binding-token': 'makes a token',
}

export const PROBES = [
  ...Object.entries(REST),
  ...Object.entries(EVALUATING).flatMap(([name, probes]) =>
    probes.map((probe, i) => [`$${name} ${i + 1}`, probe] as const),
  ),
]

/** Creates definitions with the guess; undefined for a caller that may not write them. */
export async function prepared(client: Client, target: Target, guess: string): Promise<Guess> {
  const asked = { ...target, client, guess, profile: '', plan: 'none', graph: 'none' }
  const name = `Guess${Math.random().toString(36).slice(2)}`
  const url = `https://example.org/${name}`
  const constraint = { key: 'g-1', severity: 'error', human: 'guess', expression: holds(asked) }
  const made = async (resource: Resource) => {
    const { body } = await client.post<Raw>(resource.resourceType, resource)
    return String(body.id ?? 'none')
  }
  const [, plan] = await Promise.all([
    made({
      resourceType: 'StructureDefinition',
      url,
      name,
      status: 'active',
      kind: 'resource',
      abstract: false,
      type: target.type,
      baseDefinition: `http://hl7.org/fhir/StructureDefinition/${target.type}`,
      derivation: 'constraint',
      differential: {
        element: [{ id: target.type, path: target.type, constraint: [constraint] }],
      },
    }),
    made({
      resourceType: 'PlanDefinition',
      status: 'active',
      action: [
        {
          title: 'guessed',
          condition: [
            {
              kind: 'applicability',
              expression: { language: 'text/fhirpath', expression: holds(asked) },
            },
          ],
        },
      ],
    }),
    made({
      resourceType: 'GraphDefinition',
      name,
      status: 'active',
      start: target.type,
      link: [{ target: [{ type: target.type, params: `${code(asked)}=${guess}&_id={ref}` }] }],
    }),
  ])
  return { ...asked, profile: url, plan, graph: name }
}

/** Returns the response without the guess, ids, times and versions. */
export function normalizeAnswer(
  { status, text }: Answer<unknown>,
  { guess, profile, graph }: Guess,
): string {
  return `${status} ${text}`
    .replaceAll(profile, 'PROFILE')
    .replaceAll(graph, 'GRAPH')
    .replaceAll(guess, 'GUESS')
    .replaceAll(query(guess), 'GUESS')
    .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'ID')
    .replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, 'TIME')
    .replaceAll(/"versionId":"\d+"/g, 'VERSION')
}
