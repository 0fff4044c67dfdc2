import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { aPatient } from '../../../fixtures/resources.ts'

interface Bundle {
  readonly entry: readonly { readonly response: { readonly status: string } }[]
}

const LARGEST = 40_000
const botica = await openBotica(t, {
  env: {
    MAX_BODY_BYTES: '20000',
    MAX_BUNDLE_BYTES: String(LARGEST),
    MAX_BATCH_ENTRIES: '20',
    MAX_TRANSACTION_WRITES: '10',
  },
})
const { client } = await botica.createMember()

const post = { request: { method: 'POST', url: 'Patient' }, resource: aPatient() }
const get = { request: { method: 'GET', url: 'Patient/x' } }
const aBundle = (type: string, entry: readonly unknown[]) => ({
  resourceType: 'Bundle',
  type,
  entry,
})
/** Returns a bundle of exactly this many bytes of JSON. */
function sized(bytes: number): string {
  const bundle = (text: string) =>
    JSON.stringify(
      aBundle('batch', [
        { ...post, resource: { ...post.resource, language: 'en', name: [{ text }] } },
      ]),
    )
  return bundle('x'.repeat(bytes - bundle('').length))
}
const json = { 'Content-Type': 'application/fhir+json' }

t.test('accepts bundles above the body limit up to the bundle limit', async (t) => {
  t.equal((await client.post('', sized(LARGEST), json)).status, 200)
  const over = await client.post('', sized(LARGEST + 1), json)
  t.equal(over.status, 413)
  t.match(over.body, { id: 'too-large', issue: [{ code: 'too-long' }] })
  const text = 'x'.repeat(20_000)
  t.equal((await client.post('Patient', aPatient({ name: [{ text }] }))).status, 413)
})

const counts: [string, readonly unknown[], number][] = [
  ['batch', Array(20).fill(get), 200],
  ['batch', Array(21).fill(get), 400],
  ['transaction', Array(10).fill(post), 200],
  ['transaction', Array(11).fill(post), 400],
]
for (const [type, entry, status] of counts) {
  t.test(`returns ${status} for a ${type} of ${entry.length} entries`, async (t) => {
    const answer = await client.post('', aBundle(type, entry))
    t.equal(answer.status, status)
    if (status === 400) t.match(answer.body, { issue: [{ code: 'too-costly' }] })
  })
}

t.test('limits the resources read by a bundle to the bundle size', async (t) => {
  const patient = await client.create(aPatient({ name: [{ text: 'x'.repeat(15_000) }] }))
  const entry = Array(4).fill({ request: { method: 'GET', url: `Patient/${patient.id}` } })
  const batch = await client.post<Bundle>('', aBundle('batch', entry))
  const answers = batch.body.entry.map(({ response }) => response.status)
  t.same(answers.sort(), ['200', '200', '400', '400'])
  t.match(batch.text, /The entries of a bundle may read 40000 bytes/)
  t.match(await client.post('', aBundle('transaction', entry)), {
    status: 400,
    body: { issue: [{ code: 'too-costly' }] },
  })
  t.equal((await client.post('', aBundle('transaction', entry.slice(2)))).status, 200)
})

t.test('rejects a bundle inside a bundle', async (t) => {
  const inner = { request: { method: 'POST', url: '' }, resource: aBundle('batch', [get]) }
  const answer = await client.post('', aBundle('transaction', [inner]))
  t.equal(answer.status, 400)
  t.match(answer.text, 'Nested bundles are not allowed')
  t.match(answer.body, {
    issue: [{ expression: ['Bundle.entry[0]', 'Bundle.entry[0].request.url'] }],
  })
})

interface Entry {
  readonly response: { readonly status: string; readonly location?: string; outcome?: Resource }
  readonly resource?: Resource
}

for (const type of ['batch', 'transaction']) {
  t.test(`applies Prefer: return to the entries of a ${type}`, async (t) => {
    const send = async (prefer: string) => {
      const headers = { Prefer: prefer }
      const answer = await client.post<{ entry: Entry[] }>('', aBundle(type, [post]), headers)
      t.equal(answer.headers.get('preference-applied'), prefer)
      t.match(answer.body.entry[0]?.response, { status: '201', location: /^Patient\// })
      return answer.body.entry[0]
    }
    t.match((await send('return=representation'))?.resource, { resourceType: 'Patient' })
    const minimal = await send('return=minimal')
    t.notOk(minimal?.resource)
    t.notOk(minimal?.response.outcome)
    const told = await send('return=OperationOutcome')
    t.notOk(told?.resource)
    t.match(told?.response.outcome, { resourceType: 'OperationOutcome', id: 'created' })
  })
}
