/**
 * Sends randomly damaged resources in every interaction, with random headers. No response may be
 * slow or a 5xx, and errors must be OperationOutcomes. TEST_SEED replaces the seed, TEST_CASES sends more; a failure prints the
 * smallest failing request.
 */
import { randomUUID } from 'node:crypto'
import fc from 'fast-check'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { caseCount } from '../../fixtures/policy/oracle.ts'
import { r4Examples } from '../../fixtures/resources.ts'

const SEED = Number(process.env.TEST_SEED ?? 20_261_121)
const RUNS = caseCount(500)
const ANSWER_MS = 60_000

const { baseUrl, admin } = await openBotica(t)
const samples = (await r4Examples()).filter((sample) => JSON.stringify(sample).length < 20_000)
const known = await admin.create({ resourceType: 'Patient', gender: 'other' })

type Json = null | boolean | number | string | Json[] | { [name: string]: Json }

const odd: fc.Arbitrary<Json> = fc.oneof(
  fc.constantFrom<Json>(null, true, -1, 0, 1e308, 0.1, '', ' ', '\u0000', '\ud800', '2024-13-45'),
  fc.constantFrom<Json>([], {}, [[]], [null], { reference: '' }, { coding: [{}] }, 'Patient?'),
  fc.constantFrom<Json>('urn:uuid:', '#', '../..', 'x'.repeat(70_000), "'; drop table version; --"),
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.double(),
  fc.jsonValue({ maxDepth: 3 }) as fc.Arbitrary<Json>,
)

interface Damage {
  readonly at: readonly number[]
  readonly how: 'replace' | 'remove' | 'wrap' | 'rename' | 'insert'
  readonly value: Json
  readonly name: string
}

const damage: fc.Arbitrary<Damage> = fc.record({
  at: fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 1, maxLength: 6 }),
  how: fc.constantFrom('replace', 'remove', 'wrap', 'rename', 'insert'),
  value: odd,
  name: fc.constantFrom(
    'id',
    'meta',
    'resourceType',
    'extension',
    '_x',
    'constructor',
    'contained',
  ),
})

function apply(resource: Json, { at, how, value, name }: Damage): Json {
  const [first = 0, ...rest] = at
  if (typeof resource !== 'object' || resource === null) return value
  const keys = Object.keys(resource)
  const key = keys[Math.floor(first * keys.length)]
  if (key === undefined) return value
  const copy: Json = Array.isArray(resource) ? [...resource] : { ...resource }
  const members = copy as { [name: string]: Json }
  const member = members[key] ?? null
  if (rest.length > 0 && typeof member === 'object' && member !== null) {
    members[key] = apply(member, { at: rest, how, value, name })
  } else if (how === 'replace') members[key] = value
  else if (how === 'remove') delete members[key]
  else if (how === 'wrap') members[key] = [member]
  else if (how === 'insert') members[name] = value
  else {
    delete members[key]
    members[name] = member
  }
  return copy
}

const body: fc.Arbitrary<Json> = fc
  .tuple(fc.constantFrom(...(samples as unknown as Json[])), fc.array(damage, { maxLength: 4 }))
  .map(([sample, damages]) => damages.reduce(apply, sample))

const id = fc.constantFrom(known.id, randomUUID(), 'x', '..', 'a'.repeat(65), '%00', '$validate')
const type = fc.constantFrom(
  'Patient',
  'Observation',
  'Bundle',
  'Project',
  'Binary',
  'Nothing',
  '$',
)
const query = fc.constantFrom(
  '',
  '?_id=x',
  '?name=%00',
  '?birthdate=gt',
  '?_count=-1',
  '?_sort=-nothing',
  '?subject:Patient.name=a',
  '?value-quantity=5||',
  '?_cursor=%25',
  '?identifier=%ED%A0%80',
  '?_include=*',
  '?code=a,,|,|b',
)
const path = fc
  .tuple(
    type,
    fc.option(id, { nil: '' }),
    fc.constantFrom('', '/_history', '/_history/1', '/$execute'),
    query,
  )
  .map(([name, of, tail, rest]) => `${name}${of === '' ? '' : `/${of}`}${tail}${rest}`)

const oddHeader = fc.constantFrom<Record<string, string>>(
  { 'If-Match': 'W/"1"' },
  { 'If-Match': '*,,"' },
  { 'If-None-Match': '*' },
  { 'If-None-Exist': 'identifier=' },
  { 'If-None-Exist': '&&=|' },
  { 'If-Modified-Since': 'yesterday' },
  { Prefer: 'return=minimal, handling=lenient' },
  { Prefer: ';;=' },
  { 'Content-Type': 'application/json-patch+json' },
  { 'Content-Type': 'application/fhir+json; charset=utf-16' },
  { 'Content-Type': 'x/' },
  { Accept: 'application/fhir+xml' },
  { Range: 'bytes=9-1' },
  { 'X-Medplum': 'extended' },
  { 'Idempotency-Key': 'k' },
)

