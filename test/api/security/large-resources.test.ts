/** Small changes of a large resource do not block others, and no resource grows without limit. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { watchTurns } from '../../fixtures/attacks/turns.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const LARGEST = 3_000_000
const botica = await openBotica(t, {
  // A test adds a trigger to the database, which is otherwise shared.
  env: { MAX_BODY_BYTES: String(LARGEST), DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const minimal = { Prefer: 'return=minimal' }
const byPath = { 'Content-Type': 'application/json-patch+json', ...minimal }

async function aLargePatient(): Promise<string> {
  const extension = Array.from({ length: 40_000 }, (_, i) => ({
    url: `http://example.org/${i}`,
    valueString: `some text ${i}`,
  }))
  // A FHIRPath Patch replaces an existing value.
  const patient = { resourceType: 'Patient', active: false, extension }
  const made = await admin.post('Patient', patient, minimal)
  if (made.status !== 201) throw new Error(made.text)
  return String(made.headers.get('location')).split('/').at(-3) ?? ''
}

const large = await aLargePatient()
const change = (value: boolean) => [{ op: 'add', path: '/active', value }]
const readVersion = async () => {
  const found = await admin.get<Resource>(`Patient?_id=${large}&_elements=active`)
  const { entry } = found.body as unknown as { entry: [{ resource: Resource }] }
  const { meta, active } = entry[0].resource
  return { version: Number(meta?.versionId), active }
}

type Ask = (value: boolean) => Promise<{ status: number; text: string }>

const CHANGES: Readonly<Record<string, Ask>> = {
  'a JSON Patch': (value) => admin.patch(`Patient/${large}`, change(value), byPath),
  'a FHIRPath Patch': (value) => admin.patch(`Patient/${large}`, aFhirPathPatch(value), minimal),
  'a conditional patch': (value) => admin.patch(`Patient?_id=${large}`, change(value), byPath),
  'a patch in a batch': (value) => admin.post('', aBundle('batch', value), minimal),
  'a patch in a transaction': (value) => admin.post('', aBundle('transaction', value), minimal),
}

function aFhirPathPatch(valueBoolean: boolean) {
  const part = [
    { name: 'type', valueCode: 'replace' },
    { name: 'path', valueString: 'Patient.active' },
    { name: 'value', valueBoolean },
  ]
  return { resourceType: 'Parameters', parameter: [{ name: 'operation', part }] }
}

function aBundle(type: string, value: boolean) {
  const data = btoa(JSON.stringify(change(value)))
  const resource = { resourceType: 'Binary', contentType: 'application/json-patch+json', data }
  const patch = { request: { method: 'PATCH', url: `Patient/${large}` }, resource }
  const before = { request: { method: 'POST', url: 'Basic' }, resource: aBasic(type) }
  return { resourceType: 'Bundle', type, entry: [before, patch] }
}

function aBasic(text: string) {
  return { resourceType: 'Basic', code: { text } }
}

for (const [name, ask] of Object.entries(CHANGES)) {
  t.test(`executes ${name} of a large resource once, in the thread`, async (t) => {
    const turns: number[] = []
    for (const value of [true, false]) {
      const before = await readVersion()
      const stop = watchTurns()
      const answer = await ask(value)
      turns.push(stop().longest)

      t.equal(answer.status, 200, answer.text.slice(0, 300))
      t.notMatch(answer.text, /"status":"[45]/)
      t.same(await readVersion(), { version: before.version + 1, active: value })
    }
    // Garbage collection may fall into one of the runs.
    t.ok(Math.min(...turns) < 40, `${turns} ms`)
  })
}

t.test('executes the other writes of a bundle once', async (t) => {
  for (const type of ['batch', 'transaction']) {
    const found = await admin.get<{ total: number }>(`Basic?code:text=${type}&_total=accurate`)
    t.equal(found.body.total, 2, type)
  }
})

t.test('stores a response for an Idempotency-Key wherever it was created', async (t) => {
  const key = { ...byPath, 'Idempotency-Key': 'large' }
  const first = await admin.patch(`Patient/${large}`, change(false), key)
  const { version } = await readVersion()
  const again = await admin.patch(`Patient/${large}`, change(false), key)
  t.equal(first.status, 200)
  t.equal(again.headers.get('etag'), first.headers.get('etag'))
  t.equal((await readVersion()).version, version)
})

t.test('runs a transaction with an Idempotency-Key once, in the thread', async (t) => {
  const { entry, ...bundle } = aBundle('transaction', true)
  const request = { method: 'POST', url: 'Basic', ifNoneExist: 'code:text=conditional' }
  const conditional = { request, resource: aBasic('conditional') }
  const sent = { ...bundle, entry: [conditional, ...entry] }
  const before = await readVersion()
  const key = { ...minimal, 'Idempotency-Key': randomUUID() }
  const first = await admin.post('', sent, key)
  t.equal(first.status, 200, first.text)
  t.notMatch(first.text, /"status":"[45]/)
  t.equal((await admin.post('', sent, key)).text, first.text)
  t.same(await readVersion(), { version: before.version + 1, active: true })
})

t.test('runs a request with a key again that lost its races in the thread', async (t) => {
  const mark = randomUUID()
  const run = (text: string) => botica.services.database.query({ text, values: [] })
  await run(`create function losing() returns trigger language plpgsql as $$ begin
    if strpos(new.content, '${mark}') > 0 then
      raise exception 'another change was first' using errcode = '40001';
    end if;
    return new;
  end $$`)
  await run(`create trigger losing before insert on version
    for each row execute function losing()`)
  const named = [{ op: 'add', path: '/name', value: [{ text: mark }] }]
  const data = btoa(JSON.stringify(named))
  const resource = { resourceType: 'Binary', contentType: 'application/json-patch+json', data }
  const entry = [{ request: { method: 'PATCH', url: `Patient/${large}` }, resource }]
  const send: readonly (() => ReturnType<typeof admin.get>)[] = [
    () => admin.patch(`Patient/${large}`, named, { ...byPath, 'Idempotency-Key': mark }),
    () =>
      admin.post(
        '',
        { resourceType: 'Bundle', type: 'transaction', entry },
        {
          ...minimal,
          'Idempotency-Key': mark,
        },
      ),
  ]
  for (const again of send) {
    const lost = await again()
    t.equal(lost.status, 409, lost.text)
    t.equal(lost.headers.get('retry-after'), '1')
  }
  await run('drop function losing cascade')
  for (const again of send) t.equal((await again()).status, 200)
})

t.test('returns rejections of the thread as those of the request', async (t) => {
  const wrong = await admin.patch(`Patient/${large}`, [{ op: 'remove', path: '/none' }])
  t.match(wrong, { status: 400, body: { resourceType: 'OperationOutcome' } })
  const late = await admin.patch(`Patient/${large}`, change(true), { 'If-Match': 'W/"1"' })
  t.equal(late.status, 412)
})

t.test('validates tens of thousands of answers to one question', async (t) => {
  const enableWhen = [{ question: 'a', operator: '=', answerInteger: -1 }]
  const url = 'http://example.org/Questionnaire/many'
  await admin.create({
    resourceType: 'Questionnaire',
    status: 'active',
    url,
    item: ['a', 'b'].map((linkId) => ({
      linkId,
      type: 'integer',
      repeats: true,
      ...(linkId === 'b' ? { enableWhen } : {}),
    })),
  } as Resource)
  const item = Array.from({ length: 40_000 }, (_, i) => ({
    linkId: i < 20_000 ? 'a' : 'b',
    answer: [{ valueInteger: i }],
  }))
  const response = {
    resourceType: 'QuestionnaireResponse',
    questionnaire: url,
    status: 'completed',
  }
  const answer = await admin.post('QuestionnaireResponse/$validate', { ...response, item })
  t.match(answer, {
    status: 400,
    body: { issue: { 0: { details: { text: 'Item b is not enabled' } } } },
  })
})

t.test('counts copies of long strings by their length', async (t) => {
  const extension = [{ url: 'http://example.org', valueString: 'x'.repeat(30_000) }]
  const { id } = await admin.create({ resourceType: 'Patient', extension })
  const copies = Array(500).fill({ op: 'copy', from: '/extension/0', path: '/extension/-' })
  const answer = await admin.patch(`Patient/${id}`, copies)
  t.match(answer, { status: 400, body: { issue: [{ code: 'too-costly' }] } })
})

t.test('rejects patches that make a resource larger than a request may be', async (t) => {
  const id = await aLargePatient()
  const value = { url: 'http://example.org', valueString: 'x'.repeat(60_000) }
  let last = 200
  for (let i = 0; i < 40 && last === 200; i++) {
    const add = { op: 'add', path: '/extension/-', value }
    last = (await admin.patch(`Patient/${id}`, [add], byPath)).status
  }
  t.equal(last, 413)
  const smaller = await admin.patch(
    `Patient/${id}`,
    [{ op: 'remove', path: '/extension/0' }],
    byPath,
  )
  t.equal(smaller.status, 200)
})
