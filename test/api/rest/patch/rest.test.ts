import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

const operation = (type: string, path: string, ...others: Record<string, unknown>[]) => ({
  name: 'operation',
  part: [{ name: 'type', valueCode: type }, { name: 'path', valueString: path }, ...others],
})
const parameters = (...parameter: unknown[]) => ({ resourceType: 'Parameters', parameter })
const toFemale = parameters(
  operation('replace', 'Patient.gender', { name: 'value', valueCode: 'female' }),
)

t.test('patches a resource by Parameters', async (t) => {
  const { id } = await client.create(aPatient({ gender: 'male' }))
  const answer = await client.patch(`Patient/${id}`, toFemale)
  t.equal(answer.status, 200)
  t.match(answer.body, { id, gender: 'female', meta: { versionId: '2' } })
  t.equal(answer.headers.get('etag'), 'W/"2"')
  t.match((await client.get(`Patient/${id}`)).body, { gender: 'female' })
})

t.test('returns 412 for a stale If-Match', async (t) => {
  const { id } = await client.create(aPatient({ gender: 'male' }))
  const stale = await client.patch(`Patient/${id}`, toFemale, { 'If-Match': 'W/"7"' })
  t.equal(stale.status, 412)
})

t.test('keeps a decimal when another element or its unit is patched', async (t) => {
  const text = JSON.stringify(
    anObservation('Patient/x', { valueQuantity: { value: 0, unit: 'g' } }),
  )
  const made = await client.post('Observation', text.replace('"value":0', '"value":1.00'), {
    'Content-Type': 'application/fhir+json',
  })
  const change = operation('replace', 'Observation.value.unit', {
    name: 'value',
    valueString: 'kg',
  })
  const answer = await client.patch(`Observation/${made.body.id}`, parameters(change))
  t.equal(answer.status, 200)
  t.match(answer.text, '"value":1.00,"unit":"kg"')
})

t.test('validates the result and stores nothing if it is invalid', async (t) => {
  const { id } = await client.create(aPatient({ gender: 'male' }))
  const wrong = operation('replace', 'Patient.gender', { name: 'value', valueInteger: 1 })
  const answer = await client.patch<OperationOutcome>(`Patient/${id}`, parameters(wrong))
  t.equal(answer.status, 400)
  t.same(answer.body.issue[0]?.expression, ['Patient.gender'])
  t.match((await client.get(`Patient/${id}`)).body, { gender: 'male', meta: { versionId: '1' } })
})

t.test('rejects an operation of which a part would be ignored', async (t) => {
  const { id } = await client.create(aPatient({ gender: 'male' }))
  const value = { name: 'value', valueCode: 'female' }
  const replace = (...parts: Record<string, unknown>[]) =>
    parameters(operation('replace', 'Patient.gender', ...parts))
  const cases: readonly (readonly [body: object, text: RegExp])[] = [
    [replace(value, { name: 'index', valueInteger: 1 }), /has no part "index"/],
    [replace(value, value), /has the same part twice/],
    [{ resourceType: 'Parameters', parameters: [] }, /Invalid additional property "parameters"/],
  ]
  for (const [body, text] of cases) {
    const answer = await client.patch(`Patient/${id}`, body)
    t.match(answer, { status: 400, body: { issue: [{ details: { text } }] } }, answer.text)
  }
  t.match((await client.get(`Patient/${id}`)).body, { gender: 'male' })
})

t.test('names the operation that fails, its path and its element', async (t) => {
  const { id } = await client.create(aPatient({ gender: 'male' }))
  const copies = Array.from({ length: 60 }, (_, i) => {
    return { op: 'copy', from: '/name', path: `/name/0/x${i}` }
  })
  const json = (path: string, value: string) => ({
    name: 'operation',
    part: [
      { name: 'op', valueCode: 'add' },
      { name: 'path', valueString: path },
      { name: 'value', valueString: value },
    ],
  })
  const good = { op: 'test', path: '/gender', value: 'male' }
  const cases: readonly (readonly [body: unknown, text: RegExp, expression?: string])[] = [
    [
      [good, { op: 'remove', path: '/photo/0/url' }],
      /1 \(\/photo\/0\/url\)/,
      'Patient.photo[0].url',
    ],
    [[{ op: 'add', path: '/gender/-', value: 1 }], /0 \(\/gender\/-\)/, 'Patient.gender'],
    [copies, /\(\/name\/0\/x\d+\) makes the copies of this patch too large/],
    [parameters(json('/gender', 'male')), /0 \(\/gender\) has a value that must be JSON/],
    [parameters(operation('add', 'Patient')), /0 \(Patient\) needs a name/],
    [parameters(operation('move', 'Patient.name')), /0 \(Patient.name\) needs a source/],
    [
      parameters(operation('replace', 'Patient.photo[0].url', { name: 'value', valueUrl: 'a' })),
      /0 \(Patient.photo\[0\].url\) selects nothing/,
      'Patient.photo[0].url',
    ],
  ]
  for (const [body, text, expression] of cases) {
    const answer = await client.patch<OperationOutcome>(`Patient/${id}`, body)
    t.equal(answer.status, 400)
    const [issue] = answer.body.issue
    t.match(issue, { details: { text } }, answer.text)
    if (expression !== undefined) t.same(issue?.expression, [expression])
  }
})

t.test('returns 400 for a path of unbounded cost', async (t) => {
  const { id } = await client.create(aPatient())
  const endless = operation('delete', '1.repeat($this + 1)')
  const answer = await client.patch<OperationOutcome>(`Patient/${id}`, parameters(endless))
  t.equal(answer.status, 400)
  t.equal(answer.body.issue[0]?.code, 'too-costly')
})

t.test('rejects patches of hidden elements', async (t) => {
  const { admin: stranger } = await botica.createTenant()
  const { id } = await client.create(aPatient({ gender: 'male' }))
  t.equal((await stranger.patch(`Patient/${id}`, toFemale)).status, 404)
})

t.test('accepts Parameters in a conditional patch', async (t) => {
  const value = randomUUID()
  const { id } = await client.create(aPatient({ gender: 'male', identifier: [{ value }] }))
  const answer = await client.patch(`Patient?identifier=${value}`, toFemale)
  t.equal(answer.status, 200)
  t.match(answer.body, { id, gender: 'female' })
})

for (const type of ['batch', 'transaction']) {
  t.test(`accepts Parameters in a patch entry of a ${type}`, async (t) => {
    const { id } = await client.create(aPatient({ gender: 'male' }))
    const answer = await client.post<Resource & { entry: { response: { status: string } }[] }>('', {
      resourceType: 'Bundle',
      type,
      entry: [{ request: { method: 'PATCH', url: `Patient/${id}` }, resource: toFemale }],
    })
    t.equal(answer.body.entry[0]?.response.status, '200')
    t.match((await client.get(`Patient/${id}`)).body, { gender: 'female' })
  })
}

t.test('patches platform types', async (t) => {
  const bot = await botica.admin.create({ resourceType: 'Bot', name: 'before' })
  const rename = operation('replace', 'Bot.name', { name: 'value', valueString: 'after' })
  const answer = await botica.admin.patch(`Bot/${bot.id}`, parameters(rename))
  t.match(answer.body, { name: 'after' })
})

t.test('lists both patch formats in the capability statement', async (t) => {
  t.same((await client.get<Resource>('metadata')).body.patchFormat, [
    'application/json-patch+json',
    'application/fhir+json',
  ])
})
