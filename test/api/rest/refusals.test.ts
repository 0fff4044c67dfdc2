/** Requests rejected before any lookup, and response formats. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

type Outcome = Resource & {
  readonly issue: readonly { code: string; details: { text: string }; expression?: string[] }[]
}
const json = { 'Content-Type': 'application/fhir+json' }
const refusals: [string, string, string, number, string, unknown?, Record<string, string>?][] = [
  ['an unknown resource type', 'GET', 'Foo/1', 400, 'Unknown resource type'],
  ['an unknown type to create', 'POST', 'Foo', 400, 'Unknown resource type', {}],
  ['an unknown type in a compartment', 'GET', 'Patient/1/Foo', 400, 'Unknown resource type'],
  ['an unknown id', 'GET', 'Patient/nobody', 404, 'Not found'],
  ['an illegal id', 'GET', 'Patient/a_b', 404, 'Not found'],
  ['an unknown path', 'GET', 'Patient/1/2/3/4', 404, 'Not found'],
  ['an unknown operation', 'POST', 'Patient/$nothing', 404, 'Not found', {}],
  ['a version that is not a number', 'GET', 'Patient/1/_history/x', 404, 'Not found'],
  ['a method of no route', 'PUT', 'Patient/1/_history', 405, 'Method not allowed', {}],
  ['broken JSON', 'POST', 'Patient', 400, 'Content could not be parsed', '{"a', json],
  ['an empty body', 'POST', 'Patient', 400, 'Content could not be parsed', '', json],
  ['a list', 'POST', 'Patient', 400, 'Incorrect resource type', '[]', json],
  ['a number', 'POST', 'Patient', 400, 'Incorrect resource type', '1', json],
  ['a type in null', 'POST', 'Patient', 400, 'Incorrect resource', '{"resourceType":null}', json],
  ['NUL', 'POST', 'Patient', 400, 'Null bytes', '{"resourceType":"Patient","id":"\\u0000"}', json],
  [
    'deep JSON',
    'POST',
    'Patient',
    400,
    'JSON is nested',
    `${'['.repeat(70)}${']'.repeat(70)}`,
    json,
  ],
  [
    'XML',
    'POST',
    'Patient',
    415,
    'Unsupported',
    '<a/>',
    { 'Content-Type': 'application/fhir+xml' },
  ],
  [
    'another charset',
    'POST',
    'Patient',
    415,
    'Unsupported',
    '{}',
    { 'Content-Type': 'application/fhir+json; charset=latin1' },
  ],
  ['a wish for XML', 'GET', 'Patient/1', 406, 'Only JSON', undefined, { Accept: 'text/turtle' }],
  [
    'another version of FHIR',
    'POST',
    'Patient',
    415,
    'Unsupported',
    '{}',
    { 'Content-Type': 'application/fhir+json; fhirVersion=3.0' },
  ],
  [
    'a wish for another version of FHIR',
    'GET',
    'Patient/1',
    406,
    'Only FHIR 4.0',
    undefined,
    { Accept: 'application/fhir+json; fhirVersion="5.0"' },
  ],
  ['an odd _pretty', 'GET', 'Patient/1?_pretty=some', 400, '_pretty must be true or false'],
  ['two formats', 'GET', 'Patient/1?_format=json&_format=xml', 400, '_format may be given once'],
  ['two sizes', 'GET', 'Patient?_count=1&_count=2', 400, '_count may be given once'],
  ['two totals', 'GET', 'Patient?_total=none&_total=accurate', 400, '_total may be given once'],
  ['an empty sort rule', 'GET', 'Patient?_sort=-', 400, 'A sort rule needs'],
  ['an unknown _format', 'GET', 'Patient/1?_format=xml', 406, 'Unsupported _format'],
]
for (const [name, method, path, status, text, body, headers] of refusals) {
  t.test(`returns ${status} and an outcome for ${name}`, async (t) => {
    const answer = await send(method, path, body, headers)
    t.equal(answer.status, status)
    t.match(answer.body, { resourceType: 'OperationOutcome', issue: [{ severity: 'error' }] })
    t.ok(
      answer.body.issue[0]?.details.text.startsWith(text),
      answer.body.issue[0]?.details.text ?? '',
    )
    if (status === 405) t.equal(answer.headers.get('allow'), 'GET, HEAD')
  })
}

function send(method: string, path: string, body: unknown, headers?: Record<string, string>) {
  if (method === 'GET') return client.get<Outcome>(path, headers)
  if (method === 'PUT') return client.put<Outcome>(path, body, headers)
  return client.post<Outcome>(path, body, headers)
}

t.test('names the request in an outcome', async (t) => {
  const answer = await client.get('Patient/nobody')
  t.match(answer.body.extension, [
    { extension: [{ url: 'requestId', valueId: answer.headers.get('x-request-id') }] },
  ])
})

const accepted = [
  '*/*',
  'application/*',
  'text/json',
  'application/fhir+json; fhirVersion=4.0; charset=utf-8',
  'application/fhir+json; fhirVersion = "4.0"',
  'application/fhir+json; fhirVersion=4.0.1, application/fhir+json; fhirVersion=3.0',
  'application/fhir+json, */*; q=0.1',
  'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8',
]
for (const accept of accepted) {
  t.test(`returns FHIR JSON for Accept "${accept}"`, async (t) => {
    const { id } = await client.create(aPatient())
    const answer = await client.get(`Patient/${id}`, { Accept: accept })
    t.equal(answer.status, 200)
    t.match(answer.headers.get('content-type'), 'application/fhir+json')
  })
}

