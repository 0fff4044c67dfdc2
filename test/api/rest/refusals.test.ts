/** Requests rejected before any lookup, and response formats. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'

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