const header = fc.oneof(
  { weight: 3, arbitrary: fc.constant<Record<string, string>>({}) },
  oddHeader,
)

const bundle = fc
  .tuple(
    fc.constantFrom('batch', 'transaction', 'history'),
    fc.array(
      fc.record({
        fullUrl: fc.constantFrom(
          'urn:uuid:1',
          `urn:uuid:${randomUUID()}`,
          '',
          'http://x/Patient/1',
        ),
        resource: body,
        request: fc.record({
          method: fc.constantFrom('POST', 'PUT', 'PATCH', 'DELETE', 'GET', 'BREW'),
          url: path,
        }),
      }),
      { maxLength: 4 },
    ),
  )
  .map(([kind, entry]) => ({ resourceType: 'Bundle', type: kind, entry }) as unknown as Json)

const patch = fc.array(
  fc.record({
    op: fc.constantFrom('add', 'replace', 'remove', 'move', 'copy', 'test', 'x'),
    path: fc.constantFrom('/gender', '/name/-', '/name/0/given', '', '/', '/~2', '/meta', 'x'),
    from: fc.constantFrom('/gender', '/name', ''),
    value: odd,
  }),
  { maxLength: 4 },
) as unknown as fc.Arbitrary<Json>

interface Request {
  readonly method: string
  readonly path: string
  readonly headers: Record<string, string>
  readonly body?: Json
}

const send = (method: string, to: fc.Arbitrary<string>, what?: fc.Arbitrary<Json>) =>
  fc.record({
    method: fc.constant(method),
    path: to,
    headers: header,
    ...(what === undefined ? {} : { body: what }),
  }) as fc.Arbitrary<Request>

const ofType = body.map((resource): [resource: Json, name: string] => {
  const name = resource instanceof Object && !Array.isArray(resource) && resource.resourceType
  const isType = typeof name === 'string' && /^[A-Za-z]{1,40}$/.test(name)
  return [resource, isType ? name : 'Patient']
})

const request: fc.Arbitrary<Request> = fc.oneof(
  // Damaged resources sent to the URL of their type are processed furthest.
  {
    weight: 4,
    arbitrary: fc.tuple(ofType, header).map(([[resource, name], headers]) => ({
      method: 'POST',
      path: name,
      headers,
      body: resource,
    })),
  },
  {
    weight: 2,
    arbitrary: fc.tuple(ofType, header, id).map(([[resource, name], headers, of]) => ({
      method: 'PUT',
      path: `${name}/${of}`,
      headers,
      body: typeof resource === 'object' ? ({ ...resource, id: of } as Json) : resource,
    })),
  },
  { weight: 2, arbitrary: send('POST', fc.constant(''), bundle) },
  { weight: 2, arbitrary: send('PATCH', fc.constant(`Patient/${known.id}`), patch) },
  send('POST', path, body),
  send('PUT', path, body),
  send('PATCH', path, body),
  send('GET', path),
  send('DELETE', path),
)

t.test(`answers damaged requests without a 5xx (TEST_SEED=${SEED})`, async (t) => {
  let sent = 0
  const seen = new Map<number, number>()
  const result = await fc.check(
    fc.asyncProperty(request, async ({ method, path, headers, body }) => {
      const answer = await fetch(new URL(path, `${baseUrl}fhir/R4/`), {
        method,
        redirect: 'manual',
        headers: {
          Authorization: `Bearer ${admin.token}`,
          ...(body === undefined ? {} : { 'Content-Type': 'application/fhir+json' }),
          ...headers,
        },
        signal: AbortSignal.timeout(ANSWER_MS),
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      })
      const text = await answer.text()
      sent++
      seen.set(answer.status, (seen.get(answer.status) ?? 0) + 1)
      if (answer.status >= 500) throw new Error(`${answer.status} ${text.slice(0, 300)}`)
      if (answer.status < 400) return
      const { resourceType } = JSON.parse(text) as { resourceType: string }
      if (resourceType !== 'OperationOutcome')
        throw new Error(`${answer.status} with ${resourceType}`)
    }),
    {
      seed: SEED,
      numRuns: RUNS,
    },
  )
  t.comment(`sent ${sent} requests: ${JSON.stringify(Object.fromEntries(seen))}`)
  t.notOk(result.failed, fc.defaultReportMessage(result) ?? 'no failure')
  t.ok((seen.get(201) ?? 0) > 0, 'accepts some of them')
  t.equal((await admin.get(`Patient/${known.id}`)).status < 500, true)
  t.equal((await fetch(`${baseUrl}healthcheck`)).status, 200)
})