interface Answered {
  readonly status: number
  readonly body: Outcome
}

interface Batch extends Outcome {
  readonly entry: readonly [{ readonly response: { status: string; outcome: Outcome } }]
}

/** Sends each conditional interaction with these criteria, alone and in bundles. */
async function sendConditional(criteria: string): Promise<readonly Answered[]> {
  const patch = [{ op: 'remove', path: '/gender' }]
  const url = `Patient?${criteria}`
  const answers: Answered[] = [
    await client.post<Outcome>('Patient', aPatient(), { 'If-None-Exist': criteria }),
    await client.put<Outcome>(url, aPatient()),
    await client.patch<Outcome>(url, patch),
    await client.del<Outcome>(url),
  ]
  const binary = { resourceType: 'Binary', data: btoa(JSON.stringify(patch)) }
  const entries = [
    { request: { method: 'POST', url: 'Patient', ifNoneExist: criteria }, resource: aPatient() },
    { request: { method: 'PUT', url }, resource: aPatient() },
    { request: { method: 'PATCH', url }, resource: binary },
    { request: { method: 'DELETE', url } },
  ]
  const bundle = (type: string, entry: object) =>
    client.post<Batch>('', { resourceType: 'Bundle', type, entry: [entry] })
  for (const entry of entries) {
    const { status, outcome } = (await bundle('batch', entry)).body.entry[0].response
    answers.push({ status: Number(status), body: outcome }, await bundle('transaction', entry))
  }
  return answers
}

/** Creates equal patients, and requires that no conditional interaction with the parameter changes them. */
async function rejectsInConditions(
  t: Test,
  [name, value]: readonly [string, string],
  text: string,
) {
  const mrn = randomUUID()
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] })
  const made = [await client.create(patient), await client.create(patient)]
  const answers = await sendConditional(`identifier=${MRN_SYSTEM}|${mrn}&${name}=${value}`)
  for (const { status, body } of answers) {
    t.equal(status, 400)
    t.equal(body.issue[0]?.details.text, text)
    t.equal(body.issue[0]?.expression?.at(-1), name)
  }
  for (const { id } of made) {
    t.equal((await client.get(`Patient/${id}`)).headers.get('etag'), 'W/"1"')
  }
}

for (const name of ['identifier', 'organization.name', '_has:Observation:subject:code']) {
  t.test(`rejects conditions with ${name} without a value`, async (t) => {
    for (const value of ['', ',']) {
      await rejectsInConditions(t, [name, value], `Search parameter ${name} needs a value`)
    }
  })
}

const responseParameters = [
  ['_offset', '1'],
  ['_offset', '0'],
  ['_cursor', 'x'],
  ['_include', '*'],
  ['_revinclude:iterate', '*'],
] as const
for (const [name, value] of responseParameters) {
  t.test(`rejects conditions with ${name}=${value}`, async (t) => {
    await rejectsInConditions(t, [name, value], `${name} does not apply to a condition`)
  })
}
